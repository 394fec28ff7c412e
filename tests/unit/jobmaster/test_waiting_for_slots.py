"""A job that waits for slots: how long, for how many, and what it says if they do not come (R5, R20)."""

from __future__ import annotations

import pytest

from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler.machine import next_wakeup
from minflinkd.jobmaster.scheduler.phases import FindingRestorePoint, WaitingForSlots
from minflinkd.rpc.jobs import ExecutionState, FailureRecord, JobStatus
from minflinkd.rpc.messages import SlotOffer, TaskState
from minflinkd.runtime.errors import Consequence, ErrorInfo, Kind
from minflinkd.runtime.ids import AllocationId, TaskId
from tests.unit.jobmaster.wide_job import BOOM, TM1, TM2, WideJob, of_kind


def last_error(job: WideJob) -> ErrorInfo:
    """Return the error of the last failure, which is none of a task."""
    record = job.state.failures[-1].record
    assert record == FailureRecord(timestamp_ms=0, error=record.error)
    return record.error


def running(**widths: int) -> WideJob:
    """Return a job that runs with all its slots on the first TaskManager."""
    job = WideJob(**widths)
    for need in job.needs.values():
        job.offer(TM1, need.slots, need.allocation_id)
    job.deploy()
    job.come_up()
    return job


def restarting(**widths: int) -> WideJob:
    """Return a job whose TaskManager was lost, and whose restart is due."""
    job = running(**widths)
    job.feed(ev.TaskManagerGone(TM1, "killed"))
    job.wait(0.1)
    return job


def test_a_job_wakes_when_fewer_slots_will_do_and_when_it_has_waited_for_too_long() -> None:
    job = WideJob(a=4)
    assert next_wakeup(job.state, job.now) == 30.0
    job.wait(30)
    assert next_wakeup(job.state, job.now) == 300.0
    job.wait(270)
    assert job.state.restart_at == 300.1
    assert next_wakeup(job.state, job.now) == 300.1


def test_the_wait_counts_from_when_slots_were_first_missing() -> None:
    """Slots that come and go do not prolong it."""
    job = WideJob(a=4)
    job.wait(20)
    job.offer(TM1, 1)
    assert job.state.lacking_since == 0.0
    assert of_kind(ev.FindRestorePoint, job.wait(9)) == []
    assert of_kind(ev.FindRestorePoint, job.wait(1))
    job.feed(ev.TaskManagerGone(TM1, "killed"))
    assert job.deploy() == []  # what the restore point was for is gone
    assert job.state.phase == WaitingForSlots(0.0)


def test_a_failure_does_not_let_the_wait_for_slots_begin_anew() -> None:
    job = WideJob(a=4)
    job.wait(30)
    job.offer(TM1, 1)
    job.feed(ev.RestorePointFailed(job.state.round, BOOM))
    assert job.state.phase == WaitingForSlots(0.0, restart_at=30.1)
    assert of_kind(ev.FindRestorePoint, job.wait(0.1))


def test_a_job_that_has_all_its_slots_lacks_nothing() -> None:
    job = WideJob(a=4)
    job.wait(20)
    job.offer(TM1, 4)
    assert job.state.phase == FindingRestorePoint(frozenset({TaskId("a")}), None)
    assert next_wakeup(job.state, job.now) is None


def test_a_restart_does_not_wait_for_all_its_slots_if_it_has_those_that_it_ran_with() -> None:
    """But it lacks some, and says since when."""
    job = WideJob(a=4, ran_with=2, recovered=True)
    job.now = 3.0
    job.offer(TM1, 2, "of-the-old-one")
    assert job.state.phase == FindingRestorePoint(frozenset({TaskId("a")}), 0.0)
    need = job.needs["a"]
    assert (need.slots, need.least, need.beside, need.held) == (4, 3, TM1, 2)


