"""The decisions of one JobMaster: schedule, deploy, finish, cancel. Pure.

`step` applies an event and returns the new state and commands. `_advance` then does what any event may have made
possible. `failover` handles failures; `sizing` and `growth` decide the number of slots.
"""

from __future__ import annotations

from dataclasses import replace

from msgspec.structs import replace as copy

from minflinkd.jobgraph.model import Task
from minflinkd.jobmaster import events as ev
from minflinkd.jobmaster import failover, growth, sizing, slot_pool
from minflinkd.jobmaster.chance import Chance
from minflinkd.jobmaster.job_state import JobState, Step
from minflinkd.jobmaster.rollout import Rollout
from minflinkd.jobmaster.streak import NO_FAILURES
from minflinkd.rpc.jobs import ExecutionState, FailureRecord, JobStatus
from minflinkd.rpc.messages import ExchangeSource, TaskState, TaskStatus
from minflinkd.rpc.snapshot import NO_ROWS
from minflinkd.runtime.errors import Consequence, ErrorInfo, Kind

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
_UNEXPLAINED = ErrorInfo(code="internal", message="the task failed and did not say why", kind=Kind.UNFORESEEN)
_TASK_LOST = ErrorInfo(
    code="task-lost",
    message="the TaskManager does not run the task any more",
    consequence=Consequence.RETRYABLE,
)
_UNSETTLED = "the sinks could not be settled; what is staged stays, and so do the job's checkpoints: "


def step(chance: Chance, state: JobState, event: ev.Event, now: float) -> Step:
    """Apply one event. Late events, from older attempts or rounds, change nothing."""
    state, commands = _react(chance, state, event, now)
    state, more = _advance(chance, state, now)
    return state, (*commands, *more)


def next_wakeup(state: JobState, now: float) -> float | None:
    """Return when a Tick is due, on the same clock as `now`, which is the time of the last step."""
    times = [state.restart_at, growth.growth_due(state), growth.idle_due(state), _settling_due(state)]
    if state.running_since is not None and state.streak.failures and state.checkpointed:
        times.append(state.running_since + state.streak.probation)
    if state.lacking_since is not None:
        times.append(state.lacking_since + state.options.resource_wait_timeout)
        times.append(state.lacking_since + state.options.slot_request_timeout)
    # Every step checks the time. What is still overdue after a step waits for an event.
    return min((time for time in times if time is not None and time > now), default=None)


