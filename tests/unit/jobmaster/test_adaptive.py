"""A job that starts with fewer slots than it wants and grows later (R20), and slots that it does not use (R4)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler.machine import next_wakeup
from minflinkd.jobmaster.scheduler.phases import ComingUp, FindingRestorePoint, Rescaling, Running, WaitingForSlots
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.messages import SlotOffer, TaskState
from minflinkd.runtime.errors import Consequence, ErrorInfo
from minflinkd.runtime.ids import AllocationId, TaskId
from tests.unit.jobmaster.wide_job import BOOM, TM1, TM2, WideJob, grown, of_kind


def running_on(slots: int, wanted: int = 4) -> WideJob:
    """Return a job that runs with fewer slots than wanted, after it waited for more. Its tasks must stop to grow."""
    job = WideJob(a=wanted, rigid=True)
    job.wait(30)
    job.offer(TM1, slots)
    job.deploy()
    job.come_up()
    assert job.widths() == {"a": slots}
    return job


def test_a_job_waits_for_all_its_slots_before_fewer_will_do() -> None:
    job = WideJob(a=4)
    assert (job.needs["a"].slots, job.needs["a"].least) == (4, 0)
    asked = job.needs["a"].allocation_id
    assert job.wait(29) == []
    assert job.wait(1) == []
    assert (job.needs["a"].slots, job.needs["a"].least, job.needs["a"].allocation_id) == (4, 1, asked)


def test_a_job_starts_with_the_slots_that_there_are_and_asks_for_the_rest_beside_them() -> None:
    job = WideJob(a=4)
    job.wait(30)
    assert of_kind(ev.FindRestorePoint, job.offer(TM1, 1))
    (deploy,) = job.deploy()
    assert deploy.parallelism == 1
    job.come_up()
    need = job.needs["a"]
    assert (need.slots, need.least, need.beside, need.held) == (4, 2, TM1, 1)
    assert job.state.lacking_since is None  # it runs: nothing is overdue, however long the rest takes
    assert job.wait(1000) == []


def test_a_refusal_lets_a_job_do_with_fewer_at_once() -> None:
    """`numberOfTaskSlots` is less than the job's parallelism, so waiting would bring no more slots."""
    job = WideJob(a=4)
    need = job.needs["a"].allocation_id
    refusal = ev.NeedsAnswered({need: "4 slots of one TaskManager are needed; a TaskManager has 2"})
    assert job.feed(refusal) == []
    assert job.needs["a"].least == 1
    job.feed(refusal)
    assert job.state.outcome is JobStatus.FAILED


def test_a_job_grows_through_a_checkpoint_when_all_its_slots_are_there() -> None:
    """The job takes a checkpoint, stops, and continues from it with the other parallelism (R20)."""
    job = running_on(1)
    job.wait(100)
    commands = job.offer(TM1, 3)
    assert commands == [ev.TakeRescaleCheckpoint(job.state.round)]
    assert job.state.status is JobStatus.RUNNING
    old = job.attempt("a")
    stop, cancel = job.feed(ev.RescaleCheckpointDone(job.state.round))
    assert (stop, cancel) == (ev.StopCheckpoints(), ev.Cancel(old, "taskmanager/tm-1"))
    assert job.state.status is JobStatus.RESTARTING
    (find,) = job.feed(ev.AttemptGone(old))
    assert isinstance(find, ev.FindRestorePoint)
    (deploy,) = job.deploy(checkpoint=5)
    assert deploy.parallelism == 4
    job.come_up()
    assert (job.needs, job.state.history.attempts, job.state.restarts, job.state.failures) == ({}, 0, 0, ())
    assert job.state.rollouts[-1].rescale
    assert job.state.rollouts[-1].cause == "rescale: a 1 -> 4"


