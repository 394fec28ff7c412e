"""The state of a job: how it begins, and which states are contradictions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.model import JobGraph, Source, Vertex
from minflinkd.jobmaster.options import JobMasterOptions
from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler.execution import Execution
from minflinkd.jobmaster.scheduler.phases import (
    ComingUp,
    Ended,
    FindingRestorePoint,
    Phase,
    Rescaling,
    Running,
    Settling,
    StandingDown,
    StoodDown,
    Stopping,
    WaitingForSlots,
)
from minflinkd.jobmaster.scheduler.placement import Bounds
from minflinkd.jobmaster.scheduler.state import JobState, check_invariants, new_job, only_progress, widths
from minflinkd.jobmaster.scheduler.step import Step
from minflinkd.rpc.jobs import ExecutionState, JobStatus
from minflinkd.rpc.messages import TaskMetrics
from minflinkd.rpc.snapshot import RowCounts
from minflinkd.runtime.ids import AllocationId, TaskId, VertexId
from minflinkd.runtime.machine import IllegalTransition, InvariantViolated
from tests.unit.jobmaster.wide_job import TM1, WideJob, task

A, B = TaskId("a"), TaskId("b")
RUNNING = Running(since=0.0, checkpointed=True)
E = ExecutionState


def running() -> WideJob:
    job = WideJob(group="all", a=1, b=1)
    job.offer(TM1, 1)
    job.deploy()
    job.come_up()
    return job


# --- the beginning ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "bounds"),
    [
        (JobMasterOptions(), {"x": Bounds(4, 1), "y": Bounds(1, 1)}),
        (JobMasterOptions(min_parallelism=3), {"x": Bounds(4, 3), "y": Bounds(1, 1)}),
        (JobMasterOptions(adaptive=False), {"x": Bounds(4, 4), "y": Bounds(1, 1)}),
    ],
)
def test_a_group_wants_as_many_slots_as_its_widest_task(options: JobMasterOptions, bounds: dict[str, Bounds]) -> None:
    """Its tasks share them (J6). Only an adaptive job does with fewer (R20)."""
    tasks = (task("a", 4, "x"), task("b", 2, "x"), task("c", 1, "y"))
    state = new_job(tasks, options)
    assert state.pool.groups == bounds
    assert state.executions == {t.id: Execution(t.id) for t in tasks}
    assert (set(state.tasks), state.exchanges.downstream[A]) == ({"a", "b", "c"}, frozenset({A}))
    assert not state.on_trial
    assert new_job(tasks, replace(options, on_trial=True)).on_trial


def test_the_width_of_a_version_is_known_before_it_runs() -> None:
    """What a version that is to follow will want (H4)."""
    source = Vertex(id=VertexId("a"), source=Source(format="rate"), parallelism=3)
    assert widths(chain(JobGraph(name="job", vertices=(source,)))) == {"default": 3}


# --- what tasks have done --------------------------------------------------------------------------------------------

EMPTY, DONE = TaskMetrics(batches=1), TaskMetrics(batches=1, rows_in=1)


@pytest.mark.parametrize(
    ("a", "b", "facts"),
    [
        ((TaskMetrics(), False), (TaskMetrics(), False), ""),
        ((EMPTY, False), (TaskMetrics(), False), ""),
        ((EMPTY, False), (EMPTY, False), "processed"),
        ((DONE, False), (EMPTY, False), "processed input"),
        ((DONE, False), (DONE, False), "processed read input"),
        ((DONE, False), (TaskMetrics(waited=True), False), "read input"),
        ((TaskMetrics(waited=True), False), (TaskMetrics(waited=True), False), "read"),
        ((TaskMetrics(advanced=True), False), (TaskMetrics(), True), "read input"),
        ((TaskMetrics(), True), (TaskMetrics(), False), ""),
        ((TaskMetrics(), True), (TaskMetrics(), True), "processed read input"),
    ],
)
def test_whether_a_job_has_processed_and_read_its_input(
    a: tuple[TaskMetrics, bool], b: tuple[TaskMetrics, bool], facts: str
) -> None:
    """The first micro-batch after a restore has no rows, and a source may move without rows that Spark counts."""
    state = running().state
    for task_id, (metrics, ended) in ((A, a), (B, b)):
        state = state.with_execution(replace(state.executions[task_id], metrics=metrics, input_ended=ended))
    found = {"processed": state.has_processed, "read": state.has_read, "input": state.has_input}
    assert " ".join(name for name, true in found.items() if true) == facts


# --- contradictions --------------------------------------------------------------------------------------------------


def with_states(a: ExecutionState, b: ExecutionState) -> Callable[[JobState], JobState]:
    def changed(state: JobState) -> JobState:
        for task_id, to in ((A, a), (B, b)):
            state = state.with_execution(replace(state.executions[task_id], state=to))
        return state

    return changed


@pytest.mark.parametrize(
    ("phase", "states", "told"),
    [
        (RUNNING, (E.RUNNING, E.FAILED), "Running while a task does not run"),
        (Rescaling(RUNNING), (E.DEPLOYING, E.RUNNING), "Rescaling while a task does not run"),
        (
            FindingRestorePoint(frozenset({A, B})),
            (E.RUNNING, E.FAILED),
            "while one of the tasks that it is for may still",
        ),
        (StandingDown(), (E.CANCELING, E.RUNNING), "StandingDown while a task was not told to end"),
        (Stopping(JobStatus.FAILED), (E.INITIALIZING, E.FAILED), "Stopping while a task was not told to end"),
        (StoodDown(), (E.CANCELING, E.FAILED), "StoodDown with 1 attempts that may still run"),
        (Settling(JobStatus.FAILED), (E.CANCELING, E.CANCELING), "Settling with 2 attempts"),
        (Ended(JobStatus.FAILED), (E.CANCELING, E.CANCELED), "Ended with 1 attempts"),
    ],
)
def test_a_phase_that_the_executions_contradict_is_a_violation(
    phase: Phase, states: tuple[ExecutionState, ExecutionState], told: str
) -> None:
    state = replace(with_states(*states)(running().state), phase=phase)
    with pytest.raises(InvariantViolated, match=f"the job is .*{told}"):
        check_invariants(state)


@pytest.mark.parametrize(
    ("phase", "states"),
    [
        (RUNNING, (E.RUNNING, E.RUNNING)),
        (WaitingForSlots(), (E.RUNNING, E.CANCELING)),
        (FindingRestorePoint(frozenset({A})), (E.FAILED, E.RUNNING)),
        (ComingUp(), (E.DEPLOYING, E.RUNNING)),
        (StandingDown(), (E.CANCELING, E.FAILED)),
        (Stopping(JobStatus.FAILED), (E.CANCELING, E.CANCELED)),
        (StoodDown(), (E.CANCELED, E.FAILED)),
        (Settling(JobStatus.FINISHED), (E.FINISHED, E.FINISHED)),
    ],
)
def test_a_phase_that_fits_the_executions_is_none(phase: Phase, states: tuple[ExecutionState, ExecutionState]) -> None:
    check_invariants(replace(with_states(*states)(running().state), phase=phase))


def test_a_task_on_slots_that_are_not_held_is_a_violation() -> None:
    state = running().state
    elsewhere = replace(state.executions[B], allocation_id=AllocationId("lost"))
    with pytest.raises(InvariantViolated, match="b is RUNNING on a slot that the pool does not hold"):
        check_invariants(state.with_execution(elsewhere))
    with pytest.raises(InvariantViolated, match="1 slots of tm-1 are used, and 0 are held"):
        check_invariants(replace(state, pool=replace(state.pool, held={})))
    ended = with_states(E.CANCELING, E.FAILED)(replace(state, pool=replace(state.pool, held={})))
    check_invariants(replace(ended, phase=WaitingForSlots()))


def test_the_pools_own_contradictions_are_the_jobs() -> None:
    state = running().state
    (held,) = state.pool.held
    with pytest.raises(InvariantViolated, match="given up are held"):
        check_invariants(replace(state, pool=replace(state.pool, gone=(held,))))


def test_a_move_that_is_not_in_the_table_names_the_job_or_the_attempt() -> None:
    job = running()
    with pytest.raises(IllegalTransition, match="job: Running -> ComingUp"):
        Step(job.chance, job.state, 0.0).enter(ComingUp())
    execution = job.state.executions[A]
    with pytest.raises(IllegalTransition, match="task a, attempt 0: RUNNING -> DEPLOYING"):
        execution.to(E.DEPLOYING, 0.0)
    with pytest.raises(IllegalTransition, match="task a, attempt 0: RUNNING -> CREATED"):
        execution.next_attempt()


def test_the_next_attempt_begins_with_the_rows_of_those_before_it() -> None:
    ended = replace(Execution(A, number=4, base=RowCounts(read={"a": 300})), state=E.FAILED)
    assert ended.next_attempt() == Execution(A, number=5, base=RowCounts(read={"a": 300}))


def test_an_execution_remembers_when_it_entered_each_state() -> None:
    execution = Execution(A).to(E.SCHEDULED, 1.0).to(E.SCHEDULED, 2.0).to(E.DEPLOYING, 3.0)
    assert execution.entered == ((E.SCHEDULED, 1.0), (E.DEPLOYING, 3.0))


def test_a_micro_batch_changes_nothing_but_figures() -> None:
    """Most events of a job say that one has ended. A list of jobs does not show its figures (E4)."""
    job = WideJob(a=1)
    job.offer(TM1, 1)
    job.deploy()
    job.come_up()
    job.feed(ev.TaskProgressed(job.attempt("a"), TaskMetrics(batches=1)))
    before = job.state
    progressed = before.executions[A]
    assert not only_progress(before, replace(before, restarts=1))
    assert not only_progress(before, before.with_execution(replace(progressed, state=E.FAILED)))
    assert not only_progress(before, before.with_execution(replace(progressed, allocation_id=AllocationId("f" * 32))))
    job.feed(ev.TaskProgressed(job.attempt("a"), TaskMetrics(batch_id=7, batches=8)))
    assert job.state.executions[A].metrics.batches == 8
    assert only_progress(before, job.state)
