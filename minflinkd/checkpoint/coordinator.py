"""The decisions of a job's checkpoint coordinator, as a pure machine (C20 - C23, C4): no I/O, no clock.

A checkpoint goes: request -> set-up (id) -> checked again -> master hooks have answered -> triggered at all tasks ->
acknowledged by all -> metadata written (from here on it is the job's latest) -> older ones subsumed -> tasks told to
publish -> confirmed by each.
Responsible for when a checkpoint begins, what ends it, and when a file may go. `driver` carries out the commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from minflinkd.checkpoint import events as e
from minflinkd.checkpoint.causes import COUNTED, TRIGGER, CheckpointKind, FailureCause, Refusal
from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.checkpoint.pending import PendingCheckpoint, Phase
from minflinkd.checkpoint.registry import Registry
from minflinkd.checkpoint.state import (
    Doomed,
    Final,
    Request,
    SettingUp,
    State,
    available_files,
    obstacle,
    refusal,
    retained_files,
)
from minflinkd.checkpoint.statistics import CheckpointStatus
from minflinkd.rpc.snapshot import TaskSnapshot
from minflinkd.runtime.errors import Consequence, ErrorInfo
from minflinkd.runtime.ids import AttemptId, JobId, TaskId
from minflinkd.runtime.machine import InvariantViolated

SESSION_LOST = "session-lost"  # the TaskManager's code for it
FINAL_RETRY = 1.0  # seconds after a final checkpoint that did not come about


def initial(
    job_id: JobId,
    options: CheckpointOptions,
    completed: tuple[CompletedCheckpoint, ...] = (),
    *,
    last_id: int = 0,
    graph_digest: str = "",
    sizes: Mapping[str, int] | None = None,
) -> State:
    """A coordinator over what the store holds. What was published before it began is not known: all is owed again.

    `sizes`: of the physical files that are there, in bytes.
    """
    registry = Registry.of(completed)
    return State(
        job_id=job_id,
        options=options,
        graph_digest=graph_digest,
        completed=completed,
        unconfirmed={c.checkpoint_id: frozenset(task.task_id for task in c.tasks) for c in completed if c.tasks},
        last_id=max([last_id, *(c.checkpoint_id for c in completed)]),
        registry=registry,
        sizes={name: size for name, size in (sizes or {}).items() if name in registry.files},
    )


def step(state: State, event: e.Event, now: float) -> tuple[State, tuple[e.Command, ...]]:
    """One event, then whatever it and the time make possible. Pure; `now` is monotonic, in seconds."""
    this = _Step(state, now)
    this.handle(event)
    this.settle()
    return this.state, tuple(this.commands)


class _Step:
    """One step being taken: the state so far, and the commands in the order in which they must begin."""

    def __init__(self, state: State, now: float) -> None:
        self.state = state
        self.now = now
        self.commands: list[e.Command] = []

    def handle(self, event: e.Event) -> None:
        match event:
            case e.Tick():
                pass
            case e.TriggerRequested(number, kind, forced, stop):
                self.request(Request(number, kind, forced, stop))
            case e.DrainBegun():
                self.drain_begun()
            case e.Unpinned(checkpoint_id):
                self.set(pinned=self.state.pinned - {checkpoint_id})
            case e.FinalRequested():
                if self.state.attempts and self.state.final is None:
                    self.set(final=Final(retry_at=self.now))
            case e.TasksRunning(attempts):
                self.tasks_running(dict(attempts))
            case e.TasksStopped(survivors):
                self.tasks_stopped(FailureCause.TASK_FAILURE, survivors)
            case e.RestorePointTaken(checkpoint_id):
                self.set(restored=checkpoint_id)
            case e.SetUpDone(number, checkpoint_id, at_ms):
                self.set_up_done(number, checkpoint_id, at_ms)
            case e.SetUpFailed(number, error):
                if self.state.setting_up is not None and self.state.setting_up.request.number == number:
                    self.set_up_failed(error)
            case e.HookAnswered(checkpoint_id, hook, hook_state):
                self.hook_answered(checkpoint_id, hook, hook_state)
            case e.HookFailed(checkpoint_id, error):
                checkpoint = self.state.pending.get(checkpoint_id)
                if checkpoint is not None and checkpoint.silent_hooks:
                    self.abort(checkpoint, FailureCause.MASTER_HOOK, error)
            case e.TriggerTaken(checkpoint_id, attempt):
                self.trigger_taken(checkpoint_id, attempt)
            case e.TriggerFailed(checkpoint_id, attempt, error):
                self.abort_for(checkpoint_id, attempt, FailureCause.TRIGGER_FAILURE, error)
            case e.Acknowledged(snapshot):
                self.acknowledged(snapshot)
            case e.Declined(checkpoint_id, attempt, error):
                self.abort_for(checkpoint_id, attempt, _cause_of(error), error)
            case e.MetadataWritten(checkpoint_id):
                self.complete(self.state.pending[checkpoint_id])
            case e.MetadataFailed(checkpoint_id, error):
                self.abort(self.state.pending[checkpoint_id], FailureCause.FINALIZE_FAILURE, error)
            case e.TaskNotified(checkpoint_id, attempt):
                self.confirm([checkpoint_id], {t for t, a in self.state.attempts.items() if a == attempt})
            case e.MetadataDiscarded(checkpoint_id):
                files = self.state.discarding.get(checkpoint_id, frozenset())
                left = self.state.leaving.get(checkpoint_id)
                self.set(
                    discarding=_without(self.state.discarding, checkpoint_id),
                    leaving=_without(self.state.leaving, checkpoint_id),
                )
                self.doom(files, referenced=True, checkpoint=left)
            case e.FilesDeleted(files):
                self.deleted(files)
            case e.Stopped():
                self.set(stopped=True)
                self.tasks_stopped(FailureCause.SHUT_DOWN)

    def settle(self) -> None:
        """What the time and the new state make possible; leaves nothing that could be done now."""
        self.expire()
        self.periodic()
        self.begin_queued()
        self.begin_final()
        self.subsume()
        self.delete_doomed()

    # --- triggering (C20) ----------------------------------------------------------------------------------------

    def request(self, request: Request) -> None:
        state = self.state
        if reason := refusal(state, request):
            self.refuse(request, reason)
        elif state.setting_up is None and not state.queued and obstacle(state, request, self.now) is None:
            self.begin(request)
        elif request.forced:
            self.set(queued=(request, *state.queued))
        else:
            self.enqueue(request)

    def enqueue(self, request: Request) -> None:
        """One place; a periodic request gives way to one that somebody made, which serves it too."""
        waiting = next((queued for queued in self.state.queued if not queued.forced), None)
        if waiting is not None and (
            waiting.kind is not CheckpointKind.PERIODIC or request.kind is CheckpointKind.PERIODIC
        ):
            self.refuse(request, Refusal.ALREADY_QUEUED)
            return
        if waiting is not None:
            self.refuse(waiting, Refusal.ALREADY_QUEUED)
        self.set(queued=(*(queued for queued in self.state.queued if queued is not waiting), request))

    def begin_queued(self) -> None:
        for request in self.state.queued:
            if reason := refusal(self.state, request):
                self.set(queued=tuple(queued for queued in self.state.queued if queued is not request))
                self.refuse(request, reason)
            elif self.state.setting_up is None and obstacle(self.state, request, self.now) is None:
                self.set(queued=tuple(queued for queued in self.state.queued if queued is not request))
                self.begin(request)

    def periodic(self) -> None:
        state = self.state
        if state.next_trigger is not None and self.now >= state.next_trigger and state.final is None:
            self.set(next_trigger=self.now + state.options.interval)
            self.request(self.own_request(CheckpointKind.PERIODIC))

    def begin_final(self) -> None:
        """After everything else in flight, since its tasks have nothing more to come."""
        state, final = self.state, self.state.final
        if final is None or final.request is not None or final.checkpoint_id is not None:
            return
        if self.now < final.retry_at or state.setting_up is not None or state.pending or state.queued:
            return
        request = self.own_request(CheckpointKind.FINAL)
        if refusal(state, request) is None:
            self.set(final=replace(final, request=request.number))
            self.begin(request)

    def begin(self, request: Request) -> None:
        self.set(setting_up=SettingUp(request, self.now + self.state.options.timeout))
        if request.stop:
            self.set(stopping=request.number)
        self.commands.append(e.SetUp(request.number))

    def set_up_done(self, number: int, checkpoint_id: int, at_ms: int) -> None:
        self.set(last_id=max(self.state.last_id, checkpoint_id))  # also of a set-up that came too late
        setting_up = self.state.setting_up
        if setting_up is None or setting_up.request.number != number:
            return
        request = setting_up.request
        self.set(setting_up=None)
        # The world may have changed during the set-up.
        if reason := refusal(self.state, request) or obstacle(self.state, request, self.now):
            self.refuse(request, reason)
            return
        checkpoint = PendingCheckpoint(
            checkpoint_id=checkpoint_id,
            request=number,
            kind=request.kind,
            tasks=dict(self.state.attempts),
            triggered_ms=at_ms,
            triggered_at=self.now,
            deadline=self.now + self.state.options.timeout,
            stop=request.stop,
            hooks=dict.fromkeys(self.state.options.hooks),
        )
        self.put(checkpoint)
        self.commands.append(e.Report(checkpoint.record()))
        self.commands += [e.CallHook(hook, checkpoint_id) for hook in checkpoint.hooks]
        self.trigger_tasks(checkpoint)

    def hook_answered(self, checkpoint_id: int, hook: str, state: bytes) -> None:
        checkpoint = self.state.pending.get(checkpoint_id)
        if checkpoint is None or hook not in checkpoint.silent_hooks:
            return  # the checkpoint has ended meanwhile
        checkpoint = replace(checkpoint, hooks={**checkpoint.hooks, hook: state})
        self.put(checkpoint)
        self.trigger_tasks(checkpoint)

    def trigger_tasks(self, checkpoint: PendingCheckpoint) -> None:
        """Once all hooks have answered (C27)."""
        if not checkpoint.silent_hooks:
            number = checkpoint.checkpoint_id
            self.commands += [e.SendTrigger(attempt, number, checkpoint.stop) for attempt in checkpoint.tasks.values()]

    def set_up_failed(self, error: ErrorInfo | None, cause: FailureCause = FailureCause.TRIGGER_FAILURE) -> None:
        setting_up = self.state.setting_up
        if setting_up is None:
            return
        self.set(setting_up=None)
        if cause in TRIGGER:
            self.set(trigger_failures=self.state.trigger_failures + 1)
            self.commands.append(e.ReportSetUpFailure(cause))
        self.missed(setting_up.request.number)
        self.answer(e.Fail(setting_up.request.number, None, cause, error))

    def trigger_taken(self, checkpoint_id: int, attempt: AttemptId) -> None:
        checkpoint = self.state.pending.get(checkpoint_id)
        if checkpoint is None or attempt not in checkpoint.tasks.values():
            return
        checkpoint = replace(checkpoint, triggered=checkpoint.triggered | {attempt})
        self.put(checkpoint)
        if len(checkpoint.triggered) == len(checkpoint.tasks):
            self.set(trigger_failures=0)

    def drain_begun(self) -> None:
        """A cut from now on might have the end of time in it, and a job that goes on from there would drop its rows."""
        self.set(draining=True)
        self.set_up_failed(None, FailureCause.JOB_STOPS)
        for checkpoint in list(self.state.pending.values()):
            if checkpoint.phase is Phase.PENDING:
                self.abort(checkpoint, FailureCause.JOB_STOPS)

    # --- acknowledgements (C21) ----------------------------------------------------------------------------------

    def acknowledged(self, snapshot: TaskSnapshot) -> None:
        checkpoint = self.state.pending.get(snapshot.checkpoint_id)
        if checkpoint is None or not checkpoint.waits_for(snapshot):
            self.doom(frozenset(snapshot.physical_files))  # late or doubled: only what nobody refers to will go
            return
        available = available_files(self.state)
        snapshot = self.state.registry.located(snapshot, available)
        wanted = {file.handle.file for file in snapshot.files} - set(snapshot.physical_files)
        if lost := wanted - available:
            self.doom(frozenset(snapshot.physical_files))
            self.abort(checkpoint, FailureCause.DECLINED, _lost(snapshot, lost), snapshot.task_id)
            return
        self.set(sizes=_with_sizes(self.state.sizes, snapshot))
        checkpoint = checkpoint.acknowledge(snapshot, self.now)
        if checkpoint.acknowledged_by_all:
            checkpoint = replace(checkpoint.move(Phase.FINALIZING), finalizing_at=self.now)
            checkpoint = checkpoint.registered(self.state.registry, self.state.sizes)
            self.commands.append(e.WriteMetadata(self.finished(checkpoint)))
        self.put(checkpoint)
        self.commands.append(e.Report(checkpoint.record()))

    def finished(self, checkpoint: PendingCheckpoint) -> CompletedCheckpoint:
        return checkpoint.complete(self.state.job_id, self.state.options.epoch, self.state.graph_digest)

    # --- completion (C22) ----------------------------------------------------------------------------------------

    def complete(self, checkpoint: PendingCheckpoint) -> None:
        checkpoint = checkpoint.move(Phase.COMPLETED)
        state, number, completed = self.state, checkpoint.checkpoint_id, self.finished(checkpoint)
        self.set(
            pending=_without(state.pending, number),
            completed=tuple(sorted([*state.completed, completed], key=lambda c: c.checkpoint_id)),
            unconfirmed={**state.unconfirmed, number: frozenset(checkpoint.tasks)},
            registry=state.registry.with_(completed),
            failures=0,
            last_ended=self.now,
        )
        if checkpoint.kind is CheckpointKind.SAVEPOINT:
            self.set(pinned=self.state.pinned | {number})
        metadata_ms = (self.now - checkpoint.finalizing_at) * 1000
        self.commands.append(e.Report(checkpoint.record(CheckpointStatus.COMPLETED, metadata_ms=metadata_ms)))
        for older in [c for c in self.state.pending.values() if c.checkpoint_id < number]:
            if older.phase is Phase.PENDING:
                self.abort(older, FailureCause.SUBSUMED)
        self.subsume()
        self.doom(checkpoint.written_files() - completed.physical_files())  # nothing but copies was in them
        current = set(self.state.attempts.values())
        self.commands += [e.NotifyComplete(a, number) for a in checkpoint.tasks.values() if a in current]
        final = self.state.final
        if final is not None and final.request == checkpoint.request:
            self.set(final=replace(final, checkpoint_id=number))
        self.answer(e.Complete(checkpoint.request, completed))

    def confirm(self, checkpoints: list[int], tasks: set[Any]) -> None:
        left = {n: w - tasks if n in checkpoints else w for n, w in self.state.unconfirmed.items()}
        self.set(unconfirmed={number: waiting for number, waiting in left.items() if waiting})
        self.commands += [e.ReportPublished(number) for number, waiting in left.items() if not waiting]

    def subsume(self) -> None:
        """Beyond those retained, drop what is published; until then its metadata is the only proof of what is owed.

        And not before a later one is confirmed: until its tasks know that, they take the files of this one for granted.
        """
        state = self.state
        beyond = state.completed[: -state.options.num_retained]
        confirmed = [c.checkpoint_id for c in state.completed if c.checkpoint_id not in state.unconfirmed]
        known = max(confirmed, default=0)
        held = state.unconfirmed.keys() | state.pinned
        for checkpoint in [c for c in beyond if c.checkpoint_id < known and c.checkpoint_id not in held]:
            number = checkpoint.checkpoint_id
            self.set(
                completed=tuple(c for c in self.state.completed if c.checkpoint_id != number),
                discarding={**self.state.discarding, number: checkpoint.physical_files()},
                leaving={**self.state.leaving, number: checkpoint},
            )
            self.commands.append(e.DiscardMetadata(number))

    # --- failure (C23) -------------------------------------------------------------------------------------------

    def abort_for(self, checkpoint_id: int, attempt: AttemptId, cause: FailureCause, error: ErrorInfo) -> None:
        """A task's word ends a checkpoint only while that attempt's part of it is open."""
        checkpoint = self.state.pending.get(checkpoint_id)
        if checkpoint is None or checkpoint.phase is not Phase.PENDING:
            return
        task = next((t for t, a in checkpoint.tasks.items() if a == attempt and t not in checkpoint.snapshots), None)
        if task is not None:
            self.abort(checkpoint, cause, error, task)

    def abort(
        self,
        checkpoint: PendingCheckpoint,
        cause: FailureCause,
        error: ErrorInfo | None = None,
        task: TaskId | None = None,
    ) -> None:
        """`task`: whose word ends it."""
        number, finalizing = checkpoint.checkpoint_id, checkpoint.phase is Phase.FINALIZING
        checkpoint = checkpoint.move(Phase.FAILED)
        self.set(pending=_without(self.state.pending, number), last_ended=self.now)
        current = {*self.state.attempts.values(), *self.state.survivors}
        if checkpoint.silent_hooks:  # no task has heard of it
            self.commands.append(e.CancelHooks(number))
        else:
            self.commands += [e.NotifyAborted(a, number) for a in checkpoint.tasks.values() if a in current]
        if finalizing:  # the write may have succeeded all the same: the metadata goes before any file that it names
            self.set(discarding={**self.state.discarding, number: checkpoint.referenced_files()})
            self.commands.append(e.DiscardMetadata(number))
        else:
            self.doom(checkpoint.written_files())
        failed_ms = checkpoint.time_of_day_ms(self.now)
        record = checkpoint.record(
            CheckpointStatus.FAILED, failed_ms=failed_ms, cause=cause, error=error, failed_task=task
        )
        self.commands.append(e.Report(record))
        self.missed(checkpoint.request)
        self.answer(e.Fail(checkpoint.request, number, cause, error))
        newest = self.state.completed[-1].checkpoint_id if self.state.completed else 0
        if cause in TRIGGER:
            self.set(trigger_failures=self.state.trigger_failures + 1)
        elif cause in COUNTED and checkpoint.kind is not CheckpointKind.SAVEPOINT and number > newest:
            # else a later one has shown meanwhile that checkpoints work
            self.count_failure(number, cause, error)

    def count_failure(self, number: int, cause: FailureCause, error: ErrorInfo | None) -> None:
        self.set(failures=self.state.failures + 1)
        if self.state.failures > self.state.options.tolerable_failed:
            self.set(failures=0)  # the restarted job is given as many again
            self.commands.append(e.FailJob(number, cause, error))

    def expire(self) -> None:
        for checkpoint in list(self.state.pending.values()):
            if checkpoint.phase is Phase.PENDING and self.now >= checkpoint.deadline:
                cause = FailureCause.MASTER_HOOK if checkpoint.silent_hooks else FailureCause.EXPIRED
                self.abort(checkpoint, cause, _overdue(checkpoint, self.state.options.timeout))
        if self.state.setting_up is not None and self.now >= self.state.setting_up.deadline:
            self.set_up_failed(_no_set_up(self.state.options.timeout))

    # --- the job's tasks -----------------------------------------------------------------------------------------

    def tasks_running(self, attempts: dict[Any, AttemptId]) -> None:
        if self.state.stopped or attempts == self.state.attempts:
            return
        if any(checkpoint.phase is Phase.FINALIZING for checkpoint in self.state.pending.values()):
            raise InvariantViolated(
                "tasks run although the latest checkpoint is not settled", hint="ask for the restore point first"
            )
        if self.state.attempts:
            self.tasks_stopped(FailureCause.TASK_FAILURE)
        interval, restored = self.state.options.interval, self.state.restored
        fresh = {task for task, attempt in attempts.items() if attempt not in self.state.survivors}
        next_trigger = self.now + interval if interval > 0 else None
        self.set(attempts=attempts, survivors=frozenset(), restored=None, next_trigger=next_trigger)
        if restored is not None:  # what a restored attempt owes is published before it runs
            self.confirm([number for number in self.state.unconfirmed if number <= restored], fresh)
        for number, waiting in sorted(self.state.unconfirmed.items()):
            self.commands += [e.NotifyComplete(attempts[task], number) for task in sorted(waiting) if task in attempts]

    def tasks_stopped(self, cause: FailureCause, survivors: frozenset[AttemptId] = frozenset()) -> None:
        known = frozenset(self.state.attempts.values()) or self.state.survivors
        self.set(attempts={}, survivors=known & survivors, next_trigger=None, final=None)
        self.set(stopping=None, draining=False)
        self.set_up_failed(None, cause)
        for checkpoint in list(self.state.pending.values()):
            if checkpoint.phase is Phase.PENDING:
                self.abort(checkpoint, cause)

    # --- files (F5) ----------------------------------------------------------------------------------------------

    def doom(
        self, files: frozenset[str], *, referenced: bool = False, checkpoint: CompletedCheckpoint | None = None
    ) -> None:
        if files:
            doomed = Doomed(files, self.state.last_id, referenced, checkpoint)
            self.set(doomed=(*self.state.doomed, doomed))

    def delete_doomed(self) -> None:
        """Delete what no checkpoint refers to and none in flight may still take for granted.

        Never in the midst of a checkpoint that is being processed: `settle` comes behind it (F5).
        """
        if not self.state.doomed:
            return
        state = self.state
        oldest = min(state.pending, default=None)
        settled = [d for d in state.doomed if oldest is None or oldest > d.horizon]
        registry = state.registry
        for entry in settled:
            if entry.checkpoint is not None:
                registry = registry.without(entry.checkpoint)
        kept = retained_files(state).union(*state.discarding.values())  # doomed anew with their last referrer
        in_flight = frozenset[str]().union(*(c.referenced_files() for c in state.pending.values()))
        waiting, deletable = [], frozenset[str]()
        for entry in state.doomed:
            files = held = entry.files - kept
            if entry in settled:
                files = files - registry.files.keys()
                held = files & in_flight
                entry = replace(entry, checkpoint=None)
            deletable |= files - held
            if held or entry.checkpoint is not None:  # to be released
                waiting.append(replace(entry, files=held))
        deletable -= frozenset().union(*(entry.files for entry in waiting))
        self.set(doomed=tuple(waiting), registry=registry)
        if deletable:
            self.set(deleting=(*self.state.deleting, deletable))
            self.commands.append(e.DeleteFiles(deletable))

    def deleted(self, files: frozenset[str]) -> None:
        left = list(self.state.deleting)
        if files in left:
            left.remove(files)
        sizes = {name: size for name, size in self.state.sizes.items() if name not in files}
        self.set(deleting=tuple(left), sizes=sizes)

    # --- small moves ---------------------------------------------------------------------------------------------

    def set(self, **changes: Any) -> None:
        self.state = replace(self.state, **changes)

    def put(self, checkpoint: PendingCheckpoint) -> None:
        self.set(pending={**self.state.pending, checkpoint.checkpoint_id: checkpoint})

    def own_request(self, kind: CheckpointKind) -> Request:
        self.set(own_requests=self.state.own_requests + 1)
        return Request(-self.state.own_requests, kind)

    def refuse(self, request: Request, reason: Refusal) -> None:
        self.missed(request.number)
        self.commands.append(e.Refuse(request.number, reason))

    def missed(self, number: int) -> None:
        """What this request was to bring about does not come about."""
        if self.state.stopping == number:
            self.set(stopping=None)
        final = self.state.final
        if final is not None and final.request == number:
            self.set(final=Final(retry_at=self.now + FINAL_RETRY))

    def answer(self, command: e.Fail | e.Complete) -> None:
        """Only the driver's callers wait for one."""
        if command.request > 0:
            self.commands.append(command)


