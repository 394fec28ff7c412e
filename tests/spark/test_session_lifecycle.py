"""How a session child begins, what it leaves behind, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from minflinkd.taskmanager.child import protocol as p
from tests.spark.session_child import Child, call, ends, job, rate, sql, task
from tests.waiting import WaitedInVain, until

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(loop_scope="session")
async def lone_child(tmp_path: Path) -> AsyncIterator[Child]:
    child = Child(tmp_path)
    try:
        await child.start({}, warm_up=False)
        yield child
    finally:
        await child.aclose()


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def native_threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def stores_on_disk(directory: Path) -> int:
    return sum("rocksdb" in name for _, directories, files in os.walk(directory) for name in (*directories, *files))


@pytest.mark.slow  # tests/e2e/test_cancel.py has one start and stop, by the user's own commands
async def test_thirty_starts_and_stops_leave_nothing(child: Child, tmp_path: Path) -> None:
    """Threads, descriptors, RocksDB instances and local files do not grow with the tasks that ran (C10a, J7, R6a)."""
    assert child.ready is not None
    jvm = child.ready.jvm_pid
    counted = sql("counted", "SELECT value % 5 AS k, count(*) AS n FROM numbers GROUP BY 1", "numbers")
    query = task(rate(100), counted, call("discard:write", "counted"))
    (tmp_path / "discard.py").write_text("def write(batch, epoch):\n    pass\n")
    artifacts = {"discard.py": str(tmp_path / "discard.py")}

    async def measured() -> tuple[int, ...]:
        pong = await child.ask(p.Ping())
        assert pong.state_stores == 0
        local = stores_on_disk(child.directory / "work")
        return pong.threads, descriptors(child.pid), descriptors(jvm), native_threads(jvm), local

    figures = []
    for _ in range(30):
        attempt = await child.run(job(), query, artifacts=artifacts)
        await child.batches(attempt, 1)
        await child.stop(attempt)
        figures.append(await measured())
    most = tuple(early + more for early, more in zip(figures[9], (2, 4, 10, 10, 0), strict=True))

    async def few() -> bool:
        figures.append(await measured())
        return all(late <= bound for late, bound in zip(figures[-1], most, strict=True))

    try:  # threads and sockets end after some time
        await until(few, timeout=30, pause=0.1, patience=1.0)
    except WaitedInVain as error:
        error.add_note(f"{figures}; at most {most}")
        raise


async def test_the_jvm_s_death_is_told_at_once(lone_child: Child) -> None:
    """The child tells the supervisor, and then ends itself."""
    assert lone_child.ready is not None
    os.kill(lone_child.ready.jvm_pid, signal.SIGKILL)
    lost = await lone_child.notice(p.JvmLost, lambda _: True, timeout=60.0)
    assert str(lone_child.ready.jvm_pid) in lost.reason
    await ends(lone_child.pid)


@pytest.mark.slow  # each test of a lost TaskManager looks for its processes
async def test_a_child_ends_with_its_supervisor(tmp_path: Path) -> None:
    """Neither the child nor its JVM survives a killed supervisor."""
    config = tmp_path / "session.json"
    p.write_config(
        p.SessionConfig(name="tm", slots=1, working_directory=str(tmp_path / "w"), log_directory=str(tmp_path / "l")),
        config,
    )
    supervisor = f"""
import socket, subprocess, sys, time
ours, theirs = socket.socketpair()
child = subprocess.Popen([sys.executable, "-m", "minflinkd.taskmanager.session", "--fd", str(theirs.fileno()),
                          "--config", {str(config)!r}], pass_fds=[theirs.fileno()])
print(child.pid, flush=True)
time.sleep(1000)
"""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", supervisor),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert process.stdout is not None
    child_pid = int(await process.stdout.readline())
    try:
        jvm = await _jvm_of(child_pid)
    finally:
        process.kill()
        await process.wait()
    await ends(child_pid)
    await ends(jvm)


async def _jvm_of(pid: int) -> int:
    found: list[int] = []

    def there() -> bool:
        for child in psutil.Process(pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):  # one may end meanwhile
                found.extend([child.pid] if child.name() == "java" else [])
        return bool(found)

    await until(there)
    return found[-1]


async def test_a_session_that_cannot_start_says_why(tmp_path: Path) -> None:
    """The supervisor gets Spark's reason, not only an exit code."""
    child = Child(tmp_path)
    with pytest.raises(AssertionError, match="JAVA_GATEWAY_EXITED"):
        await child.start({"spark.master": "nonsense"})
    await child.aclose()
