"""The decisions of one JobMaster: schedule, deploy, finish, cancel. Pure.

`step` applies an event and returns the new state and commands. An event first changes what it is about: executions, the
slot pool, or the phase. Then the phase does what has become possible (`_advance`), which may lead to the next phase.
What a phase does has its own module; `failover` decides what a failure means, `sizing` how many slots are enough.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from minflinkd.jobmaster.scheduler import (
    deploying,
    ending,
    failover,
    reconciling,
    reserving,
    running,
    sizing,
    slot_pool,
    waiting,
)
from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler.phases import (
    ComingUp,
    Ended,
    FindingRestorePoint,
    Initializing,
    Reconciling,
    Rescaling,
    Running,
    Settling,
    StandingDown,
    StoodDown,
    Stopping,
    WaitingForSlots,
)
from minflinkd.jobmaster.scheduler.rollout import Rollout
from minflinkd.jobmaster.scheduler.state import JobState, Takeover
from minflinkd.jobmaster.scheduler.step import Step
from minflinkd.rpc.jobs import ExecutionState, FailureRecord, JobStatus
from minflinkd.rpc.messages import TaskState, TaskStatus
from minflinkd.runtime.errors import Consequence, ErrorInfo
from minflinkd.runtime.ids import AllocationId, AttemptId, Chance

_REPORTED = {
    TaskState.DEPLOYING: ExecutionState.DEPLOYING,
    TaskState.INITIALIZING: ExecutionState.INITIALIZING,
    TaskState.RUNNING: ExecutionState.RUNNING,
    TaskState.INPUT_ENDED: ExecutionState.RUNNING,
}
_RANK = (ExecutionState.DEPLOYING, ExecutionState.INITIALIZING, ExecutionState.RUNNING)
_OVER = frozenset({TaskState.CANCELED, TaskState.FAILED})
_TASK_LOST = ErrorInfo(
    code="task-lost",
    message="the TaskManager does not run the task any more",
    consequence=Consequence.RETRYABLE,
)


def step(chance: Chance, state: JobState, event: ev.Event, now: float) -> tuple[JobState, tuple[ev.Command, ...]]:
    """Apply one event. Late events, from older attempts or rounds, change nothing."""
    if isinstance(state.phase, Ended):
        return state, ()
    this = Step(chance, state, now)
    _react(this, event)
    before = None
    while type(this.state.phase) is not before:
        before = type(this.state.phase)
        _advance(this)
    if isinstance(this.state.phase, WaitingForSlots | FindingRestorePoint | ComingUp | Running | Rescaling):
        pool = slot_pool.ask(this.state.pool, sizing.wants(this.state, now), chance.ids)
        if pool is not this.state.pool:
            this.set(pool=pool)
    return this.result()


def next_wakeup(state: JobState, now: float) -> float | None:
    """Return when a Tick is due, on the same clock as `now`, which is the time of the last step."""
    times: tuple[float | None, ...] = ()
    match state.phase:
        case Reconciling(until):
            times = (until,)
        case WaitingForSlots() | FindingRestorePoint():
            times = waiting.next_wakeup(state)
        case Running() as phase:
            times = running.next_wakeup(state, phase)
        case Rescaling(before):
            times = running.next_wakeup(state, before)
        case StandingDown(not_before):
            times = (not_before,)
        case Stopping():
            times = (ending.settling_due(state),)
    # Every step checks the time. What is still overdue after a step waits for an event.
    return min((time for time in times if time is not None and time > now), default=None)


def _advance(this: Step) -> None:
    """Do what has become possible in this phase."""
    match this.state.phase:
        case Reconciling() as phase:
            for failed in reconciling.advance(this, phase):
                failover.found_failed(this, failed)
        case WaitingForSlots() as phase:
            waiting.advance(this, phase)
        case ComingUp():
            deploying.advance(this)
        case Running() as phase:
            running.advance(this, phase)
        case Rescaling(before):
            running.note_progress(this, before)
        case StandingDown() as phase:
            ending.advance_standing_down(this, phase)
        case Stopping() as phase:
            ending.advance_stopping(this, phase)
        case Initializing() | FindingRestorePoint() | StoodDown() | Settling() | Ended():
            pass  # an event is awaited


def _react(this: Step, event: ev.Event) -> None:
    """Apply the event. What a phase does not expect changes nothing: it is late."""
    match event:
        case ev.Started():
            _started(this, event)
        case ev.CancelRequested():
            if this.state.outcome is None:
                failover.end(this, JobStatus.CANCELED)
        case ev.StandDown():
            if this.state.outcome is None and not isinstance(this.state.phase, StandingDown | StoodDown):
                failover.stand_down(this)
        case ev.GoOn():
            if isinstance(this.state.phase, StandingDown | StoodDown):
                ending.go_on(this)
        case ev.Proven():
            this.set(on_trial=False)
        case ev.SlotsReserved(groups, libraries, profiles):
            reserving.reserve(this, groups, libraries, profiles)
        case ev.Draining(resource_id, draining):
            this.set(pool=slot_pool.drained(this.state.pool, resource_id, draining))
        case ev.SinksSettled(error):
            if isinstance(phase := this.state.phase, Settling):
                ending.settled(this, phase, error)
        case ev.Tick():
            if isinstance(phase := this.state.phase, WaitingForSlots | FindingRestorePoint):
                waiting.overdue(this, phase)
        case ev.RestorePointFound() | ev.RestorePointFailed() | ev.AllTasksNeeded():
            if isinstance(phase := this.state.phase, FindingRestorePoint) and event.round == this.state.round:
                _restore_point(this, phase, event)
        case ev.DamageFound(error):
            this.note(FailureRecord(timestamp_ms=0, error=error))
        case ev.SlotsOffered() | ev.SlotsGone() | ev.TaskManagerGone() | ev.NeedsAnswered():
            _slots_changed(this, event)
        case ev.DeployAccepted() | ev.DeployFailed() | ev.DeployUnanswered() | ev.AttemptGone() | ev.TaskProgressed():
            _attempt_changed(this, event)
        case ev.TaskResized(attempt_id, parallelism):
            running.task_resized(this, attempt_id, parallelism)
        case ev.TaskNotResized(attempt_id):
            running.task_not_resized(this, attempt_id)
        case ev.TaskChanged(status):
            _task_changed(this, status)
        case _:
            _while_running(this, event)


def _started(this: Step, event: ev.Started) -> None:
    ran_with: dict[str, int] = {}
    for task_id, parallelism in sorted(event.ran_with.items()):
        if task_id in this.state.tasks and parallelism:
            group = this.state.group_of(task_id)
            ran_with[group] = max(parallelism, ran_with.get(group, 0))
    for task_id, rows in event.rows.items():
        this.put(replace(this.state.executions[task_id], base=rows))
    this.set(
        rollouts=(Rollout(this.now),),
        has_run=event.recovered,
        ran_with=ran_with,
        proven=ran_with,
        restarts=event.past.restarts,
        history=event.past.history,
        streak=event.past.streak,
        failures=event.past.failures,
        takeover=Takeover(this.now) if event.recovered or event.cancelled else None,
    )
    if event.cancelled:
        failover.end(this, JobStatus.CANCELED)
    elif this.state.outcome is None and event.predecessors is not None:
        reconciling.begin(this, event.predecessors)
    elif this.state.outcome is None:
        this.enter(WaitingForSlots())


_Outcome = ev.RestorePointFound | ev.RestorePointFailed | ev.AllTasksNeeded


def _restore_point(this: Step, phase: FindingRestorePoint, event: _Outcome) -> None:
    match event:
        case ev.AllTasksNeeded():
            this.stop(this.state.tasks)
            this.enter(WaitingForSlots(phase.lacking_since))
        case ev.RestorePointFound():
            if event.warning is not None:
                this.note(FailureRecord(timestamp_ms=0, error=event.warning))
            deploying.deploy(this, phase, event)
        case ev.RestorePointFailed(error=error, all_tasks=all_tasks):
            failover.fail(this, FailureRecord(timestamp_ms=0, error=error), this.state.tasks if all_tasks else ())


def _while_running(this: Step, event: ev.Event) -> None:
    """Apply an event that only says something of a job whose tasks all run."""
    state = this.state
    phase, now_running = state.phase, state.running
    if now_running is None:
        return
    match event:
        case ev.CheckpointCompleted():
            _enter_running(this, replace(now_running, checkpointed=True))
        case ev.DrainBegun():
            _enter_running(this, replace(now_running, draining=True))
        case ev.CheckpointsFailed(error):
            failover.fail(this, FailureRecord(timestamp_ms=0, error=error), state.tasks)
        case ev.FinalCheckpointDone(number) if number == state.round and now_running.final_checkpoint_asked:
            failover.end(this, JobStatus.FINISHED)
        case ev.StopDone(number) if number == state.round:
            failover.end(this, JobStatus.FINISHED)
        case ev.RescaleCheckpointDone(number) if number == state.round and isinstance(phase, Rescaling):
            running.rescale_checkpoint_done(this)
        case ev.RescaleCheckpointFailed(number) if number == state.round and isinstance(phase, Rescaling):
            running.rescale_checkpoint_failed(this, phase)


def _enter_running(this: Step, changed: Running) -> None:
    this.enter(Rescaling(changed) if isinstance(this.state.phase, Rescaling) else changed)


def _slots_changed(this: Step, event: ev.SlotsOffered | ev.SlotsGone | ev.TaskManagerGone | ev.NeedsAnswered) -> None:
    state = this.state
    match event:
        case ev.SlotsOffered():
            _slots_offered(this, event)
        case ev.SlotsGone(allocations, reason):
            failover.slots_gone(this, allocations, reason)
        case ev.TaskManagerGone(resource_id, reason):
            failover.task_manager_gone(this, resource_id, reason)
        case ev.NeedsAnswered(refused, why, largest):
            # A job that runs goes on, and waits for what is refused as for the rest.
            why = {**why, **{need: reason for need, reason in refused.items() if need in state.pool.needs}}
            if (why, largest) != (state.waiting, state.largest):
                this.set(waiting=why, largest=largest)
            if isinstance(state.phase, WaitingForSlots | FindingRestorePoint):
                waiting.refused(this, state.phase, refused)


def _slots_offered(this: Step, event: ev.SlotsOffered) -> None:
    state, phase, takeover = this.state, this.state.phase, this.state.takeover
    if isinstance(phase, Settling) or (isinstance(phase, Stopping) and takeover is None):
        return
    in_use: Collection[AllocationId] = ()
    covering = 0
    if isinstance(phase, Reconciling):
        live = [task for task in event.tasks if task.status.state not in _OVER]
        in_use, covering = {task.allocation_id for task in live}, reconciling.slots_used(state, live)
    pool = slot_pool.drained(state.pool, event.resource_id, event.draining)
    there = slot_pool.Session(event.resource_id, event.address, event.data_url, event.libraries, event.profile)
    pool = slot_pool.offered(pool, there, event.offers, in_use=in_use, covering=covering)
    this.set(pool=pool, takeover=None if takeover is None else replace(takeover, offered_at=this.now))
    if isinstance(phase, Reconciling):
        reconciling.offered(this, phase, event)
    else:
        reconciling.dismiss_strangers(this, event)


_AttemptEvent = ev.DeployAccepted | ev.DeployFailed | ev.DeployUnanswered | ev.AttemptGone | ev.TaskProgressed


def _attempt_changed(this: Step, event: _AttemptEvent) -> None:
    match event:
        case ev.DeployFailed(attempt_id, error):
            failover.attempt_failed(this, attempt_id, error)
        case ev.DeployUnanswered(attempt_id, error):
            failover.deploy_unanswered(this, attempt_id, error)
        case ev.AttemptGone(attempt_id):
            _attempt_gone(this, attempt_id)
        case ev.DeployAccepted(attempt_id):
            if (execution := this.state.by_attempt(attempt_id)) is not None:
                this.put(replace(execution, accepted=True))
        case ev.TaskProgressed(attempt_id, metrics):
            execution = this.state.by_attempt(attempt_id)
            if execution is not None and execution.on_task_manager:
                this.put(replace(execution, metrics=metrics))


def _attempt_gone(this: Step, attempt_id: AttemptId) -> None:
    if attempt_id in this.state.leaving:
        this.set(leaving={a: r for a, r in this.state.leaving.items() if a != attempt_id})
        return
    execution = this.state.by_attempt(attempt_id)
    if execution is None or not execution.on_task_manager:
        return
    if execution.state is ExecutionState.CANCELING:
        failover.put_gone(this, execution)
    else:
        failover.attempt_failed(this, attempt_id, _TASK_LOST)


def _task_changed(this: Step, status: TaskStatus) -> None:
    if isinstance(phase := this.state.phase, Reconciling):
        reconciling.changed(this, phase, status)
    if status.attempt_id in this.state.leaving and status.state in _OVER:
        _attempt_gone(this, status.attempt_id)
        return
    execution = this.state.by_attempt(status.attempt_id)
    if execution is None or not execution.on_task_manager:
        return
    if status.state is TaskState.FAILED:
        failover.attempt_failed(this, status.attempt_id, status.error or failover.UNEXPLAINED)
        return
    if status.state is TaskState.CANCELED:
        _attempt_gone(this, status.attempt_id)
        return
    reported = _REPORTED.get(status.state)
    if reported is None or execution.state is ExecutionState.CANCELING:
        return
    if _RANK.index(reported) > _RANK.index(execution.state):
        execution = execution.to(reported, this.now)
    ended = execution.input_ended or status.state is TaskState.INPUT_ENDED
    this.put(replace(execution, metrics=status.metrics, input_ended=ended))
