"""A new JobMaster and the tasks that run on from before it: which it adopts, and what becomes of the others (A14a)."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as copy

from minflinkd.jobgraph.model import Input, Task, Vertex
from minflinkd.jobmaster.heartbeats import Beat, strays
from minflinkd.jobmaster.options import JobMasterOptions
from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler.machine import next_wakeup, step
from minflinkd.jobmaster.scheduler.phases import Predecessors
from minflinkd.jobmaster.scheduler.state import check_invariants, new_job
from minflinkd.rpc.jobs import ExecutionState, JobStatus
from minflinkd.rpc.messages import (
    CancelTask,
    ExchangeSource,
    JobHeartbeatAnswer,
    OfferedTask,
    OfferSlots,
    SlotOffer,
    TaskMetrics,
    TaskState,
    TaskStatus,
)
from minflinkd.rpc.party import Ask
from minflinkd.rpc.snapshot import RowCounts
from minflinkd.runtime.errors import Consequence, ErrorInfo
from minflinkd.runtime.ids import AllocationId, AttemptId, Chance, IdSource, LeaderId, ResourceId, TaskId, VertexId
from tests.unit.jobmaster.fed_core import NO_ANSWER, JobMaster
from tests.unit.jobmaster.wide_job import TM1, TM2, of_kind, task

BEFORE = Predecessors(
    "v2",
    latest=7,
    attempts=frozenset(AttemptId(f"old-{name}") for name in "abc"),
    completed=frozenset({5, 7}),
)
OVER = (TaskState.CANCELED, TaskState.FAILED)
TIMEOUT = 5.0  # seconds in which TaskManagers are waited for: heartbeat.timeout


def reader(name: str, of: str, parallelism: int = 1) -> Task:
    """Return a task that reads the exchange of another one."""
    vertex = Vertex(id=VertexId(name), inputs=(Input(id=VertexId(of), exchange=True),))
    return Task(id=TaskId(name), vertices=(vertex,), parallelism=parallelism, slot_sharing_group=name)


def running(name: str, parallelism: int = 1, reads: str = "", **more: Any) -> OfferedTask:
    """Return a task that may be adopted, unless `more` says otherwise."""
    source = ExchangeSource(vertex_id=VertexId(reads), attempt_id=AttemptId(f"old-{reads}"), resource_id=TM1)
    facts = {
        "status": TaskStatus(
            attempt_id=AttemptId(f"old-{name}"),
            task_id=TaskId(name),
            state=TaskState.RUNNING,
            metrics=TaskMetrics(batches=3),
        ),
        "allocation_id": AllocationId(f"of-{name}"),
        "attempt_number": 2,
        "parallelism": parallelism,
        "version": "v2",
        "restored": 3,
        "inputs": (source,) if reads else (),
    }
    return OfferedTask(**{**facts, **more})


class Heir:
    """A JobMaster that looks for the tasks of an earlier one from 100 s on."""

    def __init__(self, *tasks: Task, before: Predecessors = BEFORE) -> None:
        rng = random.Random(7)
        self.chance, self.now = Chance(IdSource(rng), rng), 100.0
        self.state = new_job(tasks, JobMasterOptions(heartbeat_timeout=TIMEOUT))
        self.began = self.feed(ev.Started(recovered=True, predecessors=before))

    def feed(self, event: ev.Event) -> list[ev.Command]:
        self.state, commands = step(self.chance, self.state, event, self.now)
        check_invariants(self.state)
        return list(commands)

    def offer(self, *tasks: OfferedTask, resource: ResourceId = TM1) -> list[ev.Command]:
        """Offer the slots on which these tasks run, in allocations of their own."""
        first, offers = 0, []
        for one in tasks:
            slots = tuple(range(first, first := first + one.parallelism))
            offers.append(SlotOffer(allocation_id=one.allocation_id, slots=slots))
        return self.feed(ev.SlotsOffered(resource, f"taskmanager/{resource}", tuple(offers), tasks=tasks))

    def time_is_over(self) -> list[ev.Command]:
        due = next_wakeup(self.state, self.now)
        assert due == 100.0 + TIMEOUT
        self.now = due
        return self.feed(ev.Tick())

    def needs(self) -> set[str]:
        return {need.group for need in self.state.pool.declaration()}

    def states(self) -> dict[str, ExecutionState]:
        return {str(t): e.state for t, e in self.state.executions.items()}


def dismissed(commands: list[ev.Command]) -> set[str]:
    return {str(c.attempt_id) for c in commands if isinstance(c, ev.Cancel)}


def test_a_job_whose_tasks_are_all_there_runs_at_once_with_the_attempts_it_had() -> None:
    """Nothing is deployed, cancelled or asked for. Only checkpoints begin again (A14a)."""
    heir = Heir(task("a", 2, "a"), reader("b", of="a"))
    assert heir.state.status is JobStatus.RECONCILING
    assert heir.state.pool.needs == {}
    commands = heir.offer(running("a", 2), running("b", reads="a"))
    assert heir.state.status is JobStatus.RUNNING
    attempts = {TaskId("a"): AttemptId("old-a"), TaskId("b"): AttemptId("old-b")}
    assert commands == [ev.AdoptTasks(frozenset(attempts.values()), frozenset()), ev.StartCheckpoints(attempts)]
    assert heir.state.restarts == 0
    assert {e.number for e in heir.state.executions.values()} == {2}


def test_tasks_of_several_taskmanagers_are_waited_for() -> None:
    heir = Heir(task("a", 1, "a"), reader("b", of="a"))
    assert heir.offer(running("a")) == []
    heir.now = 103.0
    assert of_kind(ev.AdoptTasks, heir.offer(running("b", reads="a"), resource=TM2)) != []
    assert heir.state.status is JobStatus.RUNNING
    assert heir.state.placement["b"].resource_id == TM2


def test_a_task_that_was_found_is_no_stray_while_the_others_are_looked_for() -> None:
    """Its TaskManager names it in the answer to a heartbeat. It is not told to end before it is adopted (A14a)."""
    heir = Heir(task("a", 1, "a"), task("b", 1, "b"))
    heir.offer(running("a"))
    assert heir.state.status is JobStatus.RECONCILING
    there = JobHeartbeatAnswer(allocations=(), tasks=(running("a").status, running("nobody's").status))
    assert strays(Beat(TM1, 1, heir.state), there, heir.state) == (AttemptId("old-nobody's"),)


def test_rows_and_metrics_go_on_where_they_were() -> None:
    """What users see must not begin anew with a new JobMaster."""
    heir = Heir(task("a", 1, "a"))
    rows = RowCounts(read={"a": 100})
    offered = running("a", base=rows)
    heir.offer(copy(offered, status=copy(offered.status, metrics=TaskMetrics(batches=9, rows=rows))))
    execution = heir.state.executions[TaskId("a")]
    assert execution.metrics.batches == 9
    assert execution.rows == rows + rows


def test_a_checkpoint_that_tasks_have_begun_is_over_unless_it_is_in_the_store() -> None:
    """Nobody will complete it: the coordinator that waited for it is gone."""
    heir = Heir(task("a", 1, "a"), reader("b", of="a"))
    commands = heir.offer(running("a", pending=(7, 8)), running("b", reads="a", pending=(9,)))
    (adopted,) = of_kind(ev.AdoptTasks, commands)
    assert isinstance(adopted, ev.AdoptTasks)
    assert adopted.unsettled == {8, 9}


def test_a_task_whose_input_has_ended_is_adopted_and_the_final_checkpoint_is_taken() -> None:
    heir = Heir(task("a", 1, "a"))
    offered = running("a")
    commands = heir.offer(copy(offered, status=copy(offered.status, state=TaskState.INPUT_ENDED)))
    assert of_kind(ev.TakeFinalCheckpoint, commands) == [ev.TakeFinalCheckpoint(0)]


@pytest.mark.parametrize(
    "fault",
    [
        {"version": "v1"},
        {"stops_at": 7},
        {"draining": True},
        {"status": TaskStatus(attempt_id=AttemptId("old-a"), task_id=TaskId("a"), state=TaskState.INITIALIZING)},
        {"inputs": (ExchangeSource(vertex_id=VertexId("x"), attempt_id=AttemptId("gone"), resource_id=TM1),)},
    ],
    ids=["of another version", "after a last cut", "draining", "not up yet", "with a writer that is gone"],
)
def test_a_task_that_cannot_be_trusted_ends_before_its_successor_is_deployed(fault: dict[str, Any]) -> None:
    """It restarts from the checkpoint, as without adoption. Two attempts never run beside each other."""
    heir = Heir(task("a", 1, "a"))
    commands = heir.offer(running("a", **fault))
    assert dismissed(commands) == {"old-a"}
    assert of_kind(ev.AdoptTasks, commands) == []
    assert of_kind(ev.FindRestorePoint, commands) == []
    commands = heir.feed(ev.AttemptGone(AttemptId("old-a")))
    assert of_kind(ev.FindRestorePoint, commands) == [ev.FindRestorePoint(1, frozenset({TaskId("a")}))]


def test_a_task_that_is_wider_than_the_version_wants_is_adopted_and_narrowed() -> None:
    """As the version that wants less has taken over, its tasks run on with fewer slots (R20)."""
    heir = Heir(task("a", 1, "a"))
    commands = heir.offer(running("a", parallelism=2))
    assert of_kind(ev.AdoptTasks, commands) != []
    assert of_kind(ev.Resize, commands) == [ev.Resize(AttemptId("old-a"), 1, f"taskmanager/{TM1}")]


def test_a_task_is_adopted_though_the_version_takes_none_of_the_slots_that_it_wants_no_more() -> None:
    """It ran on two allocations. Only the one that it was deployed to is held (R13, R20)."""
    heir = Heir(task("a", 1, "a"))
    wide = running("a", parallelism=3)
    offers = (
        SlotOffer(allocation_id=wide.allocation_id, slots=(0, 1)),
        SlotOffer(allocation_id=AllocationId("added"), slots=(2,)),
    )
    commands = heir.feed(ev.SlotsOffered(TM1, f"taskmanager/{TM1}", offers, tasks=(wide,)))
    assert heir.state.status is JobStatus.RUNNING
    assert of_kind(ev.Resize, commands) == [ev.Resize(AttemptId("old-a"), 1, f"taskmanager/{TM1}")]
    assert set(heir.state.pool.held) == {wide.allocation_id}


def test_a_task_that_grew_is_adopted_with_all_its_slots() -> None:
    """They are in allocations that alone would be refused: the version cannot do with fewer than all (R13, R20)."""
    heir = Heir(task("a", 4, "a"))
    wide = running("a", parallelism=4)
    offers = tuple(
        SlotOffer(allocation_id=AllocationId(name), slots=slots)
        for name, slots in (("of-a", (0,)), ("before", (1,)), ("added", (2, 3)))
    )
    commands = heir.feed(ev.SlotsOffered(TM1, f"taskmanager/{TM1}", offers, tasks=(wide,)))
    assert of_kind(ev.AdoptTasks, commands) != []
    assert heir.state.placement["a"].parallelism == 4
    assert heir.state.placement["a"].allocations[0] == "of-a"
    assert heir.needs() == set()


@pytest.mark.parametrize(
    ("restored", "attempt", "adopted"), [(7, "new-a", True), (3, "old-a", True), (3, "new-a", False)]
)
def test_an_attempt_is_current_if_the_latest_checkpoint_has_its_state_or_is_what_it_began_from(
    restored: int, attempt: str, adopted: bool
) -> None:
    """Any other attempt was replaced by one that has published a checkpoint since: it would publish rows again."""
    heir = Heir(task("a", 1, "a"))
    offered = running("a", restored=restored)
    commands = heir.offer(copy(offered, status=copy(offered.status, attempt_id=AttemptId(attempt))))
    assert bool(of_kind(ev.AdoptTasks, commands)) is adopted


def test_without_any_checkpoint_only_tasks_that_began_without_one_are_adopted() -> None:
    heir = Heir(task("a", 1, "a"), before=Predecessors("v2"))
    assert of_kind(ev.AdoptTasks, heir.offer(running("a", restored=0))) != []


def test_a_region_that_is_not_whole_restarts_when_the_time_is_over_and_the_others_run_on() -> None:
    """A region of tasks fails alone (R16). The part of it that runs ends before it comes up again."""
    heir = Heir(task("a", 1, "a"), reader("b", of="a"), task("c", 1, "c"))
    heir.offer(running("a"), running("c"))
    assert heir.state.status is JobStatus.RECONCILING
    commands = heir.time_is_over()
    assert dismissed(commands) == {"old-a"}
    assert heir.states() == {"a": "CREATED", "b": "CREATED", "c": "RUNNING"}
    (adopted,) = of_kind(ev.AdoptTasks, commands)
    assert isinstance(adopted, ev.AdoptTasks)
    assert adopted.attempts == {"old-c"}
    assert heir.state.status is JobStatus.RESTARTING
    heir.feed(ev.AttemptGone(AttemptId("old-a")))
    assert heir.needs() == {"b"}


def test_a_task_is_adopted_without_its_reader_if_it_has_kept_what_that_will_read_again() -> None:
    """The reader restarts from the checkpoint, and reads from the attempt that runs on (R16)."""
    heir = Heir(task("a", 1, "a"), reader("b", of="a"))
    offered = running("a")
    heir.offer(copy(offered, status=copy(offered.status, metrics=TaskMetrics(replayable=True))))
    commands = heir.time_is_over()
    assert dismissed(commands) == set()
    assert heir.states() == {"a": "RUNNING", "b": "CREATED"}
    assert heir.needs() == {"b"}


def test_without_any_task_the_job_begins_from_its_checkpoint_when_the_time_is_over() -> None:
    heir = Heir(task("a", 1, "a"))
    heir.time_is_over()
    assert heir.state.status is JobStatus.CREATED
    assert heir.needs() == {"a"}


@pytest.mark.parametrize("found", [True, False], ids=["found too old", "none found"])
def test_a_job_that_ran_and_of_which_no_task_can_be_adopted_counts_a_restart(found: bool) -> None:
    """Its work since the last checkpoint is done again, as after a failure. The user sees why (A14a)."""
    heir = Heir(task("a", 1, "a"), reader("b", of="a"), before=replace(BEFORE, ran=True, attempts=frozenset()))
    if found:
        heir.offer(running("a"), running("b", reads="a"))
    else:
        heir.time_is_over()
    assert heir.state.status is JobStatus.RESTARTING
    assert heir.state.restarts == 1
    assert heir.state.rollouts[-1].cause == "not adopted from the JobMaster before: a, b"


def test_a_task_that_failed_meanwhile_is_one_restart_also_if_none_is_left() -> None:
    """The failure causes it. That nothing else was found is the same incident."""
    heir = Heir(task("a", 1, "a"), before=replace(BEFORE, ran=True))
    heir.offer(failed("a"))
    assert heir.state.restarts == 1
    assert heir.state.rollouts[-1].cause.startswith("user-code: boom")


def test_of_two_attempts_of_a_task_the_later_one_counts() -> None:
    heir = Heir(task("a", 1, "a"), task("b", 1, "b"))
    later = running("a", attempt_number=3, restored=7, allocation_id=AllocationId("later"))
    later = copy(later, status=copy(later.status, attempt_id=AttemptId("new-a")))
    heir.offer(later)
    assert dismissed(heir.offer(running("a"), resource=TM2)) == {"old-a"}
    heir.offer(running("b"), resource=ResourceId("tm-3"))
    assert heir.state.executions[TaskId("a")].attempt_id == "new-a"


@pytest.mark.parametrize("replaced_first", [True, False])
def test_of_attempts_that_two_jobmasters_deployed_the_later_jobmasters_counts(replaced_first: bool) -> None:
    """Each JobMaster counts attempts from 0. The second could not reach TM1 and replaced `a`, then died, too (A14a)."""
    heir = Heir(task("a", 1, "a"), task("b", 1, "b"))
    replaced = running("a", attempt_number=5, deployed_by=LeaderId("1"))
    current = running("a", attempt_number=0, deployed_by=LeaderId("2"), allocation_id=AllocationId("later"))
    current = copy(current, restored=7, status=copy(current.status, attempt_id=AttemptId("new-a")))
    offers = [(replaced, TM1), (current, TM2)]
    told = [heir.offer(one, resource=where) for one, where in (offers if replaced_first else offers[::-1])]
    assert [dismissed(commands) for commands in told] == [set(), {"old-a"}]
    heir.offer(running("b"), resource=ResourceId("tm-3"))
    assert heir.state.executions[TaskId("a")].attempt_id == "new-a"


BOOM = ErrorInfo(code="user-code", message="boom", consequence=Consequence.RETRYABLE)


def failed(name: str, error: ErrorInfo = BOOM, **more: Any) -> OfferedTask:
    one = running(name, **more)
    return copy(one, status=copy(one.status, state=TaskState.FAILED, error=error))


def test_a_task_that_failed_while_nobody_led_the_job_has_failed_like_any_other() -> None:
    """Nothing is waited for. The failure is shown, and the restart strategy says when it restarts (A14a)."""
    heir = Heir(task("a", 1, "a"), task("b", 1, "b"))
    commands = heir.offer(failed("a"), running("b"))
    assert heir.states() == {"a": "CANCELED", "b": "RUNNING"}
    assert dismissed(commands) == {"old-a"}
    assert of_kind(ev.AdoptTasks, commands) != []
    (failure,) = heir.state.failures
    assert (failure.record.error, failure.record.task_id, failure.record.resource_id) == (BOOM, "a", TM1)
    assert (heir.state.status, heir.state.restarts, heir.state.streak.failures) == (JobStatus.RESTARTING, 1, 1)
    heir.feed(ev.AttemptGone(AttemptId("old-a")))
    assert heir.state.restart_at is not None
    heir.now = heir.state.restart_at
    assert of_kind(ev.FindRestorePoint, heir.feed(ev.Tick())) == [ev.FindRestorePoint(1, frozenset({TaskId("a")}))]


def test_a_task_that_fails_before_the_others_are_found_is_not_adopted() -> None:
    """It has failed like any other (A14a)."""
    heir = Heir(task("a", 1, "a"), task("b", 1, "b"))
    heir.offer(running("a"))
    heir.feed(ev.TaskChanged(failed("a").status))
    heir.offer(running("b"), resource=TM2)
    assert heir.states() == {"a": "CANCELED", "b": "RUNNING"}
    assert [f.record.error for f in heir.state.failures] == [BOOM]


@pytest.mark.parametrize("late", ["offer", "status"])
def test_old_news_of_a_task_that_comes_late_does_not_hide_that_it_has_failed(late: str) -> None:
    """Its TaskManager forgets a failure that was answered. Nobody would say again why the task failed (A14a)."""
    heir = Heir(task("a", 1, "a"), task("b", 1, "b"))
    heir.offer(running("a"))
    heir.feed(ev.TaskChanged(failed("a").status))
    if late == "offer":
        assert heir.offer(running("a")) == []
    else:
        heir.feed(ev.TaskChanged(running("a").status))
    heir.offer(running("b"), resource=TM2)
    assert heir.states() == {"a": "CANCELED", "b": "RUNNING"}
    assert [f.record.error for f in heir.state.failures] == [BOOM]


def test_a_job_that_no_restart_mends_ends_when_the_next_jobmaster_hears_of_the_failure() -> None:
    """Also what was adopted (A14a)."""
    heir = Heir(task("a", 1, "a"), task("b", 1, "b"))
    commands = heir.offer(failed("a", copy(BOOM, consequence=Consequence.FATAL)), running("b"))
    assert dismissed(commands) == {"old-a", "old-b"}
    assert heir.state.status is JobStatus.FAILING
    for name in "ab":
        commands = heir.feed(ev.AttemptGone(AttemptId(f"old-{name}")))
    heir.now = 200.0
    assert of_kind(ev.SettleSinks, commands + heir.feed(ev.Tick())) != []


def test_the_failure_of_an_attempt_that_was_replaced_concerns_nobody() -> None:
    """A later attempt has completed a checkpoint since (A14a)."""
    heir = Heir(task("a", 1, "a"))
    commands = heir.offer(failed("a", status=copy(running("x").status, task_id=TaskId("a")), restored=3))
    assert (dismissed(commands), heir.state.failures) == ({"old-x"}, ())


def test_a_task_whose_taskmanager_is_lost_again_is_not_adopted() -> None:
    heir = Heir(task("a", 1, "a"), task("b", 1, "b"))
    heir.offer(running("a"))
    heir.feed(ev.TaskManagerGone(TM1, "no heartbeat"))
    heir.offer(running("b"), resource=TM2)
    heir.time_is_over()
    assert heir.states() == {"a": "CREATED", "b": "RUNNING"}
    assert heir.state.leaving == {}


def is_now(state: TaskState) -> ev.TaskChanged:
    return ev.TaskChanged(copy(running("a").status, state=state))


@pytest.mark.parametrize("gone", [ev.AttemptGone(AttemptId("old-a")), *map(is_now, OVER)], ids=["gone", *OVER])
@pytest.mark.parametrize(("event", "status"), [(ev.CancelRequested(), "CANCELLING"), (ev.StandDown(), "RESTARTING")])
def test_a_job_that_ends_or_stands_down_meanwhile_waits_for_the_tasks_it_found(
    event: ev.Event, status: str, gone: ev.Event
) -> None:
    """Whether the answer to the cancellation says that they have ended, or the TaskManager (A14c)."""
    heir = Heir(task("a", 1, "a"), task("b", 1, "b"))
    heir.offer(running("a"))
    assert dismissed(heir.feed(event)) == {"old-a"}
    assert heir.state.status.value == status
    heir.now = 200.0
    assert of_kind(ev.SettleSinks, heir.feed(ev.Tick())) == []
    assert of_kind(ev.StoodDown, heir.feed(is_now(TaskState.CANCELING))) == []
    commands = heir.feed(gone)
    assert of_kind(ev.SettleSinks, commands) + of_kind(ev.StoodDown, commands) != []


def test_a_job_that_stands_down_while_it_looks_for_tasks_waits_for_taskmanagers_that_come_late() -> None:
    """Otherwise the next version would be deployed beside tasks that still run (A14c, H8)."""
    heir = Heir(task("a", 1, "a"), task("b", 1, "b"))
    assert of_kind(ev.StoodDown, heir.feed(ev.StandDown())) == []
    assert dismissed(heir.offer(running("a"))) == {"old-a"}
    assert of_kind(ev.StoodDown, heir.feed(ev.AttemptGone(AttemptId("old-a")))) == []
    assert of_kind(ev.StoodDown, heir.time_is_over()) == [ev.StoodDown()]


def test_a_task_that_comes_too_late_is_told_to_end() -> None:
    """The job goes on without it. Its slots are taken only if they are needed."""
    heir = Heir(task("a", 1, "a"))
    heir.time_is_over()
    commands = heir.offer(running("a"))
    assert dismissed(commands) == {"old-a"}
    assert dismissed(heir.offer(running("a"))) == set()


# --- over the network ------------------------------------------------------------------------------------------------


def heir_of_a_stray() -> tuple[JobMaster, Ask]:
    """Return a JobMaster that has told a task of another version to end, and the request, which has no answer yet."""
    master = JobMaster(task("a", 1, "a"), cancellation_timeout=1.0)
    master.feed(ev.Started(recovered=True, predecessors=Predecessors("v2", latest=7)))
    stray = running("a", version="v1")
    offer = SlotOffer(allocation_id=stray.allocation_id, slots=(0,))
    master.receive(OfferSlots(resource_id=TM1, address=f"taskmanager/{TM1}", offers=(offer,), tasks=(stray,)))
    (ask,) = master.asked(CancelTask)
    return master, ask


def ending() -> TaskStatus:
    return TaskStatus(attempt_id=AttemptId("old-a"), task_id=TaskId("a"), state=TaskState.CANCELING)


def test_a_task_that_does_not_end_in_time_is_waited_for_once_more_while_its_taskmanager_shows_it() -> None:
    """The cancellation may have reached it only now. A slot with two attempts would be refused (A14a)."""
    master, ask = heir_of_a_stray()
    master.now = 3.9
    master.answer(master.beat(3.9), master.knows(ending()))
    master.answer(ask, NO_ANSWER)
    (again,) = master.asked(CancelTask)
    assert master.core.state.leaving == {"old-a": TM1}
    master.now = 9.0
    master.answer(again, NO_ANSWER)
    assert master.core.state.leaving == {}


def test_a_task_of_which_its_taskmanager_says_nothing_is_given_up_in_time() -> None:
    master, ask = heir_of_a_stray()
    master.now = 3.9
    master.answer(ask, NO_ANSWER)
    assert master.asked(CancelTask) == []
    assert master.core.state.leaving == {}
