"""What ails TaskManagers: their disk is full, one is silent, and none comes up any more (E19b).

One that is lost is in `test_one_run.py`, with jobs that wait for slots.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import running_cluster
from tests.e2e.alerts.firing import fires, hurried
from tests.faults.test_storage_faults import counting_job
from tests.servers.prometheus import needs_prometheus, prometheus
from tests.small_disk import small_disk

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), needs_prometheus]

MIB = 2**20
SETTINGS = {
    "resourcemanager.standby-taskmanagers": 1,
    "resourcemanager.max-taskmanagers": 1,
    "heartbeat.timeout": "20 s",  # long enough for a silence to be seen
}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 64) as directory:
        yield directory


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Everything on the PATH, as a directory from which a test can remove `java`."""
    directory = tmp_path / "programs"
    directory.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).glob("*"):
            if not (directory / program.name).is_symlink():
                (directory / program.name).symlink_to(program)
    return directory


async def test_a_full_disk_silence_and_the_lack_of_taskmanagers_are_told(
    disk: Path, programs: Path, tmp_path: Path
) -> None:
    environ = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"} | {"PATH": str(programs)}
    settings = {**SETTINGS, "taskmanager.state.local.root-dir": str(disk / "state")}
    async with running_cluster(tmp_path / "cluster", environ=environ, **settings) as cluster:
        await cluster.await_ready(1)
        job_id = await cluster.submit(counting_job(tmp_path, "numbers"))
        await cluster.await_checkpoints(job_id, 1)
        runs_on = await cluster.task_manager_of(job_id)
        target, rules = cluster.url.removeprefix("http://"), hurried(tmp_path / "rules.yml")
        async with prometheus(tmp_path / "server", target, rules=rules, headers=cluster.headers) as server:
            (disk / "other").write_bytes(b"x" * (62 * MIB))
            await fires(server, "MinflinkdDiskFull", taskmanager=runs_on.id, severity="warning")
            (disk / "other").unlink()

            os.kill(runs_on.minflinkd.pid, signal.SIGSTOP)
            try:
                await fires(server, "MinflinkdTaskManagerSilent", taskmanager=runs_on.id, severity="warning")
            finally:
                os.kill(runs_on.minflinkd.pid, signal.SIGCONT)

            (programs / "java").unlink()
            os.kill(runs_on.minflinkd.pid, signal.SIGKILL)
            await fires(server, "MinflinkdNoTaskManager", severity="critical")
