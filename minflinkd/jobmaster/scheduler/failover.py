"""What a failure means for a job (R16): which tasks stop, and whether and when they come back.

A failure stops the task, and the tasks that depend on it (`exchanges.py`). The other tasks run on, and no checkpoint is
taken until all tasks run again. While the job is drained, a failure stops all tasks: the others would already be at the
end of time. Failures that occur while a restart is due are handled by that restart.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace as copy

from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler import placement, reconciling, slot_pool
from minflinkd.jobmaster.scheduler.execution import Execution
from minflinkd.jobmaster.scheduler.phases import (
    FoundTask,
    Reconciling,
    Settling,
    StandingDown,
    StoodDown,
    Stopping,
    WaitingForSlots,
)
from minflinkd.jobmaster.scheduler.placement import Placement
from minflinkd.jobmaster.scheduler.restart import after_failure
from minflinkd.jobmaster.scheduler.state import JobState
from minflinkd.jobmaster.scheduler.step import Step
from minflinkd.jobmaster.scheduler.streak import Failure
from minflinkd.rpc.jobs import ExecutionState, FailureRecord, JobStatus
from minflinkd.runtime.errors import Consequence, ErrorInfo, Kind
from minflinkd.runtime.ids import AllocationId, AttemptId, ResourceId, TaskId

UNEXPLAINED = ErrorInfo(code="internal", message="the task failed and did not say why", kind=Kind.UNFORESEEN)

# --- causes ----------------------------------------------------------------------------------------------------------


def attempt_failed(this: Step, attempt_id: AttemptId, error: ErrorInfo) -> None:
    execution = this.state.by_attempt(attempt_id)
    if execution is None or not execution.on_task_manager:
        return
    this.put(execution.to(ExecutionState.FAILED, this.now))
    record = _record(this.state, execution, error)
    if execution.state is ExecutionState.CANCELING:
        this.note(record)
        return
    resource = execution.resource_id
    if resource is None or not _session_is_useless(this.state, error):
        fail(this, record, {execution.task_id})
        return
    fail(this, record, {execution.task_id, *(e.task_id for e in this.state.live if e.resource_id == resource)})
    # Another TaskManager's slots are ready sooner. Free these after the cancellations, which need the slots' address.
    pool = this.state.pool
    if (address := pool.address_of(resource)) is not None:
        allocations = pool.on(resource)
        this.set(pool=slot_pool.dropped(pool, allocations))
        this.commands.append(ev.FreeAllocations(address, allocations, job_ended=False))


def found_failed(this: Step, found: FoundTask) -> None:
    """A task failed while there was no JobMaster. The failure counts as if it had been reported at once (A14a)."""
    status = found.task.status
    record = FailureRecord(
        timestamp_ms=0,
        error=status.error or UNEXPLAINED,
        task_id=status.task_id,
        task_name=this.state.tasks[status.task_id].name,
        attempt_id=status.attempt_id,
        resource_id=found.resource_id,
    )
    fail(this, record, {status.task_id})


def _session_is_useless(state: JobState, error: ErrorInfo) -> bool:
    """Whether the TaskManager lives, but its Spark session is of no use to the job. Then neither are its slots.

    A version on trial gives no slots back because of its code: the version before it fits into the session.
    """
    return error.kind is Kind.SESSION_LOST or (error.kind is Kind.SESSION_TAKEN and not state.on_trial)


def deploy_unanswered(this: Step, attempt_id: AttemptId, error: ErrorInfo) -> None:
    """Fail the attempt, unless its TaskManager has reported on it.

    The TaskManager may run it, so it is cancelled before the next attempt starts.
    """
    execution = this.state.by_attempt(attempt_id)
    if execution is not None and execution.state is ExecutionState.DEPLOYING:
        fail(this, _record(this.state, execution, error), {execution.task_id})


def slots_gone(this: Step, allocations: tuple[AllocationId, ...], reason: str) -> None:
    """Handle the loss of allocations: what ran on their slots is gone, and whatever else needed them stops."""
    lost = set(allocations) & set(this.state.pool.held)
    this.set(pool=slot_pool.dropped(this.state.pool, tuple(sorted(lost))))
    groups = {g for g, share in this.state.placement.items() if lost & set(share.allocations)}
    groups |= placement.uncovered(_without(this.state.placement, groups), this.state.pool.holdings)
    hit = [e for e in this.state.live if this.state.group_of(e.task_id) in groups]
    _lose(this, hit, {e.task_id for e in hit if e.allocation_id in lost}, reason)


def _without(shares: Placement, groups: Collection[str]) -> Placement:
    return {group: share for group, share in shares.items() if group not in groups}


def task_manager_gone(this: Step, resource_id: ResourceId, reason: str) -> None:
    this.set(pool=slot_pool.dropped(this.state.pool, this.state.pool.on(resource_id)))
    reconciling.task_manager_gone(this, resource_id)
    hit = [e for e in this.state.live if e.resource_id == resource_id]
    _lose(this, hit, {e.task_id for e in hit}, f"TaskManager {resource_id} is lost: {reason}")


def _lose(this: Step, hit: list[Execution], ended: set[TaskId], reason: str) -> None:
    """Fail the executions in `hit`. Nothing of the tasks in `ended` runs any more."""
    error = ErrorInfo(code="slots-lost", message=reason, consequence=Consequence.RETRYABLE, kind=Kind.CLUSTER)
    failed = [e for e in hit if e.state is not ExecutionState.CANCELING]
    for execution in hit:
        if execution.task_id not in ended:
            continue
        if execution in failed:
            this.put(execution.to(ExecutionState.FAILED, this.now))
        else:
            put_gone(this, execution)
    for execution in failed:
        fail(this, _record(this.state, execution, error), {execution.task_id})


def put_gone(this: Step, execution: Execution) -> None:
    """Note that nothing runs any more of an execution that was told to end."""
    finished = this.state.outcome is JobStatus.FINISHED
    this.put(execution.to(ExecutionState.FINISHED if finished else ExecutionState.CANCELED, this.now))


def _record(state: JobState, execution: Execution, error: ErrorInfo) -> FailureRecord:
    return FailureRecord(
        timestamp_ms=0,  # `Failure.at`
        error=error,
        task_id=execution.task_id,
        task_name=state.tasks[execution.task_id].name,
        attempt_id=execution.attempt_id,
        resource_id=execution.resource_id,
    )


# --- consequences ----------------------------------------------------------------------------------------------------


def fail(this: Step, record: FailureRecord, tasks: Collection[TaskId] = ()) -> None:
    """Record the failure and stop what it concerns of `tasks`. The restart strategy decides whether they come back."""
    this.note(record)
    state = this.state
    if isinstance(state.phase, Stopping | Settling | StandingDown | StoodDown):
        return
    hopeless = _hopeless(record.error)
    if state.on_trial and _is_of_the_version(record):
        _disprove(this, record)
        return
    if state.restart_at is not None and not hopeless:
        if tasks:
            _stop_affected(this, tasks, record.error)
        return
    reason = "the failure cannot be mended by a restart"
    delay: float | None = None
    if not hopeless:
        jitter = this.chance.rng.uniform(-1, 1)
        verdict = after_failure(state.options.restart_strategy, state.history, this.now, jitter)
        delay, reason = verdict.delay, verdict.reason
        this.set(history=verdict.history)
    if delay is not None:
        running_since = state.running.since if state.running is not None else None
        this.set(streak=state.streak.with_failure(state.failures[-1], running_since))
        _stop_affected(this, tasks, record.error)
        _restart(this, record, delay)
    elif state.on_trial:
        _disprove(this, record)
    elif _grown_and_unproven(state):
        _undo_growth(this, record)
    else:
        told = copy(record.error, message=f"{record.error.message} - not restarted: {reason}")
        this.set(failures=(*state.failures[:-1], Failure(this.now, copy(record, error=told))))
        end(this, JobStatus.FAILED)


def _hopeless(error: ErrorInfo) -> bool:
    """Whether a restart would meet the same failure. An unforeseen failure is worth another try."""
    return error.consequence in (Consequence.FATAL, Consequence.REFUSED) and error.kind is not Kind.UNFORESEEN


def _is_of_the_version(record: FailureRecord) -> bool:
    """Whether another version would probably be spared the failure."""
    if record.error.kind is Kind.CLUSTER:
        return False
    return record.task_id is not None or record.error.kind is Kind.JOB


def _disprove(this: Step, record: FailureRecord) -> None:
    """H7: Stand down. Whoever put the version on trial brings back the one before it."""
    this.commands.append(ev.Disproved(record.error))
    stand_down(this)


def _stop_affected(this: Step, tasks: Collection[TaskId], error: ErrorInfo) -> None:
    state = this.state
    if state.running is not None and state.running.draining and tasks:
        # The others stop reading where the drain began, and would miss later input.
        this.stop(state.tasks)
        return
    failed = set(tasks)
    if error.kind is Kind.EXCHANGE:  # what the task reads is at fault
        failed |= {source for task in tasks for source in state.exchanges.sources[task]}
    this.stop(state.exchanges.affected(failed, lambda task: _can_run_on(state.executions[task])))


def _can_run_on(execution: Execution) -> bool:
    """Whether the task runs, and still has all that its readers need to restart from the latest checkpoint."""
    return execution.state is ExecutionState.RUNNING and execution.metrics.replayable


def _restart(this: Step, record: FailureRecord, delay: float) -> None:
    phase = WaitingForSlots(this.state.lacking_since, restart_at=this.now + delay)
    this.restart(phase, cause=f"{record.error.code}: {record.error.message}"[:300])


def _grown_and_unproven(state: JobState) -> bool:
    """Whether the job is coming up wider than when it last ran. Such a failure must not end it."""
    if state.running is not None or state.narrowed:
        return False
    return any(share.parallelism > state.proven.get(g, share.parallelism) for g, share in state.placement.items())


def _undo_growth(this: Step, record: FailureRecord) -> None:
    """Restart the job, once, as wide as it last ran. If that fails as well, the failure has another cause."""
    this.stop(this.state.tasks)
    this.set(narrowed=True, ran_with=this.state.proven, failed_growths=this.state.failed_growths + 1)
    _restart(this, record, 0.0)


# --- stopping all tasks ----------------------------------------------------------------------------------------------


def stand_down(this: Step) -> None:
    """Stop everything. Another JobMaster brings up what follows, on the slots that are held."""
    phase = this.state.phase
    reconciling.give_up(this)
    this.stop(this.state.tasks)
    this.enter(StandingDown(phase.until if isinstance(phase, Reconciling) else 0.0))


def end(this: Step, outcome: JobStatus) -> None:
    """Stop everything for good. The job reaches `outcome` once nothing runs and the sinks are settled."""
    reconciling.give_up(this)
    this.stop(this.state.tasks)
    this.enter(Stopping(outcome))
    if this.state.pool.needs:
        this.set(pool=slot_pool.renewed(this.state.pool))
