"""Messages between JobMasters and TaskManagers that take, acknowledge and announce a checkpoint."""

from __future__ import annotations

from minflinkd.rpc.messages.base import Done, Request
from minflinkd.rpc.snapshot import TaskSnapshot
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import AttemptId, JobId


class TriggerCheckpoint(Request[Done], frozen=True):
    """Answered when the trigger is accepted. When the snapshot is done, AcknowledgeCheckpoint follows."""

    job_id: JobId
    attempt_id: AttemptId
    checkpoint_id: int
    epoch: int  # of the leader; part of physical file names
    timeout: float = 600.0  # seconds until the coordinator aborts the checkpoint
    oldest: int = 0  # oldest pending checkpoint; all earlier ones have ended, even if no abort arrived
    stop: bool = False  # no micro-batch is published after the cut, unless the checkpoint is aborted
    full: bool = False  # the task uploads all of its state, also what an earlier checkpoint holds


class DrainTask(Request[Done], frozen=True):
    """The task's sources stop at the input they see now, then the watermark goes to the end of time.

    The task runs to INPUT_ENDED. May be repeated.
    """

    job_id: JobId
    attempt_id: AttemptId


class NotifyCheckpointComplete(Request[Done], frozen=True):
    """Answered when the task's sinks have published the checkpoint's transactions."""

    job_id: JobId
    attempt_id: AttemptId
    checkpoint_id: int


class NotifyCheckpointAborted(Request[Done], frozen=True):
    """C13. Cancels the snapshot, whatever phase it is in."""

    job_id: JobId
    attempt_id: AttemptId
    checkpoint_id: int


class AcknowledgeCheckpoint(Request[Done], frozen=True):
    """C12: the upload is done. Refused if the checkpoint is no longer pending: its files stay the sender's."""

    job_id: JobId
    attempt_id: AttemptId
    snapshot: TaskSnapshot


class DeclineCheckpoint(Request[Done], frozen=True):
    job_id: JobId
    attempt_id: AttemptId
    checkpoint_id: int
    error: ErrorInfo
