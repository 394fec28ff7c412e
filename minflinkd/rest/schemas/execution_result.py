"""How a job has ended, as Flink's clients wait for it."""

from __future__ import annotations

import msgspec

from minflinkd.rest.schemas.answer import Answer
from minflinkd.rest.schemas.savepoints import FailureCause, QueueStatus


class JobResult(Answer, frozen=True, kw_only=True, rename="kebab", omit_defaults=True):
    id: str
    name: str
    start_time: int
    end_time: int
    application_status: str  # SUCCEEDED, FAILED or CANCELED
    accumulator_results: dict[str, str]
    net_runtime: int  # milliseconds
    failure_cause: FailureCause | None = None


class ExecutionResult(Answer, frozen=True, kw_only=True):
    status: QueueStatus
    result: JobResult | None = msgspec.field(name="job-execution-result")
