"""The decisions of one JobMaster: schedule, deploy, fail over, finish, cancel. Pure.

`step` takes an event to a new state and commands; `advance` then draws the conclusions that any event may have made
possible. Ids and jitter come from an injected source, so that a seed repeats a run exactly.

Failover restarts all tasks of the job from its last completed checkpoint. (Regions of tasks that no exchange connects
could be restarted alone; the seam is `_fail`.)
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from msgspec.structs import replace as copy

from minflinkd.jobmaster import events as ev
from minflinkd.jobmaster import slot_pool
from minflinkd.jobmaster.execution import Execution
from minflinkd.jobmaster.job_state import KEPT_FAILURES, KEPT_ROLLOUTS, JobState
from minflinkd.jobmaster.restart import after_failure
from minflinkd.jobmaster.rollout import Rollout
from minflinkd.rpc.jobs import ExecutionState, FailureRecord, JobStatus
from minflinkd.rpc.messages import TaskState, TaskStatus
from minflinkd.runtime.errors import Consequence, ErrorInfo
from minflinkd.runtime.ids import AllocationId, IdSource, ResourceId

Step = tuple[JobState, tuple[ev.Command, ...]]
SESSION_LOST = "session-lost"  # the TaskManager lives, but its Spark session is gone: its slots are worth nothing now
NO_SLOTS = "no-slots"

_REPORTED = {
    TaskState.DEPLOYING: ExecutionState.DEPLOYING,
    TaskState.INITIALIZING: ExecutionState.INITIALIZING,
    TaskState.RUNNING: ExecutionState.RUNNING,
    TaskState.INPUT_ENDED: ExecutionState.RUNNING,
}
_RANK = (
    ExecutionState.CREATED,
    ExecutionState.SCHEDULED,
    ExecutionState.DEPLOYING,
    ExecutionState.INITIALIZING,
    ExecutionState.RUNNING,
)


@dataclass(frozen=True)
class Chance:
    """The randomness that decisions may use."""

    ids: IdSource
    rng: random.Random


def step(chance: Chance, state: JobState, event: ev.Event, now: float) -> Step:
    """Move by one event. Late events, of older attempts or rounds, change nothing."""
    state, commands = _react(chance, state, event, now)
    state, more = _advance(chance, state, now)
    return state, (*commands, *more)


def next_wakeup(state: JobState) -> float | None:
    """When a Tick is due, in seconds of the clock that `now` comes from."""
    times = [n.since + state.slot_request_timeout for n in state.pool.needs.values()]
    if state.restart_at is not None:
        times.append(state.restart_at)
    return min(times, default=None)


def _react(chance: Chance, state: JobState, event: ev.Event, now: float) -> Step:
    if state.status.terminal:
        return state, ()
    match event:
        case ev.Started(recovered):
            state = replace(state, rollouts=(Rollout(now),), has_run=recovered)
            return (state if state.outcome is not None else state.to(JobStatus.CREATED, now)), ()
        case ev.SlotsOffered():
            pool, _ = slot_pool.offered(state.pool, event.resource_id, event.address, event.offers)
            return replace(state, pool=pool), ()
        case ev.SlotsGone():
            return _lose(chance, state, event.allocations, event.reason, now)
        case ev.TaskManagerGone():
            return _lose_task_manager(chance, state, event.resource_id, event.reason, now)
        case ev.NeedsRefused():
            return _refused(chance, state, event, now)
        case ev.RestorePointFound():
            return _deploy(chance, state, event, now)
        case ev.RestorePointFailed():
            if event.round != state.round or not state.finding_restore_point:
                return state, ()
            return _fail(
                chance,
                replace(state, finding_restore_point=False),
                FailureRecord(timestamp_ms=0, error=event.error),
                now,
            )
        case ev.DeployFailed():
            return _attempt_failed(chance, state, event.attempt_id, event.error, now)
        case ev.TaskChanged():
            return _task_changed(chance, state, event.status, now)
        case ev.TaskProgressed():
            execution = state.by_attempt(event.attempt_id)
            if execution is None or not execution.on_task_manager:
                return state, ()
            return state.with_execution(replace(execution, metrics=event.metrics)), ()
        case ev.AttemptGone():
            execution = state.by_attempt(event.attempt_id)
            if execution is None or not execution.on_task_manager:
                return state, ()
            if execution.state is not ExecutionState.CANCELING:
                error = ErrorInfo(
                    code="task-lost",
                    message="the TaskManager does not run the task any more",
                    consequence=Consequence.RETRYABLE,
                )
                return _attempt_failed(chance, state, event.attempt_id, error, now)
            return state.with_execution(_ended(state, execution, now)), ()
        case ev.CheckpointsFailed():
            if state.status is not JobStatus.RUNNING:
                return state, ()
            return _fail(chance, state, FailureRecord(timestamp_ms=0, error=event.error), now)
        case ev.FinalCheckpointDone():
            current = state.status is JobStatus.RUNNING and event.round == state.round
            if not current or not state.final_checkpoint_asked or state.outcome is not None:
                return state, ()
            return _end(state, JobStatus.FINISHED, now)
        case ev.CancelRequested():
            if state.outcome is not None:
                return state, ()
            return _end(state.to(JobStatus.CANCELLING, now), JobStatus.CANCELED, now)
        case ev.SinksSettled():
            return _settled(state, now) if state.settling else (state, ())
        case ev.Tick():
            return _overdue(chance, state, now)


def _advance(chance: Chance, state: JobState, now: float) -> Step:
    """What has become possible."""
    if state.status.terminal:
        return state, ()
    if state.outcome is not None:
        if state.live or state.settling:
            return state, ()
        state, freed = _free_all(state)  # not behind the sinks' storage, which may be slow, or away
        return replace(state, settling=True), (*freed, ev.SettleSinks())
    before = state.pool.version
    state = replace(state, pool=slot_pool.ask_for_missing(state.pool, chance.ids, now))
    commands: tuple[ev.Command, ...] = (ev.Declare(),) if state.pool.version != before else ()
    if state.status is JobStatus.RUNNING:
        if all(e.metrics.batches > 0 or e.input_ended for e in state.executions.values()):
            state = state.marked("first_batch", now)
        if not state.final_checkpoint_asked and all(e.input_ended for e in state.executions.values()):
            state = replace(state, final_checkpoint_asked=True)
            commands += (ev.TakeFinalCheckpoint(state.round),)
        return state, commands
    if all(e.state is ExecutionState.RUNNING for e in state.executions.values()):
        state = replace(state.to(JobStatus.RUNNING, now).marked("running", now), has_run=True)
        attempts = {t: e.attempt_id for t, e in state.executions.items() if e.attempt_id is not None}
        commands += (ev.StartCheckpoints(attempts),)
        state, more = _advance(chance, state, now)
        return state, (*commands, *more)
    waiting = all(
        e.state in (ExecutionState.CREATED, ExecutionState.CANCELED, ExecutionState.FAILED)
        for e in state.executions.values()
    )
    if not waiting or state.finding_restore_point:
        return state, commands
    state = state.marked("canceled", now)
    if state.pool.complete:
        state = state.marked("slots", now)
    if state.restart_at is not None and now < state.restart_at:
        return state, commands
    state = replace(state, restart_at=None)
    if not state.pool.complete:
        return state, commands
    state = replace(state, round=state.round + 1, finding_restore_point=True)
    return state, (*commands, ev.FindRestorePoint(state.round))


def _deploy(chance: Chance, state: JobState, event: ev.RestorePointFound, now: float) -> Step:
    if event.round != state.round or not state.finding_restore_point:
        return state, ()
    state = replace(state, finding_restore_point=False)
    if state.outcome is not None or not state.pool.complete:
        return state, ()  # the job ends, or lost slots meanwhile: `_advance` asks again when they are there
    state = state.marked("restore_point", now)
    commands: list[ev.Command] = []
    for task in state.tasks.values():
        found = state.pool.of_group(task.slot_sharing_group)
        if found is None:
            continue
        allocation, held = found
        old = state.executions[task.id]
        fresh = old if old.state is ExecutionState.CREATED else old.next_attempt()
        attempt = chance.ids.attempt()
        fresh = replace(fresh, attempt_id=attempt, allocation_id=allocation, resource_id=held.resource_id)
        state = state.with_execution(fresh.to(ExecutionState.SCHEDULED, now).to(ExecutionState.DEPLOYING, now))
        restore = event.tasks.get(task.id)
        commands.append(ev.Deploy(task.id, attempt, fresh.number, allocation, held.address, restore))
    rollouts = (*state.rollouts[:-1], replace(state.rollouts[-1], checkpoint_id=event.checkpoint_id))
    state = replace(state, rollouts=rollouts, final_checkpoint_asked=False).marked("deployed", now)
    return state, tuple(commands)


def _task_changed(chance: Chance, state: JobState, status: TaskStatus, now: float) -> Step:
    execution = state.by_attempt(status.attempt_id)
    if execution is None or not execution.on_task_manager:
        return state, ()
    if status.state is TaskState.FAILED:
        error = status.error or ErrorInfo(code="internal", message="the task failed and did not say why")
        return _attempt_failed(chance, state, status.attempt_id, error, now)
    if status.state is TaskState.CANCELED:
        return _react(chance, state, ev.AttemptGone(status.attempt_id), now)
    reported = _REPORTED.get(status.state)
    if reported is None or execution.state is ExecutionState.CANCELING:
        return state, ()
    if _RANK.index(reported) > _RANK.index(execution.state):
        execution = execution.to(reported, now)
    ended = execution.input_ended or status.state is TaskState.INPUT_ENDED
    return state.with_execution(replace(execution, metrics=status.metrics, input_ended=ended)), ()


def _attempt_failed(chance: Chance, state: JobState, attempt_id: str, error: ErrorInfo, now: float) -> Step:
    execution = next((e for e in state.executions.values() if e.attempt_id == attempt_id), None)
    if execution is None or not execution.on_task_manager:
        return state, ()
    state = state.with_execution(execution.to(ExecutionState.FAILED, now))
    state, commands = _fail(chance, state, _record(state, execution, error), now)
    if error.code != SESSION_LOST or execution.resource_id is None:
        return state, commands
    # Behind the cancellation of the job's other tasks there, which needs the slots' address.
    state, more = _give_back(state, execution.resource_id)
    return state, (*commands, *more)


def _give_back(state: JobState, resource_id: ResourceId) -> Step:
    """Slots of a session that died: another TaskManager's are ready sooner."""
    allocations, address = state.pool.on(resource_id), state.pool.address_of(resource_id)
    if not allocations or address is None:
        return state, ()
    state = replace(state, pool=slot_pool.dropped(state.pool, allocations))
    return state, (ev.FreeAllocations(address, allocations, job_ended=False),)


