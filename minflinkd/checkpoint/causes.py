"""Why a checkpoint was not begun (C20), and why one that was begun has failed (C21 - C23)."""

from __future__ import annotations

from enum import StrEnum

from minflinkd.runtime.errors import Consequence, ErrorInfo, MinflinkError, NotFound


class CheckpointKind(StrEnum):
    PERIODIC = "periodic"
    MANUAL = "manual"
    SAVEPOINT = "savepoint"  # copied to a user's directory once it is complete and published (C24)
    FINAL = "final"  # all input is exhausted; the job finishes when it is complete and published (C4)


class Refusal(StrEnum):
    """A request that was not begun. It is not a failure, and nothing is counted."""

    SHUT_DOWN = "shut-down"
    PERIODIC_OFF = "periodic-off"
    ALREADY_QUEUED = "already-queued"
    TOO_MANY_IN_FLIGHT = "too-many-in-flight"
    TOO_SOON = "too-soon"
    TOO_MANY_TO_CLEAN = "too-many-to-clean"
    NOT_ALL_TASKS_RUNNING = "not-all-tasks-running"
    JOB_STOPS = "job-stops"


REFUSALS = {
    Refusal.SHUT_DOWN: "the job's checkpoint coordinator is shut down",
    Refusal.PERIODIC_OFF: "periodic checkpoints are off",
    Refusal.ALREADY_QUEUED: "another request is queued already",
    Refusal.TOO_MANY_IN_FLIGHT: "as many checkpoints as max-concurrent-checkpoints allows are in flight",
    Refusal.TOO_SOON: "min-pause since the last checkpoint has not passed",
    Refusal.TOO_MANY_TO_CLEAN: "too many old checkpoints are still being published or deleted",
    Refusal.NOT_ALL_TASKS_RUNNING: "not all tasks of the job are running",
    Refusal.JOB_STOPS: "the job is being stopped with a savepoint",
}


class FailureCause(StrEnum):
    """What ended a checkpoint (or its set-up) before it was complete."""

    TRIGGER_FAILURE = "trigger-failure"  # no id or location, or a task could not be told
    EXPIRED = "expired"
    DECLINED = "declined"
    STORAGE = "storage"  # a task could not upload its part
    FINALIZE_FAILURE = "finalize-failure"  # the metadata could not be written
    TASK_FAILURE = "task-failure"  # the job's tasks have stopped in the meantime
    SUBSUMED = "subsumed"  # a later one completed first
    SHUT_DOWN = "coordinator-shut-down"
    MASTER_HOOK = "master-hook"  # a hook failed, or did not answer in time; no task was triggered
    JOB_STOPS = "job-stops"  # the job is drained; the next cut is at the end of time


# C23: only causes that show that checkpointing itself does not work. Others are counted and shown, but harm no job.
COUNTED = frozenset({FailureCause.EXPIRED, FailureCause.DECLINED, FailureCause.STORAGE, FailureCause.FINALIZE_FAILURE})

# Failures before any task has begun. They are counted separately, in a row, until all tasks have taken a trigger.
TRIGGER = frozenset({FailureCause.TRIGGER_FAILURE, FailureCause.MASTER_HOOK})


class CheckpointRefused(MinflinkError):
    code = "checkpoint-refused"
    consequence = Consequence.RETRYABLE

    def __init__(self, reason: Refusal) -> None:
        super().__init__(f"no checkpoint was begun: {REFUSALS[reason]}", hint=f"reason {reason}")
        self.reason = reason


class CheckpointFailed(MinflinkError):
    """A requested checkpoint has failed. `checkpoint_id` is None if it had no id yet."""

    code = "checkpoint-failed"
    consequence = Consequence.RETRYABLE

    def __init__(self, checkpoint_id: int | None, cause: FailureCause, error: ErrorInfo | None = None) -> None:
        which = f"checkpoint {checkpoint_id}" if checkpoint_id is not None else "a checkpoint"
        super().__init__(f"{which} has failed: {cause}" + (f": {error.message}" if error else ""))
        self.checkpoint_id = checkpoint_id
        self.cause = cause
        self.error = error


class CheckpointNotPending(NotFound):
    """An acknowledgement that came too late. Nothing refers to its files, and the sender must delete them."""

    code = "checkpoint-not-pending"
