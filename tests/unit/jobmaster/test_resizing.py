"""Tasks that get more or fewer slots while they run (R20)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as copy

from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler.phases import Rescaling
from minflinkd.jobmaster.scheduler.placement import Bounds, Share, resized
from minflinkd.jobmaster.scheduler.resizing import can_become
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.messages import TaskState
from minflinkd.runtime.errors import Consequence, ErrorInfo
from minflinkd.runtime.ids import AllocationId, ResourceId, TaskId
from tests.unit.jobmaster.wide_job import BOOM, TM1, TM2, WideJob, grown, of_kind, task

REFUSED = ErrorInfo(code="state-not-repartitioned", message="no", consequence=Consequence.REFUSED)


def running_on(slots: int, wanted: int = 4, *, max_parallelism: int | None = None) -> WideJob:
    """Return a job that runs with fewer slots than wanted, after it waited for more."""
    job = WideJob(a=wanted, max_parallelism=max_parallelism)
    job.wait(30)
    job.offer(TM1, slots)
    job.deploy()
    job.come_up()
    return job


def told(job: WideJob, parallelism: int, name: str = "a") -> ev.Resize:
    return ev.Resize(job.attempt(name), parallelism, "taskmanager/tm-1")


def wants(job: WideJob, **widths: int) -> None:
    """Let groups of a running job want other widths from now on, as after the change to another version."""
    groups = {**job.state.pool.groups, **{g: Bounds(n, n) for g, n in widths.items()}}
    tasks = {
        task_id: copy(task, parallelism=widths.get(task.slot_sharing_group, task.parallelism))
        for task_id, task in job.state.tasks.items()
    }
    job.state = replace(job.state, tasks=tasks, pool=replace(job.state.pool, groups=groups))


def test_a_job_grows_on_its_own_taskmanager_at_once_and_without_a_stop() -> None:
    """Nothing is cancelled, no checkpoint is taken, and no pause is kept: its tasks lose nothing by it."""
    job = running_on(1)
    assert job.offer(TM1, 3) == [told(job, 4)]
    assert job.state.status is JobStatus.RUNNING
    assert job.feed(ev.TaskResized(job.attempt("a"), 4)) == []
    assert (job.widths(), job.needs, job.wait(1000)) == ({"a": 4}, {}, [])
    assert (job.state.restarts, job.state.rollouts[-1].rescale) == (0, True)
    assert job.state.rollouts[-1].cause == "rescale: a 1 -> 4, without a stop"


def test_a_task_is_told_once_and_again_only_if_its_slots_change_meanwhile() -> None:
    """What it was told may arrive late: the last word is given when it has confirmed the one before."""
    job = running_on(1)
    assert job.offer(TM1, 1) == [told(job, 2)]
    assert job.offer(TM1, 2) == []
    assert job.wait(5) == []
    assert job.feed(ev.TaskResized(job.attempt("a"), 2)) == [told(job, 4)]
    assert job.feed(ev.TaskResized(job.attempt("a"), 4)) == []


def test_a_task_that_cannot_be_resized_restarts_from_a_checkpoint() -> None:
    """Its plan was made for the slots that it had. It restarts after the pause that such a restart keeps."""
    job = running_on(1)
    job.wait(5)
    job.offer(TM1, 3)
    old = job.attempt("a")
    assert job.feed(ev.TaskNotResized(old)) == []
    assert job.wait(14) == []
    assert job.wait(1) == [ev.TakeRescaleCheckpoint(job.state.round)]
    assert isinstance(job.state.phase, Rescaling)
    assert [d.parallelism for d in grown(job)] == [4]
    job.come_up()
    assert job.wait(1000) == []


def test_a_refusal_of_an_attempt_that_has_ended_means_nothing() -> None:
    job = running_on(1)
    job.offer(TM1, 3)
    old = job.attempt("a")
    job.report("a", TaskState.FAILED, BOOM)
    job.wait(1)
    assert [d.parallelism for d in job.deploy()] == [4]
    job.come_up()
    assert job.feed(ev.TaskNotResized(old)) + job.feed(ev.TaskResized(old, 4)) + job.wait(100) == []
    assert job.widths() == {"a": 4}


def test_a_job_that_must_move_to_grow_takes_a_checkpoint() -> None:
    job = running_on(1)
    job.wait(100)
    assert job.offer(TM2, 4) == [ev.TakeRescaleCheckpoint(job.state.round)]


def test_a_job_shrinks_at_once_and_gives_the_slots_back_after_a_while() -> None:
    """As after a takeover by a version that wants less."""
    job = running_on(4)
    wants(job, a=2)
    assert job.wait(0.1) == [told(job, 2)]
    job.feed(ev.TaskResized(job.attempt("a"), 2))
    assert job.wait(49) == []
    (free,) = job.wait(2)
    assert isinstance(free, ev.FreeAllocations)
    assert [len(slots) for slots in free.surplus.values()] == [2]
    assert (job.state.status, job.state.failures) == (JobStatus.RUNNING, ())


@pytest.mark.parametrize(("max_parallelism", "in_place"), [(8, True), (None, False)])
def test_a_job_grows_in_place_only_up_to_the_partitions_of_its_state(
    max_parallelism: int | None, in_place: bool
) -> None:
    """Beyond them the state must be rewritten, for which the tasks stop."""
    job = running_on(2, 2, max_parallelism=max_parallelism)
    job.wait(100)
    wants(job, a=4)
    job.wait(1)
    commands = job.offer(TM1, 2)
    assert commands == ([told(job, 4)] if in_place else [ev.TakeRescaleCheckpoint(job.state.round)])


def test_a_job_that_grew_and_loses_the_slots_restarts_and_waits_for_as_many() -> None:
    """It waits for as many slots as it ran with (R11)."""
    job = running_on(1)
    first = job.state.executions[TaskId("a")].allocation_id
    job.offer(TM1, 3)
    job.feed(ev.TaskResized(job.attempt("a"), 4))
    more = tuple(a for a in job.state.pool.held if a != first)
    old = job.attempt("a")
    commands = job.feed(ev.SlotsGone(more, "not known"))
    assert of_kind(ev.Cancel, commands) == [ev.Cancel(old, "taskmanager/tm-1")]
    need = job.needs["a"]
    assert (need.slots, need.least, need.held) == (4, 0, 1)  # no fewer than it ran with


def test_growth_in_place_waits_like_other_growth_after_one_that_failed() -> None:
    """The wider job did not come up. The same may happen to the next one."""
    job = running_on(1)
    job.wait(100)
    job.offer(TM2, 4)
    grown(job)
    job.report("a", TaskState.FAILED, REFUSED)
    job.feed(ev.TaskManagerGone(TM2, "killed"))
    job.deploy(7)
    job.come_up()
    assert (job.widths(), job.state.failed_growths) == ({"a": 1}, 1)
    assert job.offer(TM1, 3) == []
    assert job.wait(39) == []
    assert job.wait(1) == [told(job, 4)]
    assert not job.state.narrowed


def test_nothing_is_resized_into_slots_that_another_version_waits_for() -> None:
    job = running_on(2, 2, max_parallelism=4)
    job.feed(ev.SlotsReserved({"a": 4}))
    assert job.offer(TM1, 2) == []
    assert job.wait(100) == []


def test_a_version_on_trial_may_grow_in_place() -> None:
    """No checkpoint ends its trial by that (H7)."""
    job = running_on(1)
    job.state = replace(job.state, on_trial=True)
    assert job.offer(TM1, 3) == [told(job, 4)]


def test_tasks_of_one_group_get_what_they_want_of_its_slots() -> None:
    """The widest task decides how wide the group is. Narrower ones stay as they are."""
    job = WideJob(a=4, b=2, group="g")
    job.wait(30)
    job.offer(TM1, 2)
    job.deploy()
    job.come_up()
    assert job.widths() == {"a": 2, "b": 2}
    assert job.offer(TM1, 2) == [told(job, 4)]


def test_a_narrower_version_with_a_task_that_must_stop_says_what_has_changed() -> None:
    """Its slots are given back at once, so the placement does not tell any more what it had."""
    job = running_on(4)
    wants(job, a=2)
    assert job.wait(0.1) == [told(job, 2)]
    job.feed(ev.TaskNotResized(job.attempt("a")))
    job.wait(20)
    job.feed(ev.RescaleCheckpointDone(job.state.round))
    assert job.state.rollouts[-1].cause == "rescale: a 4 -> 2"


def test_the_task_that_must_stop_says_what_has_changed_though_the_others_have_their_slots() -> None:
    job = WideJob(a=4, b=4, group="g")
    job.wait(30)
    job.offer(TM1, 1)
    job.deploy()
    job.come_up()
    job.offer(TM1, 3)
    job.feed(ev.TaskResized(job.attempt("a"), 4))
    job.feed(ev.TaskNotResized(job.attempt("b")))
    job.wait(20)
    job.feed(ev.RescaleCheckpointDone(job.state.round))
    assert job.state.rollouts[-1].cause == "rescale: g 1 -> 4"


def test_a_job_that_has_grown_in_place_has_proven_its_width() -> None:
    """A failure that ends the job later is not taken for one of its growth."""
    job = running_on(1)
    job.offer(TM1, 3)
    assert job.state.proven == {"a": 1}
    job.feed(ev.TaskResized(job.attempt("a"), 4))
    assert job.state.proven == {"a": 4}


@pytest.mark.parametrize(
    ("slots", "wanted", "may"),
    [(2, 1, True), (2, 4, False), (1, 2, True)],
    ids=["fewer", "more than are held", "as many as it lacks anyway"],
)
def test_tasks_are_left_to_a_version_if_the_slots_are_where_they_run(slots: int, wanted: int, may: bool) -> None:
    job = running_on(slots, 2, max_parallelism=4)
    if wanted > 2:
        job.feed(ev.SlotsReserved({"a": wanted}))
        job.offer(TM2, 4)
    assert can_become(job.state, (task("a", wanted, "a"),)) is may


@pytest.mark.parametrize("event", ["ended", "asked", "drains", "rigid", "other"])
def test_tasks_are_not_left_to_a_version_while_they_end_or_change_themselves(event: str) -> None:
    """It would wait for them, or contradict what they are told."""
    job = running_on(2, 2, max_parallelism=4)
    other = task("b", 1, "a") if event == "other" else task("a", 1, "a")
    match event:
        case "ended":
            job.report("a", TaskState.INPUT_ENDED)
        case "asked":
            wants(job, a=4)
            job.wait(1)
            job.offer(TM1, 2)
        case "drains":
            job.feed(ev.DrainBegun())
        case "rigid":
            job.feed(ev.TaskNotResized(job.attempt("a")))
    assert not can_become(job.state, (other,))


A, B, C = AllocationId("a"), AllocationId("b"), AllocationId("c")
HERE, THERE = ResourceId("here"), ResourceId("there")


def test_each_group_keeps_the_allocation_that_its_tasks_were_deployed_to() -> None:
    """Otherwise it would be given back as unused, and the tasks end with it."""
    present = {"x": Share(HERE, 1, (B,)), "y": Share(HERE, 1, (A,))}
    holdings = {HERE: {A: 2, B: 2, C: 2}}
    assert resized(present, {"x": 4, "y": 2}, holdings) == {
        "x": Share(HERE, 4, (B, A, C)),
        "y": Share(HERE, 2, (A, C)),
    }
    assert resized(present, {"x": 5, "y": 2}, holdings) is None
    assert resized(present, {"x": 1, "y": 1}, {THERE: {A: 2}}) is None


def test_a_group_that_shrinks_keeps_its_first_allocation() -> None:
    present = {"x": Share(HERE, 4, (B, A))}
    assert resized(present, {"x": 1}, {HERE: {A: 2, B: 2}}) == {"x": Share(HERE, 1, (B,))}
    assert resized(present, {"x": 3}, {HERE: {A: 2, B: 2}}) == {"x": Share(HERE, 3, (B, A))}