@pytest.mark.parametrize(("event", "status"), [(ev.CancelRequested(), "CANCELLING"), (ev.StandDown(), "RESTARTING")])
@pytest.mark.parametrize("grows", [True, False])
def test_a_job_ends_or_stands_down_whether_it_grows_or_comes_up(event: ev.Event, status: str, grows: bool) -> None:
    """Its tasks end, and the checkpoint that it would have grown from leads to nothing (H3, R20)."""
    job = running_on(1)
    if grows:
        job.wait(100)
        job.offer(TM1, 3)
        assert isinstance(job.state.phase, Rescaling)
    else:
        job.report("a", TaskState.FAILED, BOOM)
        job.wait(1)
        job.deploy()
        assert isinstance(job.state.phase, ComingUp)
    old = job.attempt("a")
    assert of_kind(ev.Cancel, job.feed(event)) == [ev.Cancel(old, "taskmanager/tm-1")]
    assert job.feed(ev.RescaleCheckpointDone(job.state.round)) == []
    assert job.state.status.value == status


@pytest.mark.parametrize("phase", [WaitingForSlots, FindingRestorePoint])
def test_a_job_without_any_task_stands_down_at_once_and_can_still_be_cancelled(phase: type) -> None:
    """Until the next version is there, a cancel ends the job (H3, H3a)."""
    job = WideJob(a=1)
    if phase is FindingRestorePoint:
        job.offer(TM1, 1)
    assert type(job.state.phase) is phase
    assert of_kind(ev.StoodDown, job.feed(ev.StandDown())) == [ev.StoodDown()]
    assert of_kind(ev.SettleSinks, job.feed(ev.CancelRequested())) != []
    assert job.state.status is JobStatus.CANCELLING


def test_a_job_that_could_grow_but_not_to_its_full_width_waits_for_more() -> None:
    """`executing.resource-stabilization-timeout` counts anew with every slot that arrives."""
    job = running_on(1)
    job.wait(100)
    assert of_kind(ev.TakeRescaleCheckpoint, job.offer(TM1, 1)) == []
    assert job.needs["a"].held == 2
    assert job.wait(9) == []
    assert of_kind(ev.TakeRescaleCheckpoint, job.offer(TM1, 1)) == []
    assert job.wait(9) == []
    assert job.wait(1) == [ev.TakeRescaleCheckpoint(job.state.round)]


def test_growth_comes_a_while_after_the_last_deployment() -> None:
    """`executing.cooldown-after-rescaling` sets this time."""
    job = running_on(1)
    assert of_kind(ev.TakeRescaleCheckpoint, job.offer(TM1, 3)) == []
    assert job.wait(19) == []
    assert job.wait(1) == [ev.TakeRescaleCheckpoint(job.state.round)]


def test_a_job_grows_on_another_taskmanager_and_gives_the_old_slots_back() -> None:
    """R4, R20."""
    job = running_on(1)
    job.wait(100)
    job.offer(TM2, 4)
    old = job.attempt("a")
    job.feed(ev.RescaleCheckpointDone(job.state.round))
    job.feed(ev.AttemptGone(old))
    (deploy,) = job.deploy()
    assert (deploy.address, deploy.parallelism) == ("taskmanager/tm-2", 4)
    job.come_up()
    assert job.wait(49) == []
    (free,) = job.wait(1)
    assert isinstance(free, ev.FreeAllocations)
    assert (free.address, free.job_ended) == ("taskmanager/tm-1", False)


def test_a_checkpoint_that_fails_leaves_the_job_as_it_is_and_is_tried_again() -> None:
    job = running_on(1)
    job.wait(100)
    job.offer(TM1, 3)
    assert job.feed(ev.RescaleCheckpointFailed(job.state.round)) == []
    assert job.state.status is JobStatus.RUNNING
    assert job.wait(20) == [ev.TakeRescaleCheckpoint(job.state.round)]


REFUSED = ErrorInfo(code="state-not-repartitioned", message="no", consequence=Consequence.REFUSED)


