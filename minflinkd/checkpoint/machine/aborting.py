"""How a checkpoint fails (C23), and when this fails the job."""

from __future__ import annotations

from minflinkd.checkpoint.causes import COUNTED, TRIGGER, CheckpointKind, FailureCause
from minflinkd.checkpoint.machine import doomed, triggering
from minflinkd.checkpoint.machine import events as e
from minflinkd.checkpoint.machine.pending import PendingCheckpoint, Phase
from minflinkd.checkpoint.machine.step import Step
from minflinkd.checkpoint.statistics import CheckpointStatus
from minflinkd.runtime.errors import Consequence, ErrorInfo, Kind
from minflinkd.runtime.ids import AttemptId, TaskId

_CAUSES = {
    Kind.SESSION_LOST: FailureCause.TASK_FAILURE,  # it says nothing about checkpoints
    Kind.STORAGE: FailureCause.STORAGE,
}


def abort_all(step: Step, cause: FailureCause) -> None:
    """Abort everything that has begun, except checkpoints being finalised: the storage decides about those."""
    triggering.set_up_failed(step, None, cause)
    for checkpoint in list(step.state.pending.values()):
        if checkpoint.phase is Phase.PENDING:
            abort(step, checkpoint, cause)


def declined(step: Step, checkpoint_id: int, attempt: AttemptId, error: ErrorInfo) -> None:
    abort_for(step, checkpoint_id, attempt, _CAUSES.get(error.kind, FailureCause.DECLINED), error)


def hook_failed(step: Step, checkpoint_id: int, error: ErrorInfo) -> None:
    checkpoint = step.state.pending.get(checkpoint_id)
    if checkpoint is not None and checkpoint.silent_hooks:
        abort(step, checkpoint, FailureCause.MASTER_HOOK, error)


def abort_for(step: Step, checkpoint_id: int, attempt: AttemptId, cause: FailureCause, error: ErrorInfo) -> None:
    """A task can end a checkpoint only while its attempt has not acknowledged."""
    checkpoint = step.state.pending.get(checkpoint_id)
    if checkpoint is None or checkpoint.phase is not Phase.PENDING:
        return
    task = next((t for t, a in checkpoint.tasks.items() if a == attempt and t not in checkpoint.snapshots), None)
    if task is not None:
        abort(step, checkpoint, cause, error, task)


def abort(
    step: Step,
    checkpoint: PendingCheckpoint,
    cause: FailureCause,
    error: ErrorInfo | None = None,
    task: TaskId | None = None,
) -> None:
    """`task`: the task that caused the abort."""
    number, finalizing = checkpoint.checkpoint_id, checkpoint.phase is Phase.FINALIZING
    checkpoint = checkpoint.move(Phase.FAILED)
    step.drop(number)
    step.set(last_ended=step.now)
    current = {*step.state.attempts.values(), *step.state.survivors}
    if checkpoint.silent_hooks:  # no task was triggered
        step.commands.append(e.CancelHooks(number))
    else:
        step.commands += [e.NotifyAborted(a, number) for a in checkpoint.tasks.values() if a in current]
    if finalizing:  # the write may still have succeeded, so delete the metadata before any file that it names
        step.set(discarding={**step.state.discarding, number: checkpoint.referenced_files()})
        step.commands.append(e.DiscardMetadata(number))
    else:
        doomed.doom(step, checkpoint.written_files())
    failed_ms = checkpoint.time_of_day_ms(step.now)
    record = checkpoint.record(CheckpointStatus.FAILED, failed_ms=failed_ms, cause=cause, error=error, failed_task=task)
    step.commands.append(e.Report(record))
    step.missed(checkpoint.request)
    step.answer(e.Fail(checkpoint.request, number, cause, error))
    newest = step.state.completed[-1].checkpoint_id if step.state.completed else 0
    if cause in TRIGGER:
        step.set(trigger_failures=step.state.trigger_failures + 1)
    elif cause in COUNTED and checkpoint.kind is not CheckpointKind.SAVEPOINT and number > newest:
        # Otherwise a later checkpoint has shown in the meantime that checkpoints work.
        _count_failure(step, number, cause, error)


def _count_failure(step: Step, number: int, cause: FailureCause, error: ErrorInfo | None) -> None:
    step.set(failures=step.state.failures + 1)
    if step.state.failures > step.state.options.tolerable_failed:
        step.set(failures=0)  # the restarted job gets the full allowance again
        step.commands.append(e.FailJob(number, cause, error))


def expire(step: Step) -> None:
    for checkpoint in list(step.state.pending.values()):
        if checkpoint.phase is Phase.PENDING and step.now >= checkpoint.deadline:
            cause = FailureCause.MASTER_HOOK if checkpoint.silent_hooks else FailureCause.EXPIRED
            abort(step, checkpoint, cause, _overdue(checkpoint, step.state.options.timeout))
    if step.state.setting_up is not None and step.now >= step.state.setting_up.deadline:
        triggering.set_up_failed(step, _no_set_up(step.state.options.timeout))


def _overdue(checkpoint: PendingCheckpoint, timeout: float) -> ErrorInfo:
    """The error names the hooks or tasks that did not answer."""
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
        message=f"no checkpoint id could be reserved within {timeout:g} s",
        consequence=Consequence.RETRYABLE,
        hint="check that the storage of the checkpoints answers",
    )
