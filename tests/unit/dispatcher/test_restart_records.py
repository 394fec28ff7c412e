"""What is recorded of each hot restart, and what the new version is told, tested with lists of events."""

from __future__ import annotations

import pytest

from minflinkd.dispatcher import versions as v
from minflinkd.dispatcher.versions import KEPT, Command, Version, Versions, step
from minflinkd.jobgraph.model import JobGraph, Sink, Vertex
from minflinkd.rpc.jobs import HotRestart, RestartState
from minflinkd.runtime.errors import Conflict, Consequence, ErrorInfo
from minflinkd.runtime.ids import VertexId

BOOM = ErrorInfo(code="user-code", message="boom")
AGAIN = ErrorInfo(code="other", message="it does not stop")


def graph(number: int, **sinks: str) -> JobGraph:
    ends = (Vertex(id=VertexId(name), sink=Sink(format="json", path=path)) for name, path in sinks.items())
    return JobGraph(name=f"version {number}", vertices=tuple(ends))


OLD, NEW, NEXT = graph(0), graph(1), graph(2)


class Job:
    """Feeds the machine. Each event comes 250 ms after the one before it; the first one at 1.25 s."""

    def __init__(self, current: JobGraph = OLD) -> None:
        self.state = Versions(current=Version(graph=current))
        self.now = 1.0

    def feed(self, *events: v.Event) -> list[Command]:
        found: list[Command] = []
        for event in events:
            self.now += 0.25
            self.state, commands = step(self.state, event, self.now)
            v.check_invariants(self.state)
            found += commands
        return found

    @property
    def last(self) -> HotRestart:
        return self.state.past[-1]


HANDING_OVER: tuple[v.Event, ...] = (v.Requested(NEW),)
STARTING = (*HANDING_OVER, v.StoodDown(7))
TURNING_BACK = (*STARTING, v.Disproved(BOOM))
INTERRUPTED = ErrorInfo(
    code="hot-restart-interrupted",
    message="the daemon ended before the running version had made way",
    consequence=Consequence.RETRYABLE,
    hint="ask for it again",
)
ABANDONED = ErrorInfo(code="hot-restart-abandoned", message="the job was cancelled, or ended, before it was done")
REPLACED = ErrorInfo(code="hot-restart-replaced", message="another hot restart took its place")


def ended(
    state: RestartState, error: ErrorInfo | None = None, checkpoint: int | None = 7, **phases: float
) -> HotRestart:
    return HotRestart(number=1, state=state, requested_ms=1250, checkpoint_id=checkpoint, phases=phases, error=error)


ENDS: dict[str, tuple[tuple[v.Event, ...], HotRestart]] = {
    "proven": (
        (*STARTING, v.Running({"slots": 1_600}), v.Proven(8, {"first_batch": 1_900, "slots": 9_000})),
        ended(RestartState.COMPLETED, stopped=0.25, slots=0.35, running=0.5, first_batch=0.65, first_checkpoint=0.75),
    ),
    "proven by what the clock had moved": (
        (*STARTING, v.Proven(8, {"slots": 1_000})),
        ended(RestartState.COMPLETED, stopped=0.25, slots=0.0, first_checkpoint=0.5),
    ),
    "finished": ((*STARTING, v.Ended(finished=True)), ended(RestartState.COMPLETED, stopped=0.25)),
    "finished before the switch": (
        (*HANDING_OVER, v.Ended(finished=True)),
        ended(RestartState.ABANDONED, ABANDONED, None),
    ),
    "cancelled": ((*STARTING, v.Ended()), ended(RestartState.ABANDONED, ABANDONED, stopped=0.25)),
    "not stood down": (
        (*HANDING_OVER, v.NotStoodDown(AGAIN)),
        ended(RestartState.FAILED, AGAIN, None, failed=0.25),
    ),
    "interrupted": (
        (*HANDING_OVER, v.Recovered(7)),
        ended(RestartState.FAILED, INTERRUPTED, None, failed=0.25),
    ),
    "interrupted by a bug": (
        (*HANDING_OVER, v.Recovered(7, BOOM)),
        ended(RestartState.FAILED, BOOM, None, failed=0.25),
    ),
    "interrupted after its first checkpoint": (
        (*STARTING, v.Recovered(8)),
        ended(RestartState.COMPLETED, stopped=0.25),
    ),
    "interrupted after its first checkpoint, while it was turned back": (
        (*TURNING_BACK, v.Recovered(8)),
        ended(RestartState.COMPLETED, stopped=0.25, failed=0.5),
    ),
    "rolled back": ((*TURNING_BACK, v.StoodDown(7)), ended(RestartState.ROLLED_BACK, BOOM, stopped=0.25, failed=0.5)),
    "rolled back after an interruption": (
        (*TURNING_BACK, v.Recovered(7, AGAIN), v.StoodDown(7)),
        ended(RestartState.ROLLED_BACK, BOOM, stopped=0.25, failed=0.5),
    ),
    "turned back after its first checkpoint": (
        (*TURNING_BACK, v.StoodDown(8)),
        ended(RestartState.COMPLETED, stopped=0.25, failed=0.5),
    ),
    "never running": (
        (*STARTING, v.Overdue(AGAIN), v.StoodDown(7)),
        ended(RestartState.ROLLED_BACK, AGAIN, stopped=0.25, failed=0.5),
    ),
    "replaced": (
        (*STARTING, v.Requested(NEXT, replace=True)),
        ended(RestartState.REPLACED, REPLACED, stopped=0.25),
    ),
}


