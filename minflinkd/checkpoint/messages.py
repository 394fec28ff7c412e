"""Questions about a job's checkpoints, which the Dispatcher answers.

They are not in `rpc`, which lies below this package: their answers are records of this package. `rest/` turns these
records into JSON and into metrics.
"""

from __future__ import annotations

from minflinkd.checkpoint.offsets import Offsets
from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.checkpoint.statistics import CheckpointStatistics
from minflinkd.rpc.messages import Request
from minflinkd.runtime.ids import JobId


class GetCheckpoints(Request[CheckpointStatistics], frozen=True):
    """What is known of a job's checkpoints. Refused with `not-found`."""

    job_id: JobId


class GetCheckpointOptions(Request[CheckpointOptions], frozen=True):
    """A job's checkpoint settings, with the daemon's options for what the job leaves open. Refused with `not-found`."""

    job_id: JobId


class GetOffsets(Request[Offsets], frozen=True):
    """The offsets of a job's sources (C26). Refused with `not-found`."""

    job_id: JobId