def _react(chance: Chance, state: JobState, event: ev.Event, now: float) -> Step:
    if state.status.terminal:
        return state, ()
    match event:
        case ev.Started():
            return _started(state, event, now)
        case ev.SlotsOffered(resource_id, address, offers, data_url):
            if state.outcome is not None and (state.settling or state.heir_since is None):
                return state, ()
            inherited_at = None if state.heir_since is None else now
            pool = slot_pool.offered(state.pool, resource_id, address, offers, data_url)
            return replace(state, pool=pool, inherited_at=inherited_at), ()
        case ev.SlotsGone(allocations, reason):
            return failover.slots_gone(chance, state, allocations, reason, now)
        case ev.TaskManagerGone(resource_id, reason):
            return failover.task_manager_gone(chance, state, resource_id, reason, now)
        case ev.NeedsAnswered(refused, waiting, largest):
            if (waiting, largest) != (state.waiting, state.largest):
                state = replace(state, waiting=waiting, largest=largest)
            return failover.refused(chance, state, refused, now)
        case ev.RestorePointFound():
            return _deploy(chance, state, event, now)
        case ev.RestorePointFailed(number, error):
            if number != state.round or not state.finding:
                return state, ()
            return failover.fail(chance, state, FailureRecord(timestamp_ms=0, error=error), frozenset(), now)
        case ev.DeployAccepted(attempt_id):
            execution = state.by_attempt(attempt_id)
            return state if execution is None else state.with_execution(replace(execution, accepted=True)), ()
        case ev.DeployFailed(attempt_id, error):
            return failover.attempt_failed(chance, state, attempt_id, error, now)
        case ev.DeployUnanswered(attempt_id, error):
            return failover.deploy_unanswered(chance, state, attempt_id, error, now)
        case ev.TaskChanged(status):
            return _task_changed(chance, state, status, now)
        case ev.TaskProgressed(attempt_id, metrics):
            execution = state.by_attempt(attempt_id)
            if execution is None or not execution.on_task_manager:
                return state, ()
            return state.with_execution(replace(execution, metrics=metrics)), ()
        case ev.AttemptGone(attempt_id):
            execution = state.by_attempt(attempt_id)
            if execution is None or not execution.on_task_manager:
                return state, ()
            if execution.state is not ExecutionState.CANCELING:
                return failover.attempt_failed(chance, state, attempt_id, _TASK_LOST, now)
            return state.with_execution(failover.gone(state, execution, now)), ()
        case ev.CheckpointsFailed(error):
            if state.status is not JobStatus.RUNNING:
                return state, ()
            record = FailureRecord(timestamp_ms=0, error=error)
            return failover.fail(chance, state, record, frozenset(state.tasks), now)
        case ev.CheckpointCompleted():
            return replace(state, checkpointed=state.status is JobStatus.RUNNING), ()
        case ev.FinalCheckpointDone(number):
            current = state.status is JobStatus.RUNNING and number == state.round
            if not current or not state.final_checkpoint_asked or state.outcome is not None:
                return state, ()
            return failover.end(state, JobStatus.FINISHED, now)
        case ev.StopDone(number):
            if state.status is not JobStatus.RUNNING or number != state.round or state.outcome is not None:
                return state, ()
            return failover.end(state, JobStatus.FINISHED, now)
        case ev.RescaleCheckpointDone(number):
            return growth.checkpoint_done(state, number, now)
        case ev.RescaleCheckpointFailed(number):
            return growth.checkpoint_failed(state, number, now), ()
        case ev.SlotsReserved(groups):
            return growth.reserve(state, groups), ()
        case ev.DrainBegun():
            return replace(state, draining=True), ()
        case ev.StandDown():
            return (state, ()) if state.outcome is not None else failover.stand_down(state, now)
        case ev.GoOn():
            return failover.go_on(state, now), ()
        case ev.Proven():
            return replace(state, on_trial=False), ()
        case ev.CancelRequested():
            if state.outcome is not None:
                return state, ()
            state = replace(state, standing_down=False, stood_down=False)
            return failover.end(state.to(JobStatus.CANCELLING, now), JobStatus.CANCELED, now)
        case ev.SinksSettled(error):
            return _settled(state, error, now) if state.settling else (state, ())
        case ev.Tick():
            return failover.overdue(chance, state, now)


def _started(state: JobState, event: ev.Started, now: float) -> Step:
    ran_with: dict[str, int] = {}
    for task_id, parallelism in sorted(event.ran_with.items()):
        if task_id in state.tasks and parallelism:
            group = state.group_of(task_id)
            ran_with[group] = max(parallelism, ran_with.get(group, 0))
    for task_id, rows in event.rows.items():
        state = state.with_execution(replace(state.executions[task_id], base=rows))
    state = replace(state, rollouts=(Rollout(now),), has_run=event.recovered, ran_with=ran_with, proven=ran_with)
    past = event.past
    state = replace(state, restarts=past.restarts, history=past.history, streak=past.streak, failures=past.failures)
    if event.recovered or event.cancelled:
        state = replace(state, heir_since=now)
    if event.cancelled:
        return failover.end(state.to(JobStatus.CANCELLING, now), JobStatus.CANCELED, now)
    return (state if state.outcome is not None else state.to(JobStatus.CREATED, now)), ()


def _settling_due(state: JobState) -> float | None:
    """Return when an ending job that was taken over from an earlier JobMaster may settle its sinks (R13).

    Until then TaskManagers may still be ending what the earlier JobMaster deployed. Each one offers its slots when it
    is done. Nobody knows how many TaskManagers there are, so the job waits for a while after the last offer.
    """
    if state.outcome is None or state.settling or state.heir_since is None:
        return None
    options = state.options
    latest = state.heir_since + options.cancellation_timeout + options.heartbeat_timeout
    # If no checkpoint was found, nothing that an old attempt stages or uploads is ever used.
    since = state.inherited_at if state.has_run else max(state.heir_since, state.inherited_at or 0.0)
    return latest if since is None else min(latest, since + options.heartbeat_timeout)