@pytest.mark.parametrize("how", ENDS)
def test_the_record_of_a_restart_says_how_it_ended_why_and_when(how: str) -> None:
    """Times are seconds since the request, and the first time of each counts (H10)."""
    events, record = ENDS[how]
    job = Job()
    job.feed(*events)
    assert job.state.past == (record,)
    assert job.state.outcomes == {record.state.value: 1}
    assert v.shown(job.state)[-1] == record


def test_a_restart_under_way_is_shown_before_those_that_have_ended() -> None:
    """The newest is first (H10)."""
    job = Job()
    job.feed(*STARTING, v.Proven(8), v.Requested(NEXT), v.NotStoodDown(BOOM), v.Requested(graph(3)))
    assert [(one.number, one.state) for one in v.shown(job.state)] == [
        (3, RestartState.HANDING_OVER),
        (2, RestartState.FAILED),
        (1, RestartState.COMPLETED),
    ]
    assert v.shown(Job().state) == ()


def test_the_last_restarts_are_kept_and_all_are_counted() -> None:
    """The record of a job that is changed every minute does not grow for ever (H10)."""
    job = Job()
    for _ in range(KEPT + 3):
        job.feed(v.Requested(NEW), v.NotStoodDown(BOOM))
    job.feed(*STARTING, v.Proven(8))
    assert [one.number for one in job.state.past] == list(range(5, KEPT + 5))
    assert job.state.outcomes == {"failed": KEPT + 3, "completed": 1}
    assert job.state.restarts == KEPT + 4


def test_a_new_version_has_all_that_was_said_with_its_request() -> None:
    """Whoever brings it up reads it from the record (H3, H8)."""
    for non_restored, changed, published in ((True, False, False), (False, True, True)):
        job = Job()
        request = v.Requested(NEW, allow_non_restored=non_restored, allow_changed=changed)
        job.feed(request, v.StoodDown(7, published=published))
        assert job.state.current == Version(
            graph=NEW,
            base=7,
            base_published=published,
            allow_non_restored=non_restored,
            allow_changed=changed,
        )
        restart = job.state.restart
        assert restart is not None
        assert (restart.old, restart.target, restart.final) == (Version(graph=OLD), NEW, True)


def test_no_last_checkpoint_is_taken_if_none_is_asked_for() -> None:
    """The new version starts from the last completed one (H3)."""
    job = Job()
    assert job.feed(v.Requested(NEW, final=False)) == [Command.STAND_DOWN]
    assert job.state.restart is not None
    assert not job.state.restart.final
    assert job.feed(v.StoodDown(0)) == [Command.BRING_UP]
    assert v.shown(job.state)[0].checkpoint_id is None, "there was none"


