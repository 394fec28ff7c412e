"""A session child that has aged, with a real JVM."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
from msgspec.structs import replace as copy

from minflinkd.rpc.messages import SessionPhase
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.ids import AttemptId
from minflinkd.taskmanager.child import protocol as sp
from minflinkd.taskmanager.child.age import Figures
from minflinkd.taskmanager.child.health import Limits
from minflinkd.taskmanager.child.keeper import SessionKeeper
from tests.cluster import lives
from tests.spark.session_child import call, job, rate, sql, task
from tests.waiting import until

pytestmark = pytest.mark.spark


class Listener:
    def __init__(self) -> None:
        self.phases: list[SessionPhase] = []
        self.lost: list[int] = []

    def session_changed(self, phase: SessionPhase) -> None:
        self.phases.append(phase)

    def session_lost(self, generation: int, reason: str) -> None:
        self.lost.append(generation)

    def session_gone(self) -> None: ...

    def task_failed(self, generation: int, notice: sp.TaskFailed) -> None: ...

    def batch_finished(self, generation: int, notice: sp.BatchFinished) -> None: ...

    def input_ended(self, generation: int, notice: sp.InputEnded) -> None: ...


@pytest.mark.slow  # unit and component tests have the rule and the keeper
async def test_an_aged_session_is_told_and_renewed_without_a_process_left(tmp_path: Path) -> None:
    """Beyond a bound it says so but continues. After the renewal nothing of the old session runs (R6a)."""
    listener = Listener()
    config = sp.SessionConfig(
        name="tm-test", slots=1, working_directory=str(tmp_path / "work"), log_directory=str(tmp_path / "log")
    )
    keeper = SessionKeeper(
        config=config,
        limits=Limits(silent=60.0, stopped=60.0),
        bounds=Figures(threads=200, open_files=2000, memory=2**40),  # a fresh session has some 110, and a task 150
        start_timeout=90.0,
        clock=SystemClock(),
        listener=lambda: listener,
    )
    async with keeper:
        await until(lambda: keeper.phase is SessionPhase.READY, timeout=90)
        attempt = AttemptId(uuid4().hex)
        query = task(rate(10), sql("n", "SELECT value % 5 AS k, count(*) AS n FROM numbers GROUP BY 1", "numbers"))
        out = call("discard:write", "n")
        (tmp_path / "discard.py").write_text("def write(batch, epoch):\n    pass\n")
        await keeper.session().ask(
            sp.RunTask(
                job=job(),
                task=copy(query, vertices=(*query.vertices, out)),
                attempt_id=attempt,
                directory=str(tmp_path / "attempt"),
                artifacts={"discard.py": str(tmp_path / "discard.py")},
            ),
            timeout=180,
        )
        await until(lambda: keeper.aged)
        assert "threads, more than 200" in keeper.aged
        await keeper.session().ask(sp.StopTask(attempt_id=attempt), timeout=90)
        assert (await keeper.session().ask(sp.Ping(), timeout=60)).attempts == ()
        child = psutil.Process(keeper.session().pid)
        old = [child, *child.children(recursive=True)]
        assert "java" in {process.name() for process in old}
        keeper.renew(keeper.aged)
        assert await keeper.gone(1)
        assert [process for process in old if lives(process)] == []
        await until(lambda: keeper.phase is SessionPhase.READY and keeper.generation == 2, timeout=90)
        assert (await keeper.session().ask(sp.Ping(), timeout=60)).attempts == ()
        assert listener.lost == [1]
        assert SessionPhase.LOST not in listener.phases
        second = psutil.Process(keeper.session().pid).children(recursive=True)
    _, alive = await asyncio.to_thread(psutil.wait_procs, second, 10)
    assert alive == []
