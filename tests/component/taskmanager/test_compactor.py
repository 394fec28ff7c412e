"""When a sink has its table compacted, and the process that does it (K5)."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from minflinkd.jobgraph.model import Compaction, Sink
from minflinkd.runtime.ids import JobId, VertexId
from minflinkd.runtime.units import Duration
from minflinkd.taskmanager.session.sinks.compaction import compactor as module
from minflinkd.taskmanager.session.sinks.compaction.compactor import COMMAND, Compactor
from minflinkd.taskmanager.session.sinks.compaction.messages import Request
from tests.component.taskmanager.test_compaction import World
from tests.waiting import until_blocking

JOB, OUT = JobId("1" * 32), VertexId("out")
EVERY = Compaction(every=Duration(600.0))
WAITS = "import sys; sys.stdin.readline(); print(flush=True); sys.stdin.read()"  # until its input is closed


class Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def compactor() -> Iterator[Callable[..., Compactor]]:
    made: list[Compactor] = []

    def make(clock: Time, *, command: tuple[str, ...] = COMMAND, sink: Sink | None = None) -> Compactor:
        sink = sink or Sink(format="iceberg", options={"table": "db.rows"}, compaction=EVERY)
        made.append(Compactor(sink, JOB, OUT, command=command, clock=clock))
        return made[-1]

    yield make
    for each in made:
        each.close()
        until_blocking(lambda each=each: not each.is_running)  # type: ignore[misc]


def answering(**answer: object) -> tuple[str, ...]:
    """A command that answers this."""
    text = json.dumps(answer)
    return (sys.executable, "-c", f"import sys; sys.stdin.readline(); print({text!r})")


def test_a_table_is_compacted_after_a_commit_when_it_is_time(compactor: Callable[..., Compactor]) -> None:
    """An attempt that has just begun waits a minute, since a job that fails again and again must not compact (K5)."""
    clock = Time()
    one = compactor(clock, command=answering(joined={"files": 7, "into": 2}))
    one.committed()
    assert not one.is_running
    for at, done in ((1059.0, 0), (1061.0, 1), (1600.0, 1), (1662.0, 2)):
        clock.now = at
        one.committed()
        until_blocking(lambda: not one.is_running)
        assert (one.figures.done, one.figures.files, one.figures.into) == (done, 7 * done, 2 * done)


def test_a_compaction_that_fails_says_why_without_secrets(compactor: Callable[..., Compactor]) -> None:
    """The next one is tried as usual (K5)."""
    clock = Time()
    one = compactor(clock, command=answering(failure="no s3://key:hunter2@lake/rows"))
    clock.now += 61
    one.committed()
    until_blocking(lambda: one.figures.failed == 1)
    assert one.figures.failure.startswith("no s3://")
    assert "hunter2" not in one.figures.failure


def test_a_process_that_dies_is_a_failure(compactor: Callable[..., Compactor]) -> None:
    """Its last words are told (K5)."""
    clock = Time()
    one = compactor(clock, command=(sys.executable, "-c", "raise SystemExit('killed by nobody')"))
    clock.now += 61
    one.committed()
    until_blocking(lambda: one.figures.failed == 1)
    assert one.figures.failure == "the compaction ended with 1: killed by nobody"


def test_it_ends_with_its_attempt(compactor: Callable[..., Compactor]) -> None:
    """What runs is ended, nothing is told of it, and no further one begins (K5)."""
    clock = Time()
    one = compactor(clock, command=(sys.executable, "-c", WAITS))
    clock.now += 61
    one.committed()
    until_blocking(lambda: children() != [])
    one.close()
    until_blocking(lambda: not one.is_running)
    assert (one.figures.done, one.figures.failed) == (0, 0)
    clock.now += 1000
    one.committed()
    assert not one.is_running
    assert children() == []


def test_a_process_that_does_not_react_is_killed(
    compactor: Callable[..., Compactor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call of a library may take minutes, and Python sees no signal before its end (K5)."""
    monkeypatch.setattr(module, "_ENDING", 0.2)
    clock = Time()
    deaf = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAITS}"
    one = compactor(clock, command=(sys.executable, "-c", deaf))
    clock.now += 61
    one.committed()
    until_blocking(lambda: children(deaf) != [])
    one.close()
    until_blocking(lambda: not one.is_running)


def test_old_versions_are_looked_for_seldom(compactor: Callable[..., Compactor], tmp_path: Path) -> None:
    """It means reading about all of them: ten times in the time for which they are kept (K5)."""
    told = tmp_path / "told"
    writes = f"import sys; open({str(told)!r}, 'a').write(sys.stdin.readline()); print('{{}}')"
    sink = Sink(
        format="iceberg",
        options={"table": "db.rows"},
        compaction=Compaction(every=Duration(60.0), expire=Duration(3600.0)),
    )
    clock = Time()
    one = compactor(clock, command=(sys.executable, "-c", writes), sink=sink)
    for _ in range(8):
        clock.now += 61
        one.committed()
        until_blocking(lambda: not one.is_running)
    assert [json.loads(line)["expires"] for line in told.read_text().splitlines()] == [True, *[False] * 5, True, False]


def command_lines() -> list[str]:
    """Return the command lines of this process's children."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            found.append(" ".join(child.cmdline()))
    return found


def children(text: str = WAITS) -> list[int]:
    """Return the pids of this process's children that execute `text`. Some of other tests may be zombies."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if text in child.cmdline():
                found.append(child.pid)
    return found


def test_a_real_process_joins_the_files_of_a_table(compactor: Callable[..., Compactor], tmp_path: Path) -> None:
    """The settings go through its input, so that no secret is on a command line (K5)."""
    world = World(tmp_path)
    for number in range(5):
        world.append(number)
    clock = Time()
    one = compactor(clock, sink=replace(world.sink, compaction=EVERY))
    clock.now += 61
    one.committed()
    seen: set[str] = set()
    until_blocking(lambda: seen.update(command_lines()) or one.figures.done == 1 or one.figures.failure != "")
    assert any("sinks.compaction" in line for line in seen)
    assert not any("catalog.db" in line for line in seen)
    assert (one.figures.files, one.figures.into, one.figures.failure) == (5, 1, "")
    assert world.values() == [0, 1, 2, 3, 4]


def test_the_process_ends_when_the_session_is_gone() -> None:
    """It notices by its input, which the session holds open (K5)."""
    slow = (
        "from minflinkd.taskmanager.session.sinks.compaction import __main__ as m\n"
        "import time\n"
        "m.carried_out = lambda request: print(flush=True) or time.sleep(600)\n"
        "m.main()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", slow], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    sink = Sink(format="iceberg", options={"table": "db.rows"}, compaction=EVERY)
    process.stdin.write(Request(sink, "owner").line())
    process.stdin.flush()
    assert process.stdout.readline() == b"\n"
    process.stdin.close()
    assert process.wait(60) == 1
    process.stdout.close()