def test_growth_that_fails_for_good_costs_the_job_a_restart_and_no_more() -> None:
    """The job continues as before, where it ran well, and waits longer before it grows again (R20)."""
    job = running_on(1)
    job.wait(100)
    job.offer(TM2, 4)
    assert [d.parallelism for d in grown(job)] == [4]
    (find,) = of_kind(ev.FindRestorePoint, job.report("a", TaskState.FAILED, REFUSED))
    assert isinstance(find, ev.FindRestorePoint)
    assert (job.state.status, job.state.outcome) == (JobStatus.RESTARTING, None)
    (deploy,) = job.deploy(7)
    assert (deploy.parallelism, deploy.address) == (1, "taskmanager/tm-1")
    job.come_up()
    assert job.wait(39) == []
    assert job.wait(1) == [ev.TakeRescaleCheckpoint(job.state.round)]
    assert [d.parallelism for d in grown(job)] == [4]
    job.come_up()
    assert job.state.failed_growths == 0


def test_a_job_that_could_not_grow_restarts_as_narrow_after_any_other_failure() -> None:
    """The job does not use all slots that it has, because that width has failed (R20)."""
    job = running_on(1)
    job.wait(100)
    job.offer(TM1, 3)
    grown(job)
    job.report("a", TaskState.FAILED, REFUSED)
    job.deploy(7)
    job.come_up()
    job.report("a", TaskState.FAILED, BOOM)
    job.wait(1)
    assert [d.parallelism for d in job.deploy(7)] == [1]


def test_a_job_that_could_not_grow_is_as_narrow_where_else_it_restarts() -> None:
    """It takes no more of a wide allocation than it last ran with (R20)."""
    job = running_on(1)
    job.wait(100)
    job.offer(TM2, 4)
    grown(job)
    job.report("a", TaskState.FAILED, REFUSED)
    job.feed(ev.TaskManagerGone(TM1, "killed"))
    job.wait(1)
    assert [(d.address, d.parallelism) for d in job.deploy(7)] == [("taskmanager/tm-2", 1)]
    job.come_up()
    job.state = replace(job.state, failed_growths=2)
    assert job.wait(79) == []  # the other slots are not surplus, however long it waits before it grows
    assert job.wait(1) == [ev.TakeRescaleCheckpoint(job.state.round)]


def test_growth_is_undone_once_whatever_fails_then() -> None:
    job = running_on(1)
    job.wait(100)
    job.offer(TM1, 3)
    grown(job)
    job.report("a", TaskState.FAILED, REFUSED)
    job.feed(ev.RestorePointFailed(job.state.round, REFUSED))
    assert job.state.outcome is JobStatus.FAILED


def test_a_job_that_has_never_run_has_not_grown() -> None:
    job = WideJob(a=4)
    job.offer(TM1, 4)
    job.deploy()
    job.report("a", TaskState.FAILED, REFUSED)
    assert job.state.outcome is JobStatus.FAILED


def test_growth_of_several_groups_is_one_restart_that_names_them_all() -> None:
    """A failure while the tasks end is handled by the same restart."""
    job = WideJob(a=4, b=3, rigid=True)
    job.wait(30)
    for group, resource in (("a", TM1), ("b", TM2)):
        job.offer(resource, 1, job.needs[group].allocation_id)
    job.deploy()
    job.come_up()
    job.wait(100)
    for group, resource, slots in (("a", TM1, 3), ("b", TM2, 2)):
        job.offer(resource, slots, job.needs[group].allocation_id)
    job.feed(ev.RescaleCheckpointDone(job.state.round))
    assert job.state.rollouts[-1].cause == "rescale: a 1 -> 4, b 1 -> 3"
    assert (job.state.restart_at, job.state.narrowed) == (job.now, False)
    job.feed(ev.CheckpointsFailed(BOOM))
    assert job.state.restart_at == job.now


def test_a_job_that_fails_for_good_as_narrow_as_before_ends() -> None:
    job = running_on(1)
    job.wait(100)
    job.offer(TM1, 3)
    grown(job)
    job.report("a", TaskState.FAILED, REFUSED)
    job.deploy(7)
    job.report("a", TaskState.FAILED, REFUSED)
    assert job.state.outcome is JobStatus.FAILED