def _lose(chance: Chance, state: JobState, allocations: tuple[AllocationId, ...], reason: str, now: float) -> Step:
    """Allocations are gone, and with them what ran on their slots."""
    lost = set(allocations) & set(state.pool.held)
    state = replace(state, pool=slot_pool.dropped(state.pool, tuple(lost)))
    error = ErrorInfo(code="slots-lost", message=reason, consequence=Consequence.RETRYABLE)
    commands: tuple[ev.Command, ...] = ()
    for execution in state.live:
        if execution.allocation_id not in lost:
            continue
        if execution.state is ExecutionState.CANCELING:
            state = state.with_execution(_ended(state, execution, now))
            continue
        state = state.with_execution(execution.to(ExecutionState.FAILED, now))
        state, more = _fail(chance, state, _record(state, execution, error), now)
        commands += more
    return state, commands


def _lose_task_manager(chance: Chance, state: JobState, resource_id: ResourceId, reason: str, now: float) -> Step:
    return _lose(chance, state, state.pool.on(resource_id), f"TaskManager {resource_id} is lost: {reason}", now)


def _refused(chance: Chance, state: JobState, event: ev.NeedsRefused, now: float) -> Step:
    """A new job is told at once that it cannot run here. One that has run before has state to lose, and what refuses

    it now may pass (a full disk, a node that is away): its restart strategy decides how long it waits (R5).
    """
    reasons = [reason for allocation, reason in event.reasons.items() if allocation in state.pool.needs]
    if not reasons or state.outcome is not None or state.restart_at is not None:
        return state, ()
    error = ErrorInfo(
        code=NO_SLOTS,
        message="; ".join(sorted(set(reasons))),
        consequence=Consequence.RETRYABLE if state.has_run else Consequence.REFUSED,
        hint="lower the job's parallelism, or give TaskManagers more slots (taskmanager.numberOfTaskSlots)",
    )
    return _fail(chance, state, FailureRecord(timestamp_ms=0, error=error), now)