def test_a_version_that_is_turned_back_is_asked_to_stand_down_until_it_does() -> None:
    """It must be left for good. One that may stay goes on (H3a, H7)."""
    job = Job()
    assert job.feed(*TURNING_BACK)[-1:] == [Command.STAND_DOWN]
    assert job.feed(v.NotStoodDown(AGAIN)) == [Command.STAND_DOWN]
    assert v.shown(job.state)[0].error == BOOM, "what it failed with stays the reason"
    assert job.feed(v.Requested(NEXT, replace=True)) == [], "it stands down already"
    assert job.feed(v.NotStoodDown(AGAIN)) == [Command.STAND_DOWN], "the version that runs is not proven"
    assert job.feed(v.StoodDown(7)) == [Command.BRING_UP]
    assert job.state.restart is not None
    assert job.state.restart.old == Version(graph=OLD)
    assert job.feed(v.NotStoodDown(AGAIN), v.StoodDown(9), v.Requested(NEXT, replace=True)) == [Command.STAND_DOWN]


def test_a_daemon_that_comes_back_goes_on_with_what_is_not_settled() -> None:
    """A replaced version that was not proven still has to be left (H7, H8)."""
    job = Job()
    job.feed(*STARTING, v.Requested(NEXT, replace=True))
    assert job.feed(v.Recovered(7)) == [Command.STAND_DOWN]
    assert v.shown(job.state)[0].state is RestartState.TURNING_BACK
    assert v.shown(job.state)[0].error == INTERRUPTED
    job = Job()
    job.feed(*STARTING, v.Requested(NEXT, replace=True))
    assert job.feed(v.Recovered(8)) == [], "the version that runs has proven itself, and stays"
    assert (job.last.state, job.last.error) == (RestartState.FAILED, INTERRUPTED)
    job = Job()
    assert job.feed(v.Recovered(3)) == [], "no restart was under way"
    assert job.feed(*STARTING, v.Recovered(7)) == [Command.TAKE_CHECKPOINT_AND_STAND_DOWN, Command.BRING_UP]


def test_a_move_that_waits_for_slots_gives_way_to_a_request_and_to_no_other_move() -> None:
    """It may wait for minutes; when the job stands down it is a matter of seconds (A15b, H9)."""
    job = Job()
    job.feed(v.Requested(OLD, moves=True))
    with pytest.raises(Conflict):
        job.feed(v.Requested(OLD, moves=True))
    assert job.feed(v.Requested(NEXT)) == [], "the version that runs makes way already"
    assert job.last.state is RestartState.REPLACED
    job = Job()
    job.feed(v.Requested(OLD, moves=True), v.StoodDown(3))
    with pytest.raises(Conflict, match="starting"):
        job.feed(v.Requested(NEXT))
    job.feed(v.Idle())
    with pytest.raises(Conflict, match="on-trial"):
        job.feed(v.Requested(OLD, moves=True))


def test_a_conflict_names_the_restart_under_way_and_how_to_get_past_it() -> None:
    """One on trial may be replaced without a word, because it may last for ever (H9)."""
    job = Job()
    job.feed(*STARTING)
    with pytest.raises(Conflict) as refused:
        job.feed(v.Requested(NEXT))
    assert refused.value.message == "hot restart 1 of the job is under way (starting)"
    assert refused.value.hint == "wait for its end, or replace it (`minflinkd hot-restart --replace`)"
    v.refuse_beside_another(job.state, replaces=True)
    job.feed(v.Idle())
    v.refuse_beside_another(job.state, replaces=False)
    v.refuse_beside_another(Job().state, replaces=False)


def test_the_directories_of_all_versions_so_far_are_remembered() -> None:
    """What an earlier version has written there is cleaned up with the job (J13)."""
    job = Job(graph(0, out="/a"))
    job.feed(v.Requested(graph(1, out="/a", more="/b")), v.NotStoodDown(BOOM), v.Requested(graph(2, more="/c")))
    assert job.state.sinks == (("out", "/a"), ("more", "/b"), ("more", "/c"))


def test_phase_times_alone_are_not_worth_a_write() -> None:
    """They are stored with the next change (H8)."""
    job = Job()
    assert v.durable(job.state) == job.state
    job.feed(*STARTING)
    before = job.state
    job.feed(v.Running())
    assert job.state != before
    assert v.durable(job.state) == v.durable(before)
    without = v.durable(job.state).restart
    assert without is not None
    assert without.phases == {}
    job.feed(v.Idle())
    assert v.durable(job.state) != v.durable(before)