def _cause_of(error: ErrorInfo) -> FailureCause:
    """Why a task declined. That its session is gone will be told as its failure, and says nothing of checkpoints."""
    if error.code == SESSION_LOST:
        return FailureCause.TASK_FAILURE
    return FailureCause.STORAGE if error.code.startswith("storage") else FailureCause.DECLINED


def _without(mapping: Any, key: int) -> dict[int, Any]:
    return {number: value for number, value in mapping.items() if number != key}


def _with_sizes(sizes: Mapping[str, int], snapshot: TaskSnapshot) -> Mapping[str, int]:
    """And those of the files that were written for it: as it says, or else as far as their last segment goes."""
    written = dict.fromkeys(snapshot.physical_files, 0)
    for handle in (file.handle for file in snapshot.files):
        if handle.file in written:
            written[handle.file] = max(written[handle.file], handle.offset + handle.length)
    told = {name: max(sizes.get(name, 0), size, snapshot.file_sizes.get(name, 0)) for name, size in written.items()}
    return {**sizes, **told}


def _overdue(checkpoint: PendingCheckpoint, timeout: float) -> ErrorInfo:
    """Names whom it waited for."""
    hooks, tasks = checkpoint.silent_hooks, checkpoint.silent_tasks
    who = f"master hook {', '.join(hooks)} has not answered" if hooks else f"{_tasks(tasks)} not acknowledged"
    return ErrorInfo(
        code="checkpoint-expired",
        message=f"{who} within {timeout:g} s",
        consequence=Consequence.RETRYABLE,
        hint="" if hooks else "a micro-batch that takes long, or an upload: see the task's wait, sync and async times",
    )


def _tasks(tasks: list[TaskId]) -> str:
    shown = ", ".join(tasks[:3]) + (f" and {len(tasks) - 3} more" if len(tasks) > 3 else "")
    return f"task {shown} has" if len(tasks) == 1 else f"tasks {shown} have"


def _no_set_up(timeout: float) -> ErrorInfo:
    return ErrorInfo(
        code="checkpoint-expired",
        message=f"no checkpoint id could be had within {timeout:g} s",
        consequence=Consequence.RETRYABLE,
        hint="does the storage of the checkpoints answer?",
    )


def _lost(snapshot: TaskSnapshot, files: set[str]) -> ErrorInfo:
    return ErrorInfo(
        code="checkpoint-file-not-retained",
        message=f"task {snapshot.task_id} refers to {', '.join(sorted(files)[:3])}, which no retained checkpoint has",
        hint="the task must upload again what it cannot find in a checkpoint that was confirmed to it",
    )