def _overdue(chance: Chance, state: JobState, now: float) -> Step:
    late = slot_pool.overdue(state.pool, state.slot_request_timeout, now)
    if not late or state.outcome is not None:
        return state, ()
    wanted = ", ".join(f"{n.slots} slots for group {n.group!r}" for n in late)
    error = ErrorInfo(
        code=NO_SLOTS,
        message=f"no TaskManager offered {wanted} within {state.slot_request_timeout:g} s (slot.request.timeout)",
        consequence=Consequence.RETRYABLE,
        hint="`minflinkd taskmanagers` shows what there is",
    )
    state = replace(state, pool=slot_pool.renewed(state.pool))
    return _fail(chance, state, FailureRecord(timestamp_ms=0, error=error), now)


def _record(state: JobState, execution: Execution, error: ErrorInfo) -> FailureRecord:
    return FailureRecord(
        timestamp_ms=0,  # the driver knows the wall clock
        error=error,
        task_id=execution.task_id,
        task_name=state.tasks[execution.task_id].name,
        attempt_id=execution.attempt_id,
        resource_id=execution.resource_id,
    )


def _fail(chance: Chance, state: JobState, record: FailureRecord, now: float) -> Step:
    """Everything that runs is stopped; the restart strategy says whether it comes back."""
    state = replace(state, failures=(*state.failures, record)[-KEPT_FAILURES:])
    if state.outcome is not None or state.restart_at is not None:
        return state, ()  # on the way down already: one restart serves all failures of this round
    state, commands = _stop_everything(state, now)
    state = replace(state, finding_restore_point=False)
    reason = "the failure cannot be mended by a restart"
    delay: float | None = None
    if not _hopeless(record.error):
        verdict = after_failure(state.strategy, state.history, now, chance.rng.uniform(-1, 1))
        delay, reason = verdict.delay, verdict.reason
        state = replace(state, history=verdict.history)
    if delay is None:
        told = f"{record.error.message} - not restarted: {reason}"
        last = copy(record, error=copy(record.error, message=told))
        failures = (*state.failures[:-1], last)
        state, more = _conclude(replace(state, failures=failures).to(JobStatus.FAILING, now), JobStatus.FAILED)
        return state, (*commands, *more)
    cause = f"{record.error.code}: {record.error.message}"[:300]
    rollouts = (*state.rollouts, Rollout(now, cause=cause))
    kept = (*rollouts[:1], *rollouts[1:][-KEPT_ROLLOUTS:])
    state = replace(state.to(JobStatus.RESTARTING, now), restart_at=now + delay, rollouts=kept)
    return state, commands


