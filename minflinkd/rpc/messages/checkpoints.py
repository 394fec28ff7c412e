"""Between JobMasters and TaskManagers: a checkpoint is taken, acknowledged and made known."""

from __future__ import annotations

from minflinkd.rpc.messages.base import Done, Request
from minflinkd.rpc.snapshot import TaskSnapshot
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import AttemptId, JobId


class TriggerCheckpoint(Request[Done], frozen=True):
    """Answered when the trigger was taken, not when the snapshot is done (that is AcknowledgeCheckpoint)."""

    job_id: JobId
    attempt_id: AttemptId
    checkpoint_id: int
    epoch: int  # of the leader; part of physical file names
    timeout: float = 600.0  # seconds; the coordinator aborts the checkpoint after them
    oldest: int = 0  # checkpoint that is pending: what is older has ended, whether its abort came or not
    stop: bool = False  # no micro-batch is published behind the cut, unless the checkpoint is aborted


class DrainTask(Request[Done], frozen=True):
    """The task's sources stop at what they see now, then time ends: it runs to INPUT_ENDED. May be repeated."""

    job_id: JobId
    attempt_id: AttemptId


class NotifyCheckpointComplete(Request[Done], frozen=True):
    """Answered when the task's sinks have published the checkpoint's transactions."""

    job_id: JobId
    attempt_id: AttemptId
    checkpoint_id: int


class NotifyCheckpointAborted(Request[Done], frozen=True):
    """C13. Cancels the snapshot in whatever phase it is."""

    job_id: JobId
    attempt_id: AttemptId
    checkpoint_id: int


class AcknowledgeCheckpoint(Request[Done], frozen=True):
    """C12: the upload is done. Refused where the checkpoint is no longer pending; its files are then the sender's."""

    job_id: JobId
    attempt_id: AttemptId
    snapshot: TaskSnapshot


class DeclineCheckpoint(Request[Done], frozen=True):
    job_id: JobId
    attempt_id: AttemptId
    checkpoint_id: int
    error: ErrorInfo
