"""JobMaster -> TaskManager heartbeats: who is due, who is lost, and what an answer says about attempts (R10)."""

from __future__ import annotations

import pytest

from minflinkd.jobmaster.heartbeats import Beat, TaskManagerBeats, contradictions, strays
from minflinkd.jobmaster.options import JobMasterOptions
from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler.state import JobState, new_job
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.messages import JobHeartbeatAnswer, TaskState, TaskStatus
from minflinkd.runtime.ids import AllocationId, AttemptId, TaskId
from tests.unit.jobmaster.test_scheduler import TM1, TM2, Job

STATE: JobState = new_job((), JobMasterOptions())


def beating(*, at: float = 0.0) -> TaskManagerBeats:
    """Return the heartbeats to two TaskManagers: one a second, lost after 5 s of silence."""
    beats = TaskManagerBeats(interval=1.0, timeout=5.0)
    beats.watch((TM2, TM1), at)
    return beats


def due(beats: TaskManagerBeats, now: float) -> list[str]:
    return [beat.resource_id for beat in beats.take_due(STATE, now)]


# --- who is due ------------------------------------------------------------------------------------------------------


def test_every_taskmanager_gets_a_beat_per_interval_whether_or_not_it_answers() -> None:
    beats = beating(at=10.0)
    assert beats.next_due() == 11.0
    assert due(beats, 10.9) == []
    assert beats.take_due(STATE, 11.0) == (Beat(TM1, 1, STATE), Beat(TM2, 2, STATE))
    assert due(beats, 11.5) == []
    assert beats.take_due(STATE, 12.5) == (Beat(TM1, 3, STATE), Beat(TM2, 4, STATE))
    assert beats.next_due() == 13.5


def test_nothing_is_due_while_no_taskmanager_is_watched() -> None:
    beats = TaskManagerBeats(interval=1.0, timeout=5.0)
    assert beats.next_due() is None
    assert beats.take_silent(1000.0) == ()


def test_a_taskmanager_that_is_watched_already_keeps_its_time() -> None:
    """The set of TaskManagers is given with every event, which must not put off the next beat."""
    beats = beating()
    beats.watch((TM1, TM2), 0.5)
    assert due(beats, 1.0) == [TM1, TM2]


def test_a_taskmanager_that_is_no_longer_watched_gets_no_beat_and_cannot_be_lost() -> None:
    beats = beating()
    beats.watch((TM2,), 0.5)
    assert due(beats, 1.0) == [TM2]
    beats.heard(TM1, 1.0)  # a late answer
    assert beats.unreachable(TM1, "nobody there") is None
    assert beats.unreachable(TM1, "nobody there") is None
    assert not beats.is_latest(Beat(TM1, 1, STATE))
    beats.heard(TM2, 4.5)
    assert beats.next_due() == 2.0
    assert beats.take_silent(5.0) == ()


# --- who is lost -----------------------------------------------------------------------------------------------------


def test_a_taskmanager_that_is_silent_for_the_timeout_is_lost() -> None:
    beats = beating()
    for now in (1.0, 2.0, 3.0, 4.0, 5.0):
        due(beats, now)
    beats.heard(TM2, 3.0)
    assert beats.take_silent(4.9) == ()
    assert beats.take_silent(5.25) == (ev.TaskManagerGone(TM1, "no heartbeat for 5.2 s"),)
    assert beats.take_silent(6.0) == ()


def test_silence_wakes_the_jobmaster_if_it_comes_before_the_next_beat() -> None:
    beats = TaskManagerBeats(interval=10.0, timeout=4.0)
    beats.watch((TM1,), 0.0)
    assert beats.next_due() == 4.0


@pytest.mark.parametrize(("woken", "at_once"), [(5.75, True), (6.0, True), (6.25, False), (30.0, False)])
def test_a_jobmaster_that_was_held_up_for_more_than_an_interval_blames_nobody(woken: float, at_once: bool) -> None:
    """It could not hear anybody. Everybody gets that time in addition."""
    beats = beating()
    for now in (1.0, 2.0, 3.0, 4.0):
        due(beats, now)
    for resource in (TM1, TM2):
        beats.heard(resource, 0.5)
    assert beats.next_due() == 5.0
    assert len(beats.take_silent(woken)) == (2 if at_once else 0)
    due(beats, woken)
    assert len(beats.take_silent(woken + 0.5)) == (0 if at_once else 2)


def test_two_failed_connections_in_a_row_are_a_loss() -> None:
    """One may be the end of a connection that was idle for long."""
    beats = beating()
    assert beats.unreachable(TM1, "refused") is None
    assert beats.unreachable(TM2, "refused") is None
    beats.heard(TM2, 1.0)
    assert beats.unreachable(TM1, "connection refused") == ev.TaskManagerGone(TM1, "connection refused")
    assert beats.unreachable(TM2, "refused") is None


def test_a_taskmanager_that_comes_back_starts_anew() -> None:
    beats = beating()
    beats.unreachable(TM1, "refused")
    assert beats.is_latest(Beat(TM1, 7, STATE))
    beats.watch((), 1.0)
    beats.watch((TM1,), 4.0)
    assert beats.unreachable(TM1, "refused") is None
    assert beats.is_latest(Beat(TM1, 1, STATE))
    assert beats.next_due() == 5.0
    due(beats, 8.5)
    assert beats.take_silent(8.9) == ()
    assert len(beats.take_silent(9.0)) == 1