@pytest.mark.parametrize("done", [True, False])
def test_a_failure_while_the_checkpoint_is_taken_is_an_ordinary_restart(done: bool) -> None:
    """The late outcome of the checkpoint changes nothing. The restart uses all slots that there are."""
    job = running_on(1)
    job.wait(100)
    job.offer(TM1, 3)
    number = job.state.round
    job.report("a", TaskState.FAILED, BOOM)
    assert job.feed(ev.RescaleCheckpointDone(number) if done else ev.RescaleCheckpointFailed(number)) == []
    assert len(job.state.failures) == 1
    job.wait(1)
    (deploy,) = job.deploy()
    assert deploy.parallelism == 4


def test_slots_lost_while_the_checkpoint_is_taken_end_the_growth() -> None:
    """The tasks stand still after the checkpoint, so they continue from it, as wide as before (R20)."""
    job = running_on(1)
    job.wait(100)
    job.offer(TM2, 4)
    job.feed(ev.TaskManagerGone(TM2, "killed"))
    (deploy,) = grown(job)
    assert (deploy.parallelism, deploy.address) == (1, "taskmanager/tm-1")
    job.come_up()
    assert (job.state.status, job.state.failures, job.state.history.attempts) == (JobStatus.RUNNING, (), 0)
    assert job.wait(100) == []


def test_a_job_whose_input_has_ended_does_not_grow_any_more() -> None:
    """Only its final checkpoint follows (C4)."""
    job = running_on(1)
    job.report("a", TaskState.INPUT_ENDED)
    assert of_kind(ev.TakeRescaleCheckpoint, job.offer(TM1, 3) + job.wait(40)) == []


def test_a_restart_waits_for_as_many_slots_as_the_job_ran_with_and_no_more() -> None:
    """A job that ran narrow does not wait for slots that it never had (R11)."""
    job = running_on(2)
    job.report("a", TaskState.FAILED, BOOM)
    assert of_kind(ev.FindRestorePoint, job.wait(1))
    job.deploy()
    job.come_up()
    job.feed(ev.TaskManagerGone(TM1, "killed"))
    assert job.needs["a"].least == 2
    job.wait(1)
    assert of_kind(ev.FindRestorePoint, job.offer(TM2, 2))


def test_a_new_jobmaster_goes_on_as_wide_as_the_checkpoint_says() -> None:
    """The new JobMaster uses the slots that the TaskManager has kept, and does not wait for more (R13)."""
    job = WideJob(a=4, ran_with=2, recovered=True)
    assert job.needs["a"].least == 2
    assert of_kind(ev.FindRestorePoint, job.offer(TM1, 2, "of-the-old-jobmaster"))
    (deploy,) = job.deploy(checkpoint=3)
    assert (deploy.parallelism, deploy.allocation_id) == (2, "of-the-old-jobmaster")


def test_groups_divide_what_is_left_while_the_resource_manager_is_away() -> None:
    """The group without its slots continues with fewer; the running group is stopped for it once (R11)."""
    job = WideJob(a=4, b=4)
    first, second = (job.needs[g].allocation_id for g in "ab")
    job.offer(TM1, 4, first)
    job.offer(TM2, 4, second)
    job.deploy()
    job.come_up()
    job.feed(ev.TaskManagerGone(TM2, "killed"))
    survivor = job.attempt("a")
    assert job.wait(29) == []
    (stop, cancel) = job.wait(1.5)
    assert cancel == ev.Cancel(survivor, "taskmanager/tm-1")
    assert isinstance(stop, ev.StopCheckpoints)
    job.feed(ev.AttemptGone(survivor))
    assert [d.parallelism for d in job.deploy()] == [2, 2]
    job.come_up()
    assert set(job.needs) == {"b"}


def test_a_lost_allocation_of_several_stops_the_group_that_needs_it() -> None:
    """A group's task is deployed on the first of its allocations, but is as wide as all together (R10)."""
    job = running_on(1)
    job.wait(100)
    grown = job.needs["a"].allocation_id
    job.offer(TM1, 3)
    old = job.attempt("a")
    job.feed(ev.RescaleCheckpointDone(job.state.round))
    job.feed(ev.AttemptGone(old))
    job.deploy()
    job.come_up()
    share = job.state.placement["a"]
    lost = next(a for a in share.allocations if a != share.allocations[0])
    commands = job.feed(ev.SlotsGone((lost,), "TaskManager tm-1 does not know the allocation"))
    assert grown in share.allocations
    assert of_kind(ev.Cancel, commands) == [ev.Cancel(job.attempt("a"), "taskmanager/tm-1")]