def test_a_group_that_runs_asks_for_more_than_it_has_also_where_nothing_is_left_beside_it() -> None:
    """Slots that do not make it wider are of no use to it (R20)."""
    job = WideJob(a=4, b=4)
    job.wait(30)
    for group in "ab":
        job.offer(TM1, 2, job.needs[group].allocation_id)
    job.deploy()
    job.come_up()
    assert job.widths() == {"a": 2, "b": 2}
    (need,) = job.needs.values()
    assert (need.group, need.slots, need.least, need.beside, need.held) == ("b", 4, 3, None, 0)


def test_a_lean_job_does_with_its_least_parallelism_in_every_group() -> None:
    job = WideJob(a=4, b=3)
    job.wait(30)
    job.offer(TM1, 1, job.needs["a"].allocation_id)
    assert isinstance(job.state.phase, WaitingForSlots)
    assert of_kind(ev.FindRestorePoint, job.offer(TM2, 1, job.needs["b"].allocation_id))
    assert {d.task_id: d.parallelism for d in job.deploy()} == {"a": 1, "b": 1}


# --- needs that are never served -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ran", "consequence"), [(False, Consequence.REFUSED), (True, Consequence.RETRYABLE)])
def test_a_refusal_fails_a_job_that_has_never_run_and_restarts_one_that_has(
    ran: bool, consequence: Consequence
) -> None:
    """The latter has state to lose (R5)."""
    job = restarting(a=2) if ran else WideJob(a=2)
    job.wait(30)
    need = job.needs["a"].allocation_id
    job.feed(ev.NeedsAnswered({need: "a TaskManager has 0", AllocationId("old"): "something else"}))
    error = last_error(job)
    assert (error.code, error.kind, error.consequence) == ("no-slots", Kind.JOB, consequence)
    assert "taskmanager.numberOfTaskSlots" in error.hint
    assert error.message.startswith(
        "wanted 2 slots for group 'a' (at least 1); the job holds none; "
        "no TaskManager offered the rest: a TaskManager has 0"
    )
    assert job.state.outcome is (None if ran else JobStatus.FAILED)


def test_a_refusal_of_needs_that_the_job_no_longer_has_means_nothing() -> None:
    job = WideJob(a=2)
    job.wait(30)
    before = job.state
    assert job.feed(ev.NeedsAnswered({AllocationId("old"): "no"})) == []
    assert job.state == before


def test_a_refusal_means_nothing_to_a_job_that_runs() -> None:
    """It runs with fewer slots than it wants, and goes on asking."""
    job = WideJob(a=4)
    job.wait(30)
    job.offer(TM1, 1)
    job.deploy()
    job.come_up()
    job.feed(ev.NeedsAnswered({job.needs["a"].allocation_id: "no"}, {}, 4))
    assert (job.state.status, job.state.failures, job.state.largest) == (JobStatus.RUNNING, (), 4)


def test_a_refusal_ends_the_wait_for_all_slots_also_while_a_restore_point_is_looked_for() -> None:
    job = restarting(a=4)
    job.offer(TM1, 4)
    job.feed(ev.TaskManagerGone(TM1, "killed"))
    number = job.state.round
    assert isinstance(job.state.phase, FindingRestorePoint)
    assert job.feed(ev.NeedsAnswered({job.needs["a"].allocation_id: "no"})) == []
    assert job.state.lacking_since == job.now - 30
    assert (job.needs["a"].least, job.state.round, job.state.failures[1:]) == (1, number, ())


def test_all_reasons_for_a_refusal_are_told_once() -> None:
    job = WideJob(b=2, a=2, c=1)
    job.wait(30)
    first, second, third = (job.needs[g].allocation_id for g in "abc")
    job.feed(ev.NeedsAnswered({first: "y", second: "x", third: "y"}))
    message = last_error(job).message
    assert (
        "wanted 2 slots for group 'a' (at least 1), 2 slots for group 'b' (at least 1), 1 slots for group 'c';"
        in message
    )
    assert "rest: x; y" in message


