"""The session keeper, with real child processes that speak the protocol without Spark."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from structlog.testing import capture_logs

from minflinkd.rpc.messages import SessionPhase
from minflinkd.runtime.clock import SystemClock
from minflinkd.taskmanager.child import keeper as session_keeper
from minflinkd.taskmanager.child import protocol as sp
from minflinkd.taskmanager.child.age import Figures
from minflinkd.taskmanager.child.health import Limits
from minflinkd.taskmanager.child.keeper import SessionKeeper
from minflinkd.taskmanager.child.protocol import SessionLost
from minflinkd.taskmanager.child.start import Work
from tests.waiting import until

STAND_IN = (sys.executable, str(Path(__file__).with_name("session_stand_in.py")))


class Listener:
    def __init__(self) -> None:
        self.phases: list[SessionPhase] = []
        self.lost: list[tuple[int, str]] = []
        self.gone = 0

    def session_changed(self, phase: SessionPhase) -> None:
        self.phases.append(phase)

    def session_lost(self, generation: int, reason: str) -> None:
        self.lost.append((generation, reason))

    def session_gone(self) -> None:
        self.gone += 1

    def task_failed(self, generation: int, notice: sp.TaskFailed) -> None: ...

    def batch_finished(self, generation: int, notice: sp.BatchFinished) -> None: ...

    def input_ended(self, generation: int, notice: sp.InputEnded) -> None: ...


@asynccontextmanager
async def keeping(
    tmp_path: Path,
    *,
    conf: dict[str, str] | None = None,
    limits: Limits = Limits(silent=30.0, stopped=30.0),  # noqa: B008 - frozen
    bounds: Figures = Figures(threads=1000, open_files=1000, memory=2**40),  # noqa: B008 - frozen
    start_timeout: float = 20.0,
    command: tuple[str, ...] = STAND_IN,
    clock: SystemClock = SystemClock(),  # noqa: B008 - has no state
) -> AsyncIterator[tuple[SessionKeeper, Listener]]:
    listener = Listener()
    config = sp.SessionConfig(
        name="tm-test",
        slots=1,
        working_directory=str(tmp_path / "work"),
        log_directory=str(tmp_path / "log"),
        conf=conf or {},
    )
    keeper = SessionKeeper(
        config=config,
        limits=limits,
        bounds=bounds,
        start_timeout=start_timeout,
        clock=clock,
        listener=lambda: listener,
        command=command,
    )
    with capture_logs():
        async with keeper:
            yield keeper, listener
    assert keeper.pids() == (None, None)
    assert list((tmp_path / "work").iterdir()) == []


async def ready(keeper: SessionKeeper, generation: int = 1) -> int:
    """Wait for a ready child of this generation or a later one. Return its pid."""
    await until(lambda: keeper.generation >= generation and keeper.phase is SessionPhase.READY)
    return keeper.session().pid


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_keeper, "WATCH_INTERVAL", 0.02)
    monkeypatch.setattr(session_keeper, "PING_INTERVAL", 0.05)
    monkeypatch.setattr(session_keeper, "AGE_INTERVAL", 0.05)
    monkeypatch.setattr(session_keeper, "PAUSE_AFTER_FAILED_START", 0.05)


async def test_a_child_becomes_ready_and_ends_with_its_keeper(tmp_path: Path) -> None:
    async with keeping(tmp_path) as (keeper, listener):
        with pytest.raises(SessionLost):
            keeper.session()
        pid = await ready(keeper)
        assert keeper.phases == {"session": 0.1}
        assert (await keeper.session().ask(sp.Ping(), timeout=5)).threads == 1
    assert not psutil.pid_exists(pid)
    assert listener.phases[:2] == [SessionPhase.STARTING, SessionPhase.READY]


async def test_a_killed_child_is_told_once_and_replaced(tmp_path: Path) -> None:
    """The keeper notices at once, because the connection ends (R11)."""
    async with keeping(tmp_path) as (keeper, listener):
        pid = await ready(keeper)
        os.kill(pid, signal.SIGKILL)
        successor = await ready(keeper, 2)
        assert successor != pid
        assert [(generation, "exit code -9" in why) for generation, why in listener.lost] == [(1, True)]
        assert listener.phases == [
            SessionPhase.STARTING,
            SessionPhase.READY,
            SessionPhase.LOST,
            SessionPhase.STARTING,
            SessionPhase.READY,
        ]
        assert await keeper.gone(1, timeout=1)


async def test_the_exit_code_of_a_killed_child_is_its_own(tmp_path: Path) -> None:
    """Only asyncio reaps the child and learns its exit code. Otherwise a race would show in one run of five."""
    async with keeping(tmp_path) as (keeper, listener):
        for generation in range(1, 9):
            await ready(keeper, generation)
            keeper.condemn(generation, "test")
        await ready(keeper, 9)
        assert [why for _, why in listener.lost] == ["test"] * 8


async def test_a_child_stopped_by_a_signal_is_replaced_within_the_limit(tmp_path: Path) -> None:
    """A stopped child will not come back by itself (J7)."""
    async with keeping(tmp_path, limits=Limits(silent=60.0, stopped=0.2)) as (keeper, listener):
        pid = await ready(keeper)
        began = asyncio.get_running_loop().time()
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: listener.lost)
        assert 0.2 <= asyncio.get_running_loop().time() - began < 10
        assert "stopped by a signal" in listener.lost[0][1]
        await until(lambda: listener.gone == 1)
        assert not psutil.pid_exists(pid)
        await ready(keeper, 2)


async def test_a_child_that_goes_on_in_time_is_kept(tmp_path: Path) -> None:
    """A pause is not a death (J7)."""
    async with keeping(tmp_path, limits=Limits(silent=60.0, stopped=60.0)) as (keeper, listener):
        pid = await ready(keeper)
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: keeper.session().stopped())
        os.kill(pid, signal.SIGCONT)
        assert (await keeper.session().ask(sp.Ping(), timeout=10)).threads == 1
        assert (listener.lost, keeper.session().pid) == ([], pid)


class Paused(SystemClock):
    """The clock of a machine that was paused once for a given time."""

    def __init__(self) -> None:
        self.pause = 0.0
        self.looks = 0

    def monotonic(self) -> float:
        self.looks += 1
        return super().monotonic() + self.pause


async def test_a_child_is_not_given_up_for_a_pause_of_its_supervisor(tmp_path: Path) -> None:
    """Both got SIGSTOP, or their virtual machine was paused (J7)."""
    clock = Paused()
    async with keeping(tmp_path, clock=clock) as (keeper, listener):
        pid = await ready(keeper)
        before, clock.pause = clock.looks, 1000.0
        await until(lambda: clock.looks >= before + 5 or listener.lost)
        assert (listener.lost, keeper.session().pid) == ([], pid)


async def test_a_silent_child_is_replaced(tmp_path: Path) -> None:
    """A JVM or an interpreter hangs, and is replaced after a long time (J7)."""
    limits = Limits(silent=0.5, stopped=60.0)
    async with keeping(tmp_path, conf={"silent-to": "1"}, limits=limits) as (keeper, listener):
        await ready(keeper, 2)  # on a slow machine the second one may be late as well
        generation, why = listener.lost[0]
        assert (generation, "has not answered" in why) == (1, True)


async def test_a_child_that_never_becomes_ready_is_replaced(tmp_path: Path) -> None:
    async with keeping(tmp_path, conf={"never-ready-to": "1"}, start_timeout=2.0) as (keeper, listener):
        await ready(keeper, 2)  # on a slow machine the second one may be late as well
        generation, why = listener.lost[0]
        assert (generation, "was not ready within" in why, "did nothing for" in why) == (1, True, True)


class Seconds(SystemClock):
    """A second passes with each look at it, until its end; there it stands still. No more children than `starts`."""

    def __init__(self, *, end: float = math.inf, starts: int = 1) -> None:
        self.now = 0.0
        self.end = end
        self.starts = starts

    def monotonic(self) -> float:
        self.now = min(self.now + 1, self.end)
        return self.now

    async def sleep(self, seconds: float) -> None:
        """The pause after a failed start."""
        self.starts -= 1
        if self.starts == 0:
            await asyncio.Event().wait()


def starts_look(monkeypatch: pytest.MonkeyPatch, *, load: float, working: bool) -> None:
    """What is seen of each start: so many processes want each processor, and the child works or does nothing."""
    worked = itertools.count(1)
    monkeypatch.setattr(session_keeper, "START_INTERVAL", 0.001)
    monkeypatch.setattr(session_keeper, "_load", lambda: load)
    monkeypatch.setattr(session_keeper, "work_of", lambda _: Work(cpu=next(worked)) if working else Work())


async def test_a_child_that_gets_on_is_kept_beyond_the_timeout_and_said_to_be_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told once in the log, and as long as the start lasts to whoever asks (R5)."""
    starts_look(monkeypatch, load=4.0, working=True)
    go_on = tmp_path / "go on"
    async with keeping(tmp_path, conf={"ready-with": str(go_on)}, start_timeout=10.0, clock=Seconds(end=36)) as (
        keeper,
        listener,
    ):
        with capture_logs() as logged:
            await until(lambda: "starting for 35 s, longer than 10 s" in keeper.slow)
        assert "4.0 processes want each processor" in keeper.slow
        assert keeper.phase is SessionPhase.STARTING
        assert keeper.steps >= 35
        (warning,) = logged
        assert (warning["event"], warning["log_level"]) == ("a session starts slowly", "warning")
        go_on.touch()
        await ready(keeper)
        assert (keeper.generation, keeper.slow, listener.lost) == (1, "", [])