def test_slots_of_an_allocation_that_is_wider_than_the_job_are_given_back_when_it_has_run_a_while() -> None:
    """A narrower version takes over the allocation of the version before it, and keeps what it needs (H4)."""
    job = WideJob(a=1)
    job.offer(TM1, 4, "of-the-version-before")
    job.deploy()
    job.come_up()
    assert job.wait(49) == []
    (free,) = job.wait(1)
    assert free == ev.FreeAllocations(
        "taskmanager/tm-1", (), job_ended=False, surplus={AllocationId("of-the-version-before"): (1, 2, 3)}
    )
    assert job.state.pool.held[AllocationId("of-the-version-before")].slots == (0,)
    assert (job.needs, job.state.status, job.wait(1000)) == ({}, JobStatus.RUNNING, [])


def test_a_group_stops_if_the_allocation_is_lost_whose_slots_it_uses_beside_its_own() -> None:
    """Surplus slots are given back from the widest allocation, and groups of one TaskManager share the rest (R4)."""
    job = WideJob(a=2, b=2)
    needs = job.needs
    offers = (
        SlotOffer(allocation_id=needs["a"].allocation_id, slots=(0, 1, 2, 3, 4)),
        SlotOffer(allocation_id=needs["b"].allocation_id, slots=(5, 6, 7, 8)),
    )
    job.feed(ev.SlotsOffered(TM1, "taskmanager/tm-1", offers))
    job.deploy()
    job.come_up()
    job.wait(50)
    assert [len(held.slots) for held in job.state.pool.held.values()] == [1, 3]
    commands = job.feed(ev.SlotsGone((needs["b"].allocation_id,), "TaskManager tm-1 does not know the allocation"))
    assert of_kind(ev.Cancel, commands) == [ev.Cancel(job.attempt("a"), "taskmanager/tm-1")]
    assert job.state.status is JobStatus.RESTARTING


def test_slots_that_a_job_is_about_to_grow_into_are_no_surplus() -> None:
    """R20."""
    job = running_on(1)
    job.wait(100)
    job.offer(TM1, 3, "a-wide-one")
    assert of_kind(ev.FreeAllocations, job.wait(1000)) == []
    grown(job)
    job.come_up()
    assert of_kind(ev.FreeAllocations, job.wait(1000)) == []


def test_slots_that_nothing_runs_on_are_not_kept_for_ever() -> None:
    """A job gives back slots beyond what it wants, whoever gave them (R4)."""
    job = WideJob(a=2)
    job.wait(30)
    job.offer(TM1, 1)
    job.offer(TM2, 2, "a-late-one")
    job.deploy()
    job.come_up()
    assert job.widths() == {"a": 2}
    (free,) = job.wait(50)
    assert isinstance(free, ev.FreeAllocations)
    assert free.address == "taskmanager/tm-1"
    assert AllocationId("a-late-one") in job.state.pool.held


@pytest.mark.parametrize(("failed", "cooldown"), [(0, 20), (1, 40), (6, 1280), (9, 1280)])
def test_the_pause_before_growth_doubles_with_every_growth_that_failed_up_to_a_limit(
    failed: int, cooldown: float
) -> None:
    """R20."""
    job = running_on(1)
    job.state = replace(job.state, failed_growths=failed)
    assert job.offer(TM1, 3) == []
    assert next_wakeup(job.state, job.now) == job.now + cooldown
    assert job.wait(cooldown - 0.1) == []
    assert job.wait(0.1) == [ev.TakeRescaleCheckpoint(job.state.round)]
    assert next_wakeup(job.state, job.now) is None  # the checkpoint is awaited


