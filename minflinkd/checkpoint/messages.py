"""Questions about a job's checkpoints, which the Dispatcher answers.

They are not in `rpc`, which lies below this package: their answers are records of this package. `rest/` turns these
records into JSON and into metrics.
"""

from __future__ import annotations

from minflinkd.checkpoint.inventory import VerifiedCheckpoint
from minflinkd.checkpoint.offsets import Offsets
from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.checkpoint.statistics import CheckpointStatistics
from minflinkd.rpc.messages import Done, Message, Request
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import JobId


class GetCheckpoints(Request[CheckpointStatistics], frozen=True):
    """What is known of a job's checkpoints. Refused with `not-found`."""

    job_id: JobId


class GetCheckpointOptions(Request[CheckpointOptions], frozen=True):
    """A job's checkpoint settings, with the daemon's options for what the job leaves open. Refused with `not-found`."""

    job_id: JobId


class VerifyCheckpoints(Request[Done], frozen=True):
    """Begin to read all checkpoints of a job. Idempotent by `trigger_id`. Refused with `not-found`."""

    job_id: JobId
    trigger_id: str


class Verification(Message, frozen=True):
    """How far it has got. `checkpoints`: newest first, once it is done without an error."""

    done: bool
    checkpoints: tuple[VerifiedCheckpoint, ...] = ()
    error: ErrorInfo | None = None


class GetVerification(Request[Verification], frozen=True):
    """What a verification has found. Refused with `not-found`."""

    job_id: JobId
    trigger_id: str


class GetOffsets(Request[Offsets], frozen=True):
    """The offsets of a job's sources (C26). Refused with `not-found`."""

    job_id: JobId