@pytest.mark.parametrize(("load", "lives"), [(0.5, 10), (4.0, 40)])
async def test_a_child_that_does_nothing_lives_longer_where_processes_queue_for_the_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: float, lives: int
) -> None:
    """Four processes for each processor: four times as long (R5)."""
    starts_look(monkeypatch, load=load, working=False)
    async with keeping(tmp_path, conf={"never-ready-to": "1"}, start_timeout=10.0, clock=Seconds()) as (_, listener):
        await until(lambda: listener.lost)
        assert f"not ready within {lives} s, and did nothing for {lives} s" in listener.lost[0][1]


async def test_a_child_gets_twice_the_time_of_the_one_that_was_given_up_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A time too short for one start may be enough for the next (R5)."""
    starts_look(monkeypatch, load=0.0, working=False)
    clock = Seconds(starts=3)
    async with keeping(tmp_path, conf={"never-ready-to": "3"}, start_timeout=10.0, clock=clock) as (_, listener):
        await until(lambda: len(listener.lost) == 3)
        for seconds, (_, why) in zip((10, 20, 40), listener.lost, strict=True):
            assert f"not ready within {seconds} s, and did nothing for {seconds} s" in why


async def test_a_condemned_child_goes_and_a_late_verdict_harms_no_successor(tmp_path: Path) -> None:
    """The reason is user code that does not return when it is cancelled (J7)."""
    async with keeping(tmp_path) as (keeper, listener):
        await ready(keeper)
        keeper.condemn(1, "it hangs")
        keeper.condemn(1, "it hangs still")
        assert not await keeper.gone(1, timeout=0.0), "nobody waits for ever"
        assert await keeper.gone(1, timeout=10)
        await ready(keeper, 2)
        keeper.condemn(1, "late")
        assert (await keeper.session().ask(sp.Ping(), timeout=10)).threads == 1
        assert listener.lost == [(1, "it hangs")]


async def test_a_child_that_ends_at_once_is_started_again_after_a_pause(tmp_path: Path) -> None:
    async with keeping(tmp_path, command=(sys.executable, "-c", "raise SystemExit(3)")) as (_, listener):
        await until(lambda: len(listener.lost) >= 2)
        assert [(g, "exit code 3" in why) for g, why in listener.lost[:2]] == [(1, True), (2, True)]
        assert SessionPhase.READY not in listener.phases


async def test_a_child_beyond_a_bound_is_told_as_aged_and_renewed(tmp_path: Path) -> None:
    """The child's age is reported once, and the child goes on.

    Renewing it on request is a start and not a loss (R6a).
    """
    bounds = Figures(threads=1000, open_files=100, memory=2**40)
    async with keeping(tmp_path, conf={"leaks-to": "1"}, bounds=bounds) as (keeper, listener):
        pid = await ready(keeper)
        await until(lambda: keeper.aged)
        assert "open files, more than 100" in keeper.aged
        assert (await keeper.session().ask(sp.Ping(), timeout=5)).threads == 1
        assert listener.phases == [SessionPhase.STARTING, SessionPhase.READY, SessionPhase.READY]
        keeper.renew(keeper.aged)
        keeper.renew("asked twice")
        with pytest.raises(SessionLost):
            keeper.session()
        successor = await ready(keeper, 2)
        assert successor != pid
        assert not psutil.pid_exists(pid)
        assert keeper.aged == ""
        assert SessionPhase.LOST not in listener.phases
        assert [(generation, "open files" in why) for generation, why in listener.lost] == [(1, True)]


async def test_bounds_below_a_fresh_child_do_not_renew_for_ever(tmp_path: Path) -> None:
    """The successor would be as old. So a child's age counts what it holds beyond a fresh one (R6a)."""
    bounds = Figures(threads=1, open_files=1, memory=1)
    async with keeping(tmp_path, conf={"leaks-to": "1"}, bounds=bounds) as (keeper, _):
        await ready(keeper)
        await until(lambda: "open files" in keeper.aged)
        keeper.renew(keeper.aged)
        await ready(keeper, 2)
        for _ in range(5):  # the keeper looks at its age between pings
            await keeper.session().ask(sp.Ping(), timeout=5)
            await asyncio.sleep(session_keeper.AGE_INTERVAL)
        assert keeper.aged == ""