def test_growth_to_fewer_slots_than_wanted_waits_for_the_longer_of_both_pauses() -> None:
    """The time without further slots, and the time since the last deployment."""
    job = running_on(1)
    job.wait(15)
    job.offer(TM1, 1)
    assert next_wakeup(job.state, job.now) == job.now + 10
    job = running_on(1)
    job.wait(2)
    job.offer(TM1, 1)
    assert next_wakeup(job.state, job.now) == job.now + 18


def test_growth_that_is_no_longer_possible_is_not_waited_for() -> None:
    job = running_on(1)
    job.offer(TM1, 1)
    allocation = job.state.executions[TaskId("a")].allocation_id
    more = next(a for a in job.state.pool.held if a != allocation)
    job.feed(ev.SlotsGone((more,), "not known"))
    assert job.state.running is not None
    assert job.state.running.growth is None
    assert next_wakeup(job.state, job.now) is None
    assert job.wait(100) == []


def test_slots_that_come_again_after_growth_became_impossible_start_its_pause_anew() -> None:
    job = running_on(1)
    job.wait(100)
    job.offer(TM1, 1)
    job.wait(9)
    allocation = job.state.executions[TaskId("a")].allocation_id
    job.feed(ev.SlotsGone(tuple(a for a in job.state.pool.held if a != allocation), "not known"))
    job.slots[TM1] = 5
    job.offer(TM1, 1)
    assert job.wait(9) == []
    assert job.wait(1) == [ev.TakeRescaleCheckpoint(job.state.round)]


def test_a_version_on_trial_does_not_grow() -> None:
    """The checkpoint would end the trial (H7)."""
    job = running_on(1)
    job.state = replace(job.state, on_trial=True)
    assert of_kind(ev.TakeRescaleCheckpoint, job.offer(TM1, 3) + job.wait(100)) == []
    assert of_kind(ev.TakeRescaleCheckpoint, job.feed(ev.Proven()))


@pytest.mark.parametrize("rigid", [True, False])
def test_a_job_does_not_grow_once_one_of_its_inputs_has_ended(rigid: bool) -> None:
    job = WideJob(a=4, b=1, rigid=rigid)
    job.wait(30)
    job.offer(TM1, 1, job.needs["a"].allocation_id)
    job.offer(TM1, 1, job.needs["b"].allocation_id)
    job.deploy()
    job.come_up()
    assert job.report("b", TaskState.INPUT_ENDED) == []  # `a` still reads
    assert job.offer(TM1, 3) + job.wait(100) == []
    assert job.report("a", TaskState.INPUT_ENDED) == [ev.TakeFinalCheckpoint(job.state.round)]
    assert job.wait(100) == []


def test_a_failed_checkpoint_for_growth_puts_the_next_one_off_for_the_whole_pause() -> None:
    job = running_on(1)
    job.wait(100)
    job.offer(TM1, 3)
    job.now += 5
    job.feed(ev.RescaleCheckpointFailed(job.state.round))
    assert next_wakeup(job.state, job.now) == job.now + 20


def test_a_job_may_prove_healthy_while_the_checkpoint_for_its_growth_is_taken() -> None:
    job = running_on(1)
    job.wait(100)
    job.report("a", TaskState.FAILED, BOOM)
    job.wait(0.1)
    job.deploy()
    job.come_up()
    began = job.now
    job.offer(TM1, 3)
    job.wait(20)
    job.feed(ev.CheckpointCompleted())
    assert isinstance(job.state.phase, Rescaling)
    assert next_wakeup(job.state, job.now) == began + 200
    job.wait(180)
    assert job.state.streak.failures == 0


def test_a_drain_or_a_checkpoint_during_growth_is_remembered_if_growth_fails() -> None:
    job = running_on(1)
    job.wait(100)
    job.offer(TM1, 3)
    for event in (ev.CheckpointCompleted(), ev.DrainBegun()):
        assert job.feed(event) == []
        assert isinstance(job.state.phase, Rescaling)
    job.feed(ev.RescaleCheckpointFailed(job.state.round))
    assert isinstance(job.state.phase, Running)
    assert (job.state.phase.checkpointed, job.state.phase.draining) == (True, True)
