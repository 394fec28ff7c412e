"""A stored job whose JobMaster does not come up (R27): it is listed with its error, and its files are kept."""

from __future__ import annotations

from dataclasses import dataclass

from minflinkd.dispatcher.job_store import StoredJob
from minflinkd.rpc.jobs import FailureRecord, JobDetails, JobStatus
from minflinkd.runtime.errors import ErrorInfo


@dataclass(frozen=True)
class Unrecovered:
    stored: StoredJob
    error: ErrorInfo
    failed_ms: int

    def details(self) -> JobDetails:
        """INITIALIZING, as Flink shows a job whose JobMaster is not up yet, and why it is not."""
        timestamps = {status.value: 0 for status in JobStatus}
        timestamps[JobStatus.INITIALIZING.value] = self.stored.submitted_ms
        return JobDetails(
            job_id=self.stored.job_id,
            graph=self.stored.graph,
            status=JobStatus.INITIALIZING,
            start_ms=self.stored.submitted_ms,
            end_ms=-1,
            timestamps=timestamps,
            tasks=(),
            failures=(FailureRecord(timestamp_ms=self.failed_ms, error=self.error),),
            submission=self.stored.submission,
        )