@pytest.mark.parametrize(("why", "told"), [({}, "nobody said why"), ({"a": "x", "b": "w", "c": "x"}, "w; x")])
def test_needs_that_are_served_too_late_are_a_failure_that_says_what_is_held_and_why(
    why: dict[str, str], told: str
) -> None:
    """`slot.request.timeout` (R5)."""
    job = WideJob(a=4, b=4, c=4)
    reasons = {job.needs[g].allocation_id: text for g, text in why.items()} | {AllocationId("old"): "something else"}
    job.feed(ev.NeedsAnswered({}, reasons))
    job.wait(30)
    offers = (
        SlotOffer(allocation_id=job.needs["a"].allocation_id, slots=(0,)),
        SlotOffer(allocation_id=AllocationId("more"), slots=(1,)),
    )
    job.feed(ev.SlotsOffered(TM1, "taskmanager/tm-1", offers))
    old = set(job.state.pool.needs)
    job.wait(269.9)
    assert job.state.failures == ()
    job.wait(0.1)
    error = last_error(job)
    assert (error.code, error.kind, error.consequence) == ("no-slots", Kind.JOB, Consequence.RETRYABLE)
    assert "minflinkd taskmanagers" in error.hint
    assert "the job holds 2 of tm-1;" in error.message
    assert error.message.endswith(f"within 300 s (slot.request.timeout): {told}")
    assert old.isdisjoint(job.state.pool.needs)
    assert job.state.lacking_since == job.now, "the time begins anew"


def test_an_error_says_what_is_held_on_each_taskmanager() -> None:
    job = WideJob(a=4, b=4, c=4, d=4)
    for group, resource, slots in (("a", TM1, 2), ("b", TM2, 1)):
        job.wait(30)
        job.offer(resource, slots, job.needs[group].allocation_id)
    job.wait(300)
    assert "the job holds 2 of tm-1, 1 of tm-2;" in last_error(job).message


def test_the_time_for_slots_begins_anew_with_every_restart() -> None:
    job = WideJob(a=4)
    job.wait(300)
    assert len(job.state.failures) == 1
    job.wait(299)
    assert len(job.state.failures) == 1
    job.wait(2)
    assert len(job.state.failures) == 2


def test_slots_that_come_in_time_are_no_failure_while_their_restore_point_is_looked_for() -> None:
    """Finding it may take longer than `slot.request.timeout`."""
    job = WideJob(a=4)
    job.wait(30)
    job.offer(TM1, 1)
    job.wait(1000)
    assert (job.state.failures, type(job.state.phase)) == ((), FindingRestorePoint)


# --- tasks that still run --------------------------------------------------------------------------------------------


def test_what_runs_is_stopped_for_its_slots_only_if_that_is_enough_for_all() -> None:
    """R11: The last slot of the group that runs would help nobody."""
    job = WideJob(a=1, b=1)
    first, second = (job.needs[g].allocation_id for g in "ab")
    job.offer(TM1, 1, first)
    job.offer(TM2, 1, second)
    job.deploy()
    job.come_up()
    job.feed(ev.TaskManagerGone(TM2, "killed"))
    assert of_kind(ev.Cancel, job.wait(100)) == []
    assert job.state.executions[TaskId("a")].state is ExecutionState.RUNNING


def test_a_group_that_restarts_is_placed_beside_what_runs() -> None:
    """R16: The slots of the running group are not its own."""
    job = WideJob(a=2, b=2)
    first, second = (job.needs[g].allocation_id for g in "ab")
    job.offer(TM1, 2, first)
    job.offer(TM1, 2, second)
    job.deploy()
    job.come_up()
    before = job.state.placement
    job.report("b", TaskState.FAILED, BOOM)
    job.wait(0.1)
    (deploy,) = job.deploy()
    assert (deploy.task_id, deploy.allocation_id) == ("b", second)
    assert job.state.placement == before
