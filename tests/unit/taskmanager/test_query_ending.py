"""How the query of an attempt ends, decided by several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from minflinkd.taskmanager.session.query.ending import LEGAL, Ending, Phase

Move = Callable[[Ending], object]
MOVES: dict[str, Move] = {
    "close": Ending.close,
    "keep open": Ending.keep_open,
    "closed": Ending.closed,
    "reopen": lambda ending: ending.reopen(lambda: None),
    "stop": lambda ending: (ending.stop(), True)[1],
    "fail": Ending.fail,
}
TO: dict[Phase, list[str]] = {
    Phase.RUNNING: [],
    Phase.CLOSING: ["close"],
    Phase.CLOSED: ["close", "closed"],
    Phase.STOPPING: ["stop"],
    Phase.FAILED: ["fail"],
}
AFTER: dict[Phase, dict[str, Phase]] = {  # phase -> the moves that do something, and where they lead
    Phase.RUNNING: {"close": Phase.CLOSING, "stop": Phase.STOPPING, "fail": Phase.FAILED},
    Phase.CLOSING: {
        "keep open": Phase.RUNNING,
        "closed": Phase.CLOSED,
        "stop": Phase.STOPPING,
        "fail": Phase.FAILED,
    },
    Phase.CLOSED: {"reopen": Phase.RUNNING, "stop": Phase.STOPPING, "fail": Phase.FAILED},
    Phase.STOPPING: {"stop": Phase.STOPPING},  # asked again: nothing changes
    Phase.FAILED: {"stop": Phase.STOPPING},
}


def at(phase: Phase) -> Ending:
    ending = Ending()
    for name in TO[phase]:
        assert MOVES[name](ending)
    assert ending.phase is phase
    return ending


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("name", MOVES)
def test_each_move_does_something_in_some_phases_only(phase: Phase, name: str) -> None:
    """Whoever asks too late learns it, and changes nothing."""
    ending = at(phase)
    expected = AFTER[phase].get(name)
    assert MOVES[name](ending) is (expected is not None)
    assert ending.phase is (expected or phase)
    assert ending.over.is_set() is (ending.phase in (Phase.STOPPING, Phase.FAILED))


def test_every_legal_move_is_made_by_somebody() -> None:
    assert {phase: frozenset(after.values()) - {phase} for phase, after in AFTER.items()} == LEGAL


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("name", [name for name in MOVES if name != "stop"])
def test_once_a_stop_is_announced_nothing_but_the_stop_is_done(phase: Phase, name: str) -> None:
    """The announcement does not wait for the query to open, and what happens until the stop is no failure."""
    ending = at(phase)
    ending.announce_stop()
    assert not MOVES[name](ending)
    assert ending.phase is phase
    ending.stop()
    assert ending.phase is Phase.STOPPING


def test_a_query_that_was_stopped_is_not_opened_again() -> None:
    ending = at(Phase.CLOSED)
    ending.stop()
    started: list[str] = []
    assert not ending.reopen(lambda: started.append("started"))
    assert started == []


def test_a_query_that_does_not_start_again_can_still_fail() -> None:
    ending = at(Phase.CLOSED)

    def broken() -> None:
        raise RuntimeError("no slot")

    with pytest.raises(RuntimeError, match="no slot"):
        ending.reopen(broken)
    assert ending.phase is Phase.CLOSED
    assert ending.fail()


def test_a_stop_that_comes_while_the_query_is_opened_again_finds_it_running() -> None:
    """Otherwise it would stop the earlier query, and the new one would run for ever."""
    ending, order = at(Phase.CLOSED), list[str]()
    opening, asked = threading.Event(), threading.Event()

    def stop() -> None:
        opening.wait(10)
        asked.set()
        ending.stop()
        order.append("stopped")

    def start() -> None:
        opening.set()
        asked.wait(10)
        order.append("started")

    stopping = threading.Thread(target=stop)
    stopping.start()
    ending.reopen(start)
    stopping.join(10)
    assert order == ["started", "stopped"]
    assert ending.phase is Phase.STOPPING


def test_the_query_may_be_closed_from_within_its_own_start() -> None:
    """Its first micro-batch can be published before the start has returned, but not on the same thread."""
    ending = at(Phase.CLOSED)
    closing = threading.Thread(target=ending.close)
    assert ending.reopen(closing.start)
    closing.join(10)
    assert ending.phase is Phase.CLOSING


@pytest.mark.parametrize(
    ("move", "runs"), [(Ending.keep_open, True), (Ending.stop, False), (Ending.fail, False)], ids=["on", "stop", "fail"]
)
def test_who_waits_for_the_next_query_learns_whether_there_is_one(move: Move, runs: bool) -> None:
    ending = at(Phase.CLOSING)
    found: list[bool] = []
    waiting = threading.Thread(target=lambda: found.append(ending.await_reopened()))
    waiting.start()
    move(ending)
    waiting.join(10)
    assert found == [runs]


def test_of_many_failures_at_once_one_is_reported() -> None:
    ending = Ending()
    reported: list[bool] = []
    threads = [threading.Thread(target=lambda: reported.append(ending.fail())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(reported) == [False] * 7 + [True]
