"""The decisions of a job's checkpoint coordinator, as a pure machine (C20 - C23, C4): no I/O, no clock.

A checkpoint goes: request -> set-up (id) -> checked again -> master hooks have answered -> triggered at all tasks ->
acknowledged by all -> metadata written (from here on it is the job's latest) -> older ones subsumed -> tasks told to
publish -> confirmed by each.

`triggering` begins a checkpoint, `completing` completes it, `aborting` fails it, and `doomed` decides when a file may
be deleted. `driver` carries out the commands.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from minflinkd.checkpoint.causes import FailureCause
from minflinkd.checkpoint.machine import aborting, completing, doomed, triggering
from minflinkd.checkpoint.machine import events as e
from minflinkd.checkpoint.machine.pending import Phase
from minflinkd.checkpoint.machine.registry import Registry
from minflinkd.checkpoint.machine.state import Final, Request, State
from minflinkd.checkpoint.machine.step import Step
from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.runtime.ids import AttemptId, JobId, TaskId
from minflinkd.runtime.machine import InvariantViolated


def initial(
    job_id: JobId,
    options: CheckpointOptions,
    completed: tuple[CompletedCheckpoint, ...] = (),
    *,
    last_id: int = 0,
    sizes: Mapping[str, int] | None = None,
    damaged: Collection[int] = (),
) -> State:
    """Return a coordinator state over what the store holds.

    It is not known what was published before, so all tasks owe everything again. `sizes`: bytes of the physical files
    that exist. `damaged`: those that the job has given up for an earlier one.
    """
    skipped = frozenset(c.checkpoint_id for c in completed) & frozenset(damaged)
    sound = tuple(c for c in completed if c.checkpoint_id not in skipped)
    registry = Registry.of(sound)
    return State(
        job_id=job_id,
        options=options,
        completed=completed,
        skipped=skipped,
        unconfirmed={c.checkpoint_id: frozenset(task.task_id for task in c.tasks) for c in sound if c.tasks},
        last_id=max([last_id, *(c.checkpoint_id for c in completed)]),
        registry=registry,
        sizes={name: size for name, size in (sizes or {}).items() if name in registry.files},
    )


def step(state: State, event: e.Event, now: float) -> tuple[State, tuple[e.Command, ...]]:
    """Handle one event, then do whatever it and the time make possible. Pure. `now` is monotonic, in seconds."""
    this = Step(state, now)
    _handle(this, event)
    _settle(this)
    return this.result()


def _handle(this: Step, event: e.Event) -> None:
    match event:
        case e.Tick():
            pass
        case e.TriggerRequested(number, kind, forced, stop, full):
            triggering.submit(this, Request(number, kind, forced, stop, full))
        case e.DrainBegun():
            _drain_begun(this)
        case e.Unpinned(checkpoint_id):
            this.set(pinned=this.state.pinned - {checkpoint_id})
        case e.ReadBegun(checkpoint_id):
            completing.read_begun(this, checkpoint_id)
        case e.ReadEnded(checkpoint_id):
            completing.read_ended(this, checkpoint_id)
        case e.FinalRequested():
            if this.state.attempts and this.state.final is None:
                this.set(final=Final(retry_at=this.now))
        case e.TasksRunning(attempts, periodic):
            _tasks_running(this, dict(attempts), periodic=periodic)
        case e.PeriodicBegins():
            _periodic_begins(this)
        case e.PeriodicHastened():
            if this.state.next_trigger is not None:
                this.set(next_trigger=min(this.state.next_trigger, this.now))
        case e.TasksStopped(survivors):
            _tasks_stopped(this, FailureCause.TASK_FAILURE, survivors)
        case e.TasksAdopted(attempts, unsettled):
            _tasks_adopted(this, attempts, unsettled)
        case e.RestorePointTaken(checkpoint_id):
            this.set(restored=checkpoint_id)
        case e.FellBack(skipped):
            _fell_back(this, skipped)
        case e.SetUpDone(number, checkpoint_id, at_ms):
            triggering.set_up_done(this, number, checkpoint_id, at_ms)
        case e.SetUpFailed(number, error):
            if this.state.setting_up is not None and this.state.setting_up.request.number == number:
                triggering.set_up_failed(this, error)
        case e.HookAnswered(checkpoint_id, hook, hook_state):
            triggering.hook_answered(this, checkpoint_id, hook, hook_state)
        case e.HookFailed(checkpoint_id, error):
            aborting.hook_failed(this, checkpoint_id, error)
        case e.TriggerTaken(checkpoint_id, attempt):
            triggering.trigger_taken(this, checkpoint_id, attempt)
        case e.TriggerFailed(checkpoint_id, attempt, error):
            aborting.abort_for(this, checkpoint_id, attempt, FailureCause.TRIGGER_FAILURE, error)
        case e.Acknowledged(snapshot):
            completing.acknowledged(this, snapshot)
        case e.Declined(checkpoint_id, attempt, error):
            aborting.declined(this, checkpoint_id, attempt, error)
        case e.MetadataWritten(checkpoint_id):
            completing.complete(this, this.state.pending[checkpoint_id])
        case e.MetadataFailed(checkpoint_id, error):
            aborting.abort(this, this.state.pending[checkpoint_id], FailureCause.FINALIZE_FAILURE, error)
        case e.TaskNotified(checkpoint_id, attempt):
            completing.confirm(this, [checkpoint_id], {t for t, a in this.state.attempts.items() if a == attempt})
        case e.MetadataDiscarded(checkpoint_id):
            doomed.metadata_discarded(this, checkpoint_id)
        case e.FilesDeleted(files):
            doomed.deleted(this, files)
        case e.Stopped():
            this.set(stopped=True)
            _tasks_stopped(this, FailureCause.SHUT_DOWN)


def _settle(this: Step) -> None:
    """Do everything that the time and the new state make possible. Nothing that could be done now is left."""
    aborting.expire(this)
    triggering.periodic(this)
    triggering.begin_queued(this)
    triggering.begin_final(this)
    completing.subsume(this)
    doomed.delete(this)


def _drain_begun(this: Step) -> None:
    """A cut from now on might include the end of time. A job restored from it would drop later rows."""
    this.set(draining=True)
    aborting.abort_all(this, FailureCause.JOB_STOPS)


def _periodic_begins(this: Step) -> None:
    interval = this.state.options.interval
    if this.state.attempts and this.state.next_trigger is None and interval > 0:
        this.set(next_trigger=this.now + interval)


def _tasks_running(this: Step, attempts: dict[TaskId, AttemptId], *, periodic: bool) -> None:
    if this.state.stopped or attempts == this.state.attempts:
        return
    if any(checkpoint.phase is Phase.FINALIZING for checkpoint in this.state.pending.values()):
        raise InvariantViolated(
            "tasks run although the latest checkpoint is not settled", hint="ask for the restore point first"
        )
    if this.state.attempts:
        _tasks_stopped(this, FailureCause.TASK_FAILURE)
    interval, restored = this.state.options.interval, this.state.restored
    fresh = {task for task, attempt in attempts.items() if attempt not in this.state.survivors}
    next_trigger = this.now + interval if periodic and interval > 0 else None
    this.set(attempts=attempts, survivors=frozenset(), restored=None, next_trigger=next_trigger)
    owing = {task for waiting in this.state.unconfirmed.values() for task in waiting}
    gone = owing - attempts.keys()  # of an earlier version; the tasks that now have their vertices were restored
    if restored is None:  # all attempts were adopted, and may owe what is complete
        completing.confirm(this, list(this.state.unconfirmed), gone)
    else:  # a restored attempt publishes what it owes before it runs
        completing.confirm(this, [number for number in this.state.unconfirmed if number <= restored], fresh | gone)
    for number, waiting in sorted(this.state.unconfirmed.items()):
        this.commands += [e.NotifyComplete(attempts[task], number) for task in sorted(waiting) if task in attempts]


def _fell_back(this: Step, skipped: frozenset[int]) -> None:
    """Keep the damaged checkpoints until they would be subsumed anyway, and rely on nothing of them.

    They leave the registry: a segment that is written anew must not be replaced with its damaged twin.
    """
    state, registry = this.state, this.state.registry
    if state.attempts or state.survivors:
        raise InvariantViolated("tasks run on although the job goes on from an earlier checkpoint")
    new = [c for c in state.completed if c.checkpoint_id in skipped - state.skipped]
    for checkpoint in new:
        registry = registry.without(checkpoint)
    numbers = {checkpoint.checkpoint_id for checkpoint in new}
    unconfirmed = {number: tasks for number, tasks in state.unconfirmed.items() if number not in numbers}
    this.set(skipped=state.skipped | numbers, registry=registry, unconfirmed=unconfirmed)


def _tasks_adopted(this: Step, attempts: frozenset[AttemptId], unsettled: frozenset[int]) -> None:
    """Let the attempts continue if an unfinished checkpoint holds them up. They learn of complete ones later."""
    this.set(survivors=attempts)
    completed = {checkpoint.checkpoint_id for checkpoint in this.state.completed}
    for number in sorted(unsettled - completed):
        this.commands += [e.NotifyAborted(attempt, number) for attempt in sorted(attempts)]


def _tasks_stopped(this: Step, cause: FailureCause, survivors: frozenset[AttemptId] = frozenset()) -> None:
    known = frozenset(this.state.attempts.values()) or this.state.survivors
    this.set(attempts={}, survivors=known & survivors, next_trigger=None, final=None)
    this.set(stopping=None, draining=False)
    aborting.abort_all(this, cause)