def test_an_answer_that_a_later_one_has_overtaken_says_nothing() -> None:
    """It tells of an older state of the TaskManager."""
    beats = beating()
    assert beats.is_latest(Beat(TM1, 3, STATE))
    assert beats.is_latest(Beat(TM2, 1, STATE))
    assert not beats.is_latest(Beat(TM1, 2, STATE))
    assert beats.is_latest(Beat(TM1, 3, STATE))  # the same answer again
    assert beats.is_latest(Beat(TM1, 4, STATE))


# --- what an answer contradicts --------------------------------------------------------------------------------------


def answer(job: Job, beat: Beat) -> list[ev.Event]:
    """The answer of a TaskManager that knows the slots and no task."""
    known = JobHeartbeatAnswer(allocations=job.state.pool.on(TM1), tasks=())
    return list(contradictions(beat, known))


def told(job: Job, state: TaskState, attempt: str | None = None) -> TaskStatus:
    return TaskStatus(attempt_id=AttemptId(attempt or job.attempt()), task_id=TaskId("a"), state=state)


def test_an_attempt_whose_deployment_was_answered_and_that_nobody_knows_is_gone() -> None:
    """DEPLOYING ends, even if the TaskManager's message about the end is lost (A5)."""
    job = Job()
    job.offer()
    job.found()
    early = Beat(TM1, 1, job.state)
    job.feed(ev.DeployAccepted(job.attempt()))
    assert answer(job, early) == []  # the heartbeat may have overtaken the deployment
    (gone,) = answer(job, Beat(TM1, 2, job.state))
    assert gone == ev.AttemptGone(job.attempt())
    job.feed(gone)
    assert job.state.status is JobStatus.RESTARTING


@pytest.mark.parametrize("state", [TaskState.INITIALIZING, TaskState.RUNNING])
def test_an_attempt_that_has_told_of_itself_and_that_nobody_knows_is_gone(state: TaskState) -> None:
    job = Job()
    job.offer()
    job.found()
    job.report(state)
    assert answer(job, Beat(TM1, 1, job.state)) == [ev.AttemptGone(job.attempt())]


def test_an_attempt_that_is_told_of_is_as_the_taskmanager_says() -> None:
    job = Job()
    job.run()
    here = told(job, TaskState.INPUT_ENDED)
    known = JobHeartbeatAnswer(allocations=job.state.pool.on(TM1), tasks=(here,))
    assert list(contradictions(Beat(TM1, 1, job.state), known)) == [ev.TaskChanged(here)]


def test_an_attempt_on_another_taskmanager_or_one_that_is_cancelled_is_not_expected() -> None:
    """The answer to the cancellation says when the attempt is gone."""
    job = Job()
    job.run()
    assert list(contradictions(Beat(TM2, 1, job.state), JobHeartbeatAnswer(allocations=(), tasks=()))) == []
    job.feed(ev.CancelRequested())
    assert answer(job, Beat(TM1, 1, job.state)) == []


def test_an_allocation_that_the_taskmanager_does_not_know_is_gone() -> None:
    """Only what the job held when the beat was sent: an offer may have come since."""
    job = Job()
    nothing = JobHeartbeatAnswer(allocations=(), tasks=())
    before = Beat(TM1, 1, job.state)
    (held,) = job.state.pool.needs
    job.offer()
    assert list(contradictions(before, nothing)) == []
    (gone,) = contradictions(Beat(TM1, 2, job.state), nothing)
    assert isinstance(gone, ev.SlotsGone)
    assert gone.allocations == (held,)
    assert "tm-1 does not know" in gone.reason
    more = JobHeartbeatAnswer(allocations=(held, AllocationId("another")), tasks=())
    assert list(contradictions(Beat(TM1, 3, job.state), more)) == []


@pytest.mark.parametrize("state", list(TaskState))
def test_an_attempt_that_the_jobmaster_gave_up_is_a_stray_unless_it_is_ending(state: TaskState) -> None:
    job = Job()
    job.run()
    known = JobHeartbeatAnswer(allocations=(), tasks=(told(job, state, "given-up"), told(job, TaskState.RUNNING)))
    ending = state in (TaskState.CANCELING, TaskState.CANCELED, TaskState.FAILED)
    assert strays(Beat(TM1, 1, job.state), known, job.state) == (() if ending else (AttemptId("given-up"),))


def test_an_attempt_is_no_stray_if_it_was_live_when_the_beat_was_sent_or_is_now() -> None:
    """It may have been deployed, or its cancellation may have been sent, while the beat was under way."""
    job = Job()
    job.offer()
    before = job.state
    job.found()
    after = job.state
    known = JobHeartbeatAnswer(allocations=(), tasks=(told(job, TaskState.RUNNING),))
    assert strays(Beat(TM1, 1, before), known, after) == ()
    assert strays(Beat(TM1, 1, after), known, before) == ()
    assert strays(Beat(TM1, 1, before), known, before) == (job.attempt(),)
