"""What a failure means for a job (R16): which tasks stop, and whether and when they come back. Pure.

A failure stops its region of tasks. The other tasks run on, and no checkpoint is taken until all tasks run again. While
the job is drained, a failure stops all tasks: the others would already be at the end of time. Failures that occur while
a restart is due are handled by that restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from msgspec.structs import replace as copy

from minflinkd.jobmaster import events as ev
from minflinkd.jobmaster import slot_pool
from minflinkd.jobmaster.chance import Chance
from minflinkd.jobmaster.execution import Execution
from minflinkd.jobmaster.job_state import KEPT_FAILURES, KEPT_ROLLOUTS, JobState, Step
from minflinkd.jobmaster.restart import after_failure
from minflinkd.jobmaster.rollout import Rollout
from minflinkd.jobmaster.sizing import enough, idle_tasks, lean, plan
from minflinkd.jobmaster.streak import Failure
from minflinkd.rpc.jobs import ExecutionState, FailureRecord, JobStatus
from minflinkd.runtime.errors import Consequence, ErrorInfo, Kind
from minflinkd.runtime.ids import AllocationId, AttemptId, ResourceId, TaskId

# --- causes ----------------------------------------------------------------------------------------------------------


def attempt_failed(chance: Chance, state: JobState, attempt_id: AttemptId, error: ErrorInfo, now: float) -> Step:
    execution = state.by_attempt(attempt_id)
    if execution is None or not execution.on_task_manager:
        return state, ()
    canceling = execution.state is ExecutionState.CANCELING
    state = state.with_execution(execution.to(ExecutionState.FAILED, now))
    if canceling:  # the attempt was being cancelled
        return noted(state, _record(state, execution, error), now), ()
    failed = frozenset({execution.task_id})
    resource = execution.resource_id
    if resource is None or not _session_is_useless(state, error):
        return fail(chance, state, _record(state, execution, error), failed, now)
    failed |= {e.task_id for e in state.live if e.resource_id == resource}
    state, commands = fail(chance, state, _record(state, execution, error), failed, now)
    # Another TaskManager's slots are ready sooner. Free these after the cancellations, which need the slots' address.
    allocations, address = state.pool.on(resource), state.pool.address_of(resource)
    if not allocations or address is None:
        return state, commands
    state = replace(state, pool=slot_pool.dropped(state.pool, allocations))
    return state, (*commands, ev.FreeAllocations(address, allocations, job_ended=False))


def _session_is_useless(state: JobState, error: ErrorInfo) -> bool:
    """Whether the TaskManager lives, but its Spark session is of no use to the job. Then neither are its slots.

    A version on trial gives no slots back because of its code: the version before it fits into the session.
    """
    return error.kind is Kind.SESSION_LOST or (error.kind is Kind.SESSION_TAKEN and not state.on_trial)


def deploy_unanswered(chance: Chance, state: JobState, attempt_id: AttemptId, error: ErrorInfo, now: float) -> Step:
    """Fail the attempt, unless its TaskManager has reported on it.

    The TaskManager may run it, so it is cancelled before the next attempt starts.
    """
    execution = state.by_attempt(attempt_id)
    if execution is None or execution.state is not ExecutionState.DEPLOYING:
        return state, ()
    return fail(chance, state, _record(state, execution, error), frozenset({execution.task_id}), now)


def slots_gone(chance: Chance, state: JobState, allocations: tuple[AllocationId, ...], reason: str, now: float) -> Step:
    """Handle the loss of allocations: what ran on their slots is gone, and whatever else needed them stops."""
    lost = set(allocations) & set(state.pool.held)
    groups = {g for g, share in state.placement.items() if lost & set(share.allocations)}
    state = replace(state, pool=slot_pool.dropped(state.pool, tuple(sorted(lost))))
    hit = [e for e in state.live if state.group_of(e.task_id) in groups]
    return _lose(chance, state, hit, {e.task_id for e in hit if e.allocation_id in lost}, reason, now)


def task_manager_gone(chance: Chance, state: JobState, resource_id: ResourceId, reason: str, now: float) -> Step:
    state = replace(state, pool=slot_pool.dropped(state.pool, state.pool.on(resource_id)))
    hit = [e for e in state.live if e.resource_id == resource_id]
    told = f"TaskManager {resource_id} is lost: {reason}"
    return _lose(chance, state, hit, {e.task_id for e in hit}, told, now)


def _lose(chance: Chance, state: JobState, hit: list[Execution], ended: set[TaskId], reason: str, now: float) -> Step:
    """Fail the executions in `hit`. Nothing of the tasks in `ended` runs any more."""
    error = ErrorInfo(code="slots-lost", message=reason, consequence=Consequence.RETRYABLE, kind=Kind.CLUSTER)
    failed = [e for e in hit if e.state is not ExecutionState.CANCELING]
    for execution in hit:
        if execution.task_id in ended:
            over = gone(state, execution, now) if execution not in failed else execution.to(ExecutionState.FAILED, now)
            state = state.with_execution(over)
    commands: tuple[ev.Command, ...] = ()
    for execution in failed:
        state, more = fail(chance, state, _record(state, execution, error), frozenset({execution.task_id}), now)
        commands += more
    return state, commands


def refused(chance: Chance, state: JobState, reasons: Mapping[AllocationId, str], now: float) -> Step:
    """Handle needs that the ResourceManager refused (R5).

    A new job fails at once if it cannot run here. A job that has run before has state to lose, and the refusal may be
    temporary (a full disk, a node that is away): its restart strategy decides how long it waits. If the job runs, or
    will run with fewer slots after the wait for slots, the refusal only means that it does not grow.
    """
    texts = [reason for allocation, reason in reasons.items() if allocation in state.pool.needs]
    waits = state.restart_at is None and not state.standing_down
    if not texts or state.outcome is not None or not waits or not idle_tasks(state):
        return state, ()
    fewer_will_do = any(n.want.least > state.pool.groups[n.group].least for n in state.pool.needs.values())
    if fewer_will_do and not lean(state, now):
        return replace(state, lacking_since=now - state.options.resource_wait_timeout), ()
    error = ErrorInfo(
        code="no-slots",
        message=f"{_asked(state)}: {'; '.join(sorted(set(texts)))}",
        consequence=Consequence.RETRYABLE if state.has_run else Consequence.REFUSED,
        kind=Kind.JOB,
        hint="lower the job's parallelism, or give TaskManagers more slots (taskmanager.numberOfTaskSlots)",
    )
    return fail(chance, state, FailureRecord(timestamp_ms=0, error=error), frozenset(), now)


def overdue(chance: Chance, state: JobState, now: float) -> Step:
    """R5: Fail if slots have been lacking for too long. The error says what was asked for, what is held, and why."""
    timeout, since = state.options.slot_request_timeout, state.lacking_since
    if since is None or now - since < timeout or state.outcome is not None or enough(state, plan(state), now):
        return state, ()
    why = sorted({text for allocation, text in state.waiting.items() if allocation in state.pool.needs})
    error = ErrorInfo(
        code="no-slots",
        message=f"{_asked(state)} within {timeout:g} s (slot.request.timeout): {'; '.join(why) or 'nobody said why'}",
        consequence=Consequence.RETRYABLE,
        kind=Kind.JOB,
        hint="`minflinkd taskmanagers` shows what there is",
    )
    state = replace(state, pool=slot_pool.renewed(state.pool), lacking_since=None)
    return fail(chance, state, FailureRecord(timestamp_ms=0, error=error), frozenset(), now)


def _asked(state: JobState) -> str:
    wanted = [
        f"{n.want.slots} slots for group {n.group!r}"
        + (f" (at least {n.want.least})" if n.want.least < n.want.slots else "")
        for n in sorted(state.pool.needs.values(), key=lambda n: n.group)
    ]
    held = [f"{sum(slots.values())} of {r}" for r, slots in sorted(state.pool.holdings.items())]
    return f"wanted {', '.join(wanted)}; the job holds {', '.join(held) or 'none'}; no TaskManager offered the rest"


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


def fail(chance: Chance, state: JobState, record: FailureRecord, tasks: frozenset[TaskId], now: float) -> Step:
    """Record the failure and stop the regions of `tasks`. The restart strategy decides whether they come back."""
    state = noted(state, record, now)
    if state.outcome is not None or state.standing_down:
        return state, ()
    hopeless = _hopeless(record.error)
    if state.on_trial and _is_of_the_version(record, hopeless=hopeless):
        return _disprove(state, record, now)
    if state.restart_at is not None and not hopeless:
        return _stop_regions(state, tasks, now) if tasks else (state, ())
    reason = "the failure cannot be mended by a restart"
    delay: float | None = None
    if not hopeless:
        verdict = after_failure(state.options.restart_strategy, state.history, now, chance.rng.uniform(-1, 1))
        delay, reason = verdict.delay, verdict.reason
        state = replace(state, history=verdict.history)
    if delay is None and state.on_trial:
        return _disprove(state, record, now)
    if delay is None and _grown_and_unproven(state):
        return _undo_growth(state, record, now)
    if delay is None:
        told = f"{record.error.message} - not restarted: {reason}"
        last = Failure(now, copy(record, error=copy(record.error, message=told)))
        state = replace(state, failures=(*state.failures[:-1], last))
        return end(state.to(JobStatus.FAILING, now), JobStatus.FAILED, now)
    state = replace(state, streak=state.streak.with_failure(state.failures[-1], state.running_since))
    state, commands = _stop_regions(state, tasks, now)
    return _restart(state, record, now, delay), commands


def _restart(state: JobState, record: FailureRecord, now: float, delay: float) -> JobState:
    state = begin_rollout(state, Rollout(now, cause=f"{record.error.code}: {record.error.message}"[:300]))
    return replace(state.to(JobStatus.RESTARTING, now), restart_at=now + delay)


def _grown_and_unproven(state: JobState) -> bool:
    """Whether the job is coming up wider than when it last ran. Such a failure must not end it."""
    if state.status is JobStatus.RUNNING or state.narrowed:
        return False
    return any(share.parallelism > state.proven.get(g, share.parallelism) for g, share in state.placement.items())


def _undo_growth(state: JobState, record: FailureRecord, now: float) -> Step:
    """Restart the job, once, as wide as it last ran. If that fails as well, the failure has another cause."""
    state, commands = stop(state, frozenset(state.tasks), now)
    state = replace(state, narrowed=True, ran_with=state.proven, failed_growths=state.failed_growths + 1)
    return _restart(state, record, now, 0.0), commands


def _is_of_the_version(record: FailureRecord, *, hopeless: bool) -> bool:
    """Whether another version would probably be spared the failure."""
    if record.error.kind is Kind.CLUSTER:
        return False
    return hopeless or record.task_id is not None or record.error.kind is Kind.JOB


def _disprove(state: JobState, record: FailureRecord, now: float) -> Step:
    """H7: Stand down. Whoever put the version on trial brings back the one before it."""
    state, commands = stand_down(state, now)
    return state, (ev.Disproved(record.error), *commands)


def stand_down(state: JobState, now: float) -> Step:
    """Stop everything. Another JobMaster brings up what follows, on the slots that are held."""
    if state.standing_down:
        return state, ()
    state, commands = stop(state, frozenset(state.tasks), now)
    state = replace(state.to(JobStatus.RESTARTING, now), restart_at=None, lacking_since=None, standing_down=True)
    return state, commands


def go_on(state: JobState, now: float) -> JobState:
    """Bring the job back after it stood down in vain. Its tasks may still be ending."""
    if not state.standing_down or state.outcome is not None:
        return state
    state = begin_rollout(state, Rollout(now, cause="no other version followed"))
    return replace(state, standing_down=False, stood_down=False, on_trial=False, restart_at=now)


def _stop_regions(state: JobState, tasks: frozenset[TaskId], now: float) -> Step:
    if state.draining and tasks:  # the others stop reading where the drain began, and would miss later input
        return stop(state, frozenset(state.tasks), now)
    return stop(state, frozenset(t for task in tasks for t in state.regions[task]), now)


def _hopeless(error: ErrorInfo) -> bool:
    """Whether a restart would meet the same failure. An unforeseen failure is worth another try."""
    return error.consequence in (Consequence.FATAL, Consequence.REFUSED) and error.kind is not Kind.UNFORESEEN


def noted(state: JobState, record: FailureRecord, now: float) -> JobState:
    return replace(state, failures=(*state.failures, Failure(now, record))[-KEPT_FAILURES:])


def begin_rollout(state: JobState, rollout: Rollout) -> JobState:
    rollouts = (*state.rollouts, rollout)
    restarts = state.restarts if rollout.rescale else state.restarts + 1
    return replace(state, restarts=restarts, rollouts=(*rollouts[:1], *rollouts[1:][-KEPT_ROLLOUTS:]))


def stop(state: JobState, tasks: frozenset[TaskId], now: float) -> Step:
    """Stop these tasks. The others run on, without checkpoints."""
    cancels: list[ev.Command] = []
    for task_id in sorted(tasks):
        execution = state.executions[task_id]
        if execution.state in (ExecutionState.CREATED, ExecutionState.SCHEDULED):
            state = state.with_execution(execution.to(ExecutionState.CANCELED, now))
        elif execution.on_task_manager and execution.state is not ExecutionState.CANCELING:
            state = state.with_execution(execution.to(ExecutionState.CANCELING, now))
            if execution.attempt_id is not None:
                cancels.append(ev.Cancel(execution.attempt_id, execution.address))
    survivors = frozenset(
        e.attempt_id
        for e in state.executions.values()
        if e.state is ExecutionState.RUNNING and e.attempt_id is not None
    )
    state = replace(state, finding=frozenset(), draining=False, rescaling=False, growth=None, idle={})
    return state, (ev.StopCheckpoints(survivors), *cancels)


def end(state: JobState, outcome: JobStatus, now: float) -> Step:
    """Stop everything for good. The job reaches `outcome` once nothing runs and the sinks are settled."""
    state, commands = stop(state, frozenset(state.tasks), now)
    state = replace(state, outcome=outcome, restart_at=None, lacking_since=None)
    if not state.pool.needs:
        return state, commands
    return replace(state, pool=slot_pool.renewed(state.pool)), commands


def gone(state: JobState, execution: Execution, now: float) -> Execution:
    """Return the execution, which was told to end and of which nothing runs any more, in its final state."""
    finished = state.outcome is JobStatus.FINISHED
    return execution.to(ExecutionState.FINISHED if finished else ExecutionState.CANCELED, now)