def _hopeless(error: ErrorInfo) -> bool:
    """Whether a restart would meet the same failure. What nobody has classified is worth another try."""
    return error.consequence in (Consequence.FATAL, Consequence.REFUSED) and error.code != "internal"


def _stop_everything(state: JobState, now: float) -> Step:
    commands: list[ev.Command] = [ev.StopCheckpoints()]
    for execution in state.executions.values():
        if execution.state in (ExecutionState.CREATED, ExecutionState.SCHEDULED):
            state = state.with_execution(execution.to(ExecutionState.CANCELED, now))
        elif execution.on_task_manager and execution.state is not ExecutionState.CANCELING:
            state = state.with_execution(execution.to(ExecutionState.CANCELING, now))
            held = state.pool.held.get(execution.allocation_id) if execution.allocation_id else None
            if held is not None and execution.attempt_id is not None:
                commands.append(ev.Cancel(execution.attempt_id, held.address))
    return state, tuple(commands)


def _end(state: JobState, outcome: JobStatus, now: float) -> Step:
    """Everything is stopped, and the job is to reach `outcome`."""
    state, commands = _stop_everything(state, now)
    state, more = _conclude(state, outcome)
    return state, (*commands, *more)


def _conclude(state: JobState, outcome: JobStatus) -> Step:
    """What is stopping stays stopped: `outcome` is reached once nothing runs and the sinks are settled."""
    state = replace(state, outcome=outcome, restart_at=None, finding_restore_point=False)
    if not state.pool.needs:
        return state, ()
    return replace(state, pool=slot_pool.renewed(state.pool)), (ev.Declare(),)


def _ended(state: JobState, execution: Execution, now: float) -> Execution:
    finished = state.outcome is JobStatus.FINISHED
    return execution.to(ExecutionState.FINISHED if finished else ExecutionState.CANCELED, now)


def _free_all(state: JobState) -> Step:
    """The job needs no slots any more, for good."""
    by_address: dict[str, list[AllocationId]] = {}
    for allocation, held in state.pool.held.items():
        by_address.setdefault(held.address, []).append(allocation)
    commands = [ev.FreeAllocations(a, tuple(allocations), job_ended=True) for a, allocations in by_address.items()]
    return replace(state, pool=slot_pool.dropped(state.pool, tuple(state.pool.held))), tuple(commands)


def _settled(state: JobState, now: float) -> Step:
    outcome = state.outcome or JobStatus.FAILED
    return replace(state, settling=False).to(outcome, now), (ev.End(outcome),)