def _advance(chance: Chance, state: JobState, now: float) -> Step:
    """Do what has become possible."""
    if state.status.terminal or (state.status is JobStatus.INITIALIZING and state.outcome is None):
        return state, ()
    if state.outcome is not None:
        due = _settling_due(state)
        if state.live or state.settling or (due is not None and now < due):
            return state, ()
        # Free the slots first: the sinks' storage may be slow or unreachable.
        state, freed = growth.give_back(state, tuple(state.pool.held), job_ended=True)
        return replace(state, settling=True), (*freed, ev.SettleSinks())
    if state.standing_down:
        if state.live or state.stood_down:
            return state, ()
        return replace(state, stood_down=True), (ev.StoodDown(),)
    if state.status is not JobStatus.RUNNING and _all_run(state):
        state, commands = _running(state, now)
    elif state.status is JobStatus.RUNNING:
        state, commands = _run_on(state, now)
    else:
        state, commands = _bring_up(state, now)
    pool = slot_pool.ask(state.pool, sizing.wants(state, now), chance.ids)
    if pool is not state.pool:
        state = replace(state, pool=pool)
    return state, commands


def _all_run(state: JobState) -> bool:
    return all(e.state is ExecutionState.RUNNING for e in state.executions.values())


def _running(state: JobState, now: float) -> Step:
    state = replace(
        state.to(JobStatus.RUNNING, now).marked("running", now),
        has_run=True,
        checkpointed=state.options.checkpoints.interval <= 0,
        heir_since=None,
        lacking_since=None,
        proven={group: share.parallelism for group, share in state.placement.items()},
        proven_on=state.placement,
        failed_growths=state.failed_growths if state.narrowed else 0,
    )
    attempts = {t: e.attempt_id for t, e in state.executions.items() if e.attempt_id is not None}
    state, commands = _run_on(state, now)
    return state, (ev.StartCheckpoints(attempts), *commands)


def _run_on(state: JobState, now: float) -> Step:
    if state.has_processed:
        state = state.marked("first_batch", now)
    running_since = state.entered[JobStatus.RUNNING]
    if state.streak.failures and state.streak.is_over(running_since, now, checkpointed=state.checkpointed):
        state = replace(state, streak=NO_FAILURES)
    if not state.final_checkpoint_asked and all(e.input_ended for e in state.executions.values()):
        state = replace(state, final_checkpoint_asked=True)
        return state, (ev.TakeFinalCheckpoint(state.round),)
    return growth.use_slots(state, now)


def _bring_up(state: JobState, now: float) -> Step:
    """Deploy the waiting tasks once all stopping tasks have stopped and there are enough slots."""
    idle = sizing.idle_tasks(state)
    stopping = any(e.state is ExecutionState.CANCELING for e in state.executions.values())
    if not idle or stopping or state.finding:
        return state, ()
    placement = sizing.plan(state)
    state = state.marked("canceled", now)
    complete = all(g in placement and placement[g].parallelism >= b.desired for g, b in state.pool.groups.items())
    lacking_since = None if complete else now if state.lacking_since is None else state.lacking_since
    state = replace(state, lacking_since=lacking_since)
    enough = sizing.enough(state, placement, now)
    if enough:
        state = state.marked("slots", now)
    if state.restart_at is not None and now < state.restart_at:
        return state, ()
    state = replace(state, restart_at=None)
    if enough:
        state = replace(state, round=state.round + 1, finding=idle)
        return state, (ev.FindRestorePoint(state.round, idle),)
    if sizing.lean(state, now) and state.live and sizing.enough(state, sizing.plan_anew(state), now):
        # All groups stop, so that they can divide the slots that are held.
        return failover.stop(state, frozenset(state.tasks), now)
    return state, ()


