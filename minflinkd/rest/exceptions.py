"""`/jobs/:jobid/exceptions`: why a job failed, with the traceback of user code or of Spark."""

from __future__ import annotations

from minflinkd.rest.schemas import (
    ErrorDetails,
    ExceptionEntry,
    ExceptionHistory,
    ExecutionException,
    JobExceptions,
)
from minflinkd.rpc.jobs import FailureRecord, JobDetails
from minflinkd.runtime.errors import ErrorInfo


def exceptions_of(details: JobDetails, *, limit: int) -> JobExceptions:
    """Return the latest `limit` failures, newest first."""
    shown = details.failures[:limit]
    truncated = len(details.failures) > limit
    root = details.failures[0] if details.failures else None
    return JobExceptions(
        root_exception=stack_trace(root.error) if root else None,
        timestamp=root.timestamp_ms if root else None,
        all_exceptions=tuple(_of_task(failure) for failure in shown if failure.task_id is not None),
        truncated=truncated,
        history=ExceptionHistory(entries=tuple(map(_entry, shown)), truncated=truncated),
    )


def stack_trace(error: ErrorInfo) -> str:
    """Format an error so that what a person wants to read first comes first."""
    if not error.traceback:
        return str(error)
    if error.message in error.traceback:
        return f"{error.traceback.rstrip()}\n({error.hint})" if error.hint else error.traceback
    return f"{error}\n{error.traceback}"


def _entry(failure: FailureRecord) -> ExceptionEntry:
    error = failure.error
    return ExceptionEntry(
        exception_name=error.code,
        stacktrace=stack_trace(error),
        timestamp=failure.timestamp_ms,
        task_name=failure.task_name or failure.task_id,
        endpoint=failure.resource_id,
        task_manager_id=failure.resource_id,
        minflinkd=ErrorDetails(code=error.code, message=error.message, hint=error.hint),
    )


def _of_task(failure: FailureRecord) -> ExecutionException:
    place = failure.resource_id or "(unassigned)"
    return ExecutionException(
        exception=stack_trace(failure.error),
        task=failure.task_name or failure.task_id or "",
        endpoint=place,
        location=place,
        timestamp=failure.timestamp_ms,
        task_manager_id=place,
    )
