"""A daemon of another version takes over a running job, and `minflinkd upgrade` replaces its TaskManager."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

import minflinkd
from tests.cluster import Launch, free_port, lives, running_cluster
from tests.faults.hot_restarts import ONE, running_versions
from tests.faults.test_drain import minflinkd as command
from tests.faults.test_kill_daemon import attempts_in
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

NEXT = "0.1.99"


def built(directory: Path, launch: Launch) -> Launch:
    """Return how to start a second build of the same code, with another version number."""
    here = Path(minflinkd.__file__).parent
    package = directory / "minflinkd"
    shutil.copytree(here, package, ignore=shutil.ignore_patterns("__pycache__"))
    init = package / "__init__.py"
    init.write_text(init.read_text().replace(f'"{minflinkd.__version__}"', f'"{NEXT}"'))
    # PYTHONSAFEPATH: the directory in which the tests run comes first otherwise
    return replace(launch, environ={**os.environ, "PYTHONPATH": str(directory), "PYTHONSAFEPATH": "1"})


@pytest.mark.slow  # test_drain has the same move
async def test_an_upgrade_moves_a_running_job_without_a_lost_or_repeated_row(tmp_path: Path) -> None:
    """The new daemon adopts the tasks, and the job moves to a TaskManager of the new version (A15a, A15b, A16)."""
    settings = {**ONE, "rest.port": free_port(), "resourcemanager.standby-taskmanagers": 0}
    async with (
        running_cluster(tmp_path / "cluster", **settings) as cluster,
        running_versions(cluster, tmp_path) as versions,
    ):
        before = await cluster.task_manager_of(versions.job_id)
        attempts = attempts_in(tmp_path / "cluster")
        supervisor = psutil.Process(before.minflinkd.pid)

        await cluster.hand_over()
        cluster.launch = built(tmp_path / "build", cluster.launch)
        await cluster.start_again()
        completed = (await cluster.client.checkpoints(versions.job_id)).counts.completed
        await cluster.await_checkpoints(versions.job_id, completed + 2)
        after = await cluster.task_manager_of(versions.job_id)
        assert (after.id, after.minflinkd.version) == (before.id, minflinkd.__version__)
        assert attempts_in(tmp_path / "cluster") == attempts, "the tasks of the old version were adopted"

        assert before.id in await command(cluster, "upgrade", "--dry-run")
        await command(cluster, "upgrade")
        await until(lambda: not lives(supervisor), "the old TaskManager has ended")
        after = await cluster.task_manager_of(versions.job_id)
        assert (after.id != before.id, after.minflinkd.version) == (True, NEXT)
        await versions.goes_on()
        assert (await cluster.client.job(versions.job_id)).minflinkd.restarts == 0