def _deploy(chance: Chance, state: JobState, event: ev.RestorePointFound, now: float) -> Step:
    if event.round != state.round or not state.finding:
        return state, ()
    tasks, placement = state.finding, sizing.plan(state)
    state = replace(state, finding=frozenset())
    if state.outcome is not None or not sizing.enough(state, placement, now):
        return state, ()  # the job ends or has lost slots; `_advance` asks again once there are enough
    state = state.marked("restore_point", now)
    commands: list[ev.Command] = []
    for task_id in sorted(tasks):
        task, old = state.tasks[task_id], state.executions[task_id]
        share = placement[task.slot_sharing_group]
        attempt, allocation = chance.ids.attempt(), share.allocations[0]
        fresh = replace(
            old if old.state is ExecutionState.CREATED else old.next_attempt(),
            parallelism=min(task.parallelism, share.parallelism),
            attempt_id=attempt,
            allocation_id=allocation,
            resource_id=share.resource_id,
            address=state.pool.held[allocation].address,
            base=event.rows.get(task_id, NO_ROWS),
        )
        state = state.with_execution(fresh.to(ExecutionState.SCHEDULED, now).to(ExecutionState.DEPLOYING, now))
    for task_id in sorted(tasks):
        execution = state.executions[task_id]
        assert execution.attempt_id is not None
        assert execution.allocation_id is not None
        commands.append(
            ev.Deploy(
                task_id=task_id,
                parallelism=execution.parallelism,
                attempt_id=execution.attempt_id,
                number=execution.number,
                allocation_id=execution.allocation_id,
                address=execution.address,
                restore=event.tasks.get(task_id),
                inputs=_inputs(state, state.tasks[task_id]),
            )
        )
    state = replace(
        state,
        placement=placement,
        ran_with={group: share.parallelism for group, share in placement.items()},
        lacking_since=None,
        changed_at=now,
        final_checkpoint_asked=False,
        rollouts=(*state.rollouts[:-1], replace(state.rollouts[-1], checkpoint_id=event.checkpoint_id)),
    )
    return state.marked("deployed", now), tuple(commands)


def _inputs(state: JobState, task: Task) -> tuple[ExchangeSource, ...]:
    """Return where the task reads its inputs. All tasks of its region are deployed by the same step."""
    owner = {vertex.id: other.id for other in state.tasks.values() for vertex in other.vertices}
    sources = []
    for edge in task.inputs:
        upstream = state.executions[owner[edge.id]]
        assert upstream.attempt_id is not None
        assert upstream.resource_id is not None
        held = state.pool.held.get(upstream.allocation_id) if upstream.allocation_id is not None else None
        sources.append(
            ExchangeSource(
                vertex_id=edge.id,
                attempt_id=upstream.attempt_id,
                resource_id=upstream.resource_id,
                data_url=held.data_url if held is not None else "",
            )
        )
    return tuple(sources)


def _task_changed(chance: Chance, state: JobState, status: TaskStatus, now: float) -> Step:
    execution = state.by_attempt(status.attempt_id)
    if execution is None or not execution.on_task_manager:
        return state, ()
    if status.state is TaskState.FAILED:
        error = status.error or _UNEXPLAINED
        return failover.attempt_failed(chance, state, status.attempt_id, error, now)
    if status.state is TaskState.CANCELED:
        return _react(chance, state, ev.AttemptGone(status.attempt_id), now)
    reported = _REPORTED.get(status.state)
    if reported is None or execution.state is ExecutionState.CANCELING:
        return state, ()
    if _RANK.index(reported) > _RANK.index(execution.state):
        execution = execution.to(reported, now)
    ended = execution.input_ended or status.state is TaskState.INPUT_ENDED
    return state.with_execution(replace(execution, metrics=status.metrics, input_ended=ended)), ()


def _settled(state: JobState, error: ErrorInfo | None, now: float) -> Step:
    if error is not None:
        record = FailureRecord(timestamp_ms=0, error=copy(error, message=_UNSETTLED + error.message))
        state = failover.noted(replace(state, sinks_error=error), record, now)
    outcome = state.outcome or JobStatus.FAILED
    return replace(state, settling=False).to(outcome, now), (ev.End(outcome),)
