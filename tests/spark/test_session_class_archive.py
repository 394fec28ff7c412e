"""Class archives: a session maps the one that is there, and starts without one that is of no use."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.class_archives import CLASS_ARCHIVES, make
from tests.cluster import running_cluster
from tests.files import files_below
from tests.spark.session_child import Child
from tests.waiting import until
from tests.windows_job import WindowsJob

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]


def mapped(pid: int) -> list[str]:
    """Return the class archives that this process has mapped into its memory, but for Java's own."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return sorted({line.split()[-1] for line in lines if "/session-" in line and line.endswith(".jsa")})


@pytest.mark.slow  # each session of the tests maps one
async def test_a_session_maps_the_archive_that_is_there(child: Child) -> None:
    """Otherwise the archive would be of no use."""
    archives = [path for path in files_below(CLASS_ARCHIVES) if path.name.startswith("session-")]
    if not archives:
        pytest.skip("`make servers` has made no class archive")
    assert child.ready is not None
    assert set(mapped(child.ready.jvm_pid)) & set(map(str, archives))


@pytest.mark.slow
async def test_a_damaged_archive_keeps_no_session_from_starting(tmp_path: Path) -> None:
    """A disk may lose what was written before a power failure. Java then loads its classes as usual."""
    made = make(tmp_path / "archives")
    assert made is not None
    made.chmod(0o600)
    with made.open("r+b") as file:
        file.truncate(10 << 20)
    child = Child(tmp_path / "child")
    child.directory.mkdir()
    try:
        await child.start({}, class_archives=str(tmp_path / "archives"))
        assert child.ready is not None
        assert mapped(child.ready.jvm_pid) == []
    finally:
        await child.aclose()


@pytest.mark.slow
async def test_the_first_session_of_an_installation_has_the_archive_made(tmp_path: Path) -> None:
    """It is made beside the session. TaskManagers that start later use it, and jobs run on them."""
    archives = tmp_path / "archives"
    job = WindowsJob(tmp_path)
    job.write_events()
    settings = {
        "taskmanager.session.class-archive.dir": str(archives),
        "resourcemanager.standby-taskmanagers": 1,
        "resourcemanager.max-taskmanagers": 2,
    }
    async with running_cluster(tmp_path / "cluster", **settings) as cluster:
        await cluster.await_ready(1)
        made = await until(
            lambda: next((path for path in files_below(archives) if path.name.startswith("session-")), None),
            "the class archive is made",
            timeout=300,
        )
        job_id = await cluster.submit(job.write("windows", mode="streaming"))
        await cluster.await_state(job_id, "RUNNING")
        await cluster.await_ready(2)
        jvms = [
            [each.pid for each in psutil.Process(tm.minflinkd.pid).children(recursive=True) if each.name() == "java"]
            for tm in await cluster.task_managers()
        ]
        assert sorted([str(made)] == mapped(pid) for pids in jvms for pid in pids) == [False, True]
        await cluster.cancel(job_id)
