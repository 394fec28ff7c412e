"""Failures: the same error again and again, lost TaskManagers, a job that has failed for good."""

from __future__ import annotations

from collections.abc import Iterator

from minflinkd.diagnosis.facts import JobFacts
from minflinkd.diagnosis.findings import Finding, Severity
from minflinkd.diagnosis.words import HOUR, MINUTE, line, span
from minflinkd.rpc.jobs import FailureRecord, JobStatus
from minflinkd.runtime.errors import Kind

SAME = 3  # failures by one error: no chance any more
RECENT = 1 * HOUR  # for failures that are not in a row
NEWS = 15 * MINUTE  # for a lost TaskManager: then everybody has seen it
_TEXT = 120  # characters of a message that tell errors apart: later ones are often numbers


def failed(facts: JobFacts) -> Iterator[Finding]:
    """The job has ended by a failure."""
    if facts.details.status is not JobStatus.FAILED:
        return
    last = facts.details.failures[0] if facts.details.failures else None
    why = f": {_told(last)}" if last is not None else ""
    yield _of(
        last,
        code="job-failed",
        severity=Severity.CRITICAL,
        title="The job has failed",
        sentence=f"The job has failed for good{why}",
        figure=f"{facts.details.restarts} restarts",
        do=_what_to_do(last),
        since_ms=facts.details.end_ms if facts.details.end_ms >= 0 else None,
        weight=4.0,
    )


def same_error(facts: JobFacts) -> Iterator[Finding]:
    """The job restarts, and fails by the same error again."""
    if facts.details.status.terminal:
        return
    repeated = facts.details.repeated
    if repeated is not None:
        alike = sum(_alike(failure, repeated.last) for failure in facts.details.failures)
        same = (
            "each time by the same error"
            if alike >= min(repeated.failures, len(facts.details.failures))
            else (f"{alike} times by the same error" if alike > 1 else "by different errors")
        )
        yield _of(
            repeated.last,
            code="restarts-repeatedly",
            severity=Severity.CRITICAL,
            title="The job restarts again and again",
            sentence=f"The job has failed {repeated.failures} times in a row, {same}; the last time "
            f"{_told(repeated.last)}",
            figure=f"{repeated.failures} in a row",
            do=_what_to_do(repeated.last),
            since_ms=repeated.since_ms,
            weight=3.5,
        )
        return
    recent = [failure for failure in facts.details.failures if facts.now - failure.timestamp_ms <= RECENT]
    if not recent:
        return
    alike_ones = [failure for failure in recent if _alike(failure, recent[0])]
    if len(alike_ones) < SAME:
        return
    yield _of(
        recent[0],
        code="same-error",
        severity=Severity.WARNING,
        title="The same error comes back",
        sentence=f"The job has failed {len(alike_ones)} times in {span(RECENT)} by the same error, "
        f"though it ran well in between: {_told(recent[0])}",
        figure=f"{len(alike_ones)} times",
        do=_what_to_do(recent[0]),
        since_ms=alike_ones[-1].timestamp_ms,
        weight=1.5,
    )


def recent_failure(facts: JobFacts) -> Iterator[Finding]:
    """One or two failures: the job has recovered, or will with its next restart."""
    details = facts.details
    if details.status.terminal or details.repeated is not None or not details.failures:
        return
    last = details.failures[0]
    lost = _lost(facts, last)
    waits = details.next_restart_ms > facts.now
    if not waits and (lost or facts.now - last.timestamp_ms > NEWS):
        return
    if any(True for _ in same_error(facts)):
        return
    again = f"; it starts again in {span(details.next_restart_ms - facts.now)}" if waits else ", and has gone on since"
    yield _of(
        last,
        code="restarted",
        severity=Severity.WARNING if waits else Severity.INFO,
        title="The job has failed, and starts again" if waits else "The job has restarted",
        sentence=f"The job has failed {span(facts.now - last.timestamp_ms)} ago: {_told(last)}{again}",
        figure=f"{details.restarts} restarts",
        do=_what_to_do(last),
        since_ms=last.timestamp_ms,
        weight=1.0,
    )


def lost_task_manager(facts: JobFacts) -> Iterator[Finding]:
    """A TaskManager of the job is gone."""
    if facts.details.status.terminal:
        return
    for failure in facts.details.failures:
        reason = _lost(facts, failure)
        if not reason or facts.now - failure.timestamp_ms > NEWS:
            continue
        back = facts.running
        yield _of(
            failure,
            code="taskmanager-lost",
            severity=Severity.INFO if back else Severity.WARNING,
            title="A TaskManager was lost",
            sentence=f"TaskManager {failure.resource_id} was lost {span(facts.now - failure.timestamp_ms)} ago "
            f"({line(reason)}); "
            + ("the job has gone on from its last checkpoint" if back else "the job waits to go on"),
            figure=span(facts.now - failure.timestamp_ms),
            do="find out who ended it: dmesg (the kernel's OOM killer), the operator of its host, "
            f"minflinkd logs {facts.details.job_id}",
            since_ms=failure.timestamp_ms,
            weight=1.2,
        )
        return


def _lost(facts: JobFacts, failure: FailureRecord) -> str:
    """Return why the TaskManager of a failure was lost; empty if it was not, as far as known."""
    if failure.resource_id is None or failure.error.kind is not Kind.CLUSTER:
        return ""
    if facts.resources is not None:
        for loss in facts.resources.losses:
            if loss.resource_id == failure.resource_id:
                return loss.reason
    if facts.task_managers and failure.resource_id not in {info.resource_id for info in facts.task_managers}:
        return failure.error.message
    return ""


def _alike(one: FailureRecord, other: FailureRecord) -> bool:
    return (one.error.code, line(one.error.message)[:_TEXT], one.task_id) == (
        other.error.code,
        line(other.error.message)[:_TEXT],
        other.task_id,
    )


def _told(failure: FailureRecord) -> str:
    where = f"in task {failure.task_name or failure.task_id} " if failure.task_id else ""
    return f"{where}by {failure.error.code}: {line(failure.error.message)}"


def _what_to_do(failure: FailureRecord | None) -> str:
    if failure is None:
        return "look at the job's failures"
    if failure.error.kind is Kind.STORAGE:
        return failure.error.hint or "mend the storage: its space, its permissions, its address"
    if failure.error.kind is Kind.SESSION_LOST:
        return "the session's process has died: look into session.log and session-jvm.log for memory or a crash"
    hint = f" {failure.error.hint};" if failure.error.hint else ""
    return f"{hint} mend what the traceback shows, and bring the new version with minflinkd hot-restart".strip()


def _of(
    failure: FailureRecord | None,
    *,
    code: str,
    severity: Severity,
    title: str,
    sentence: str,
    figure: str,
    do: str,
    since_ms: int | None,
    weight: float,
) -> Finding:
    return Finding(
        code=code,
        severity=severity,
        title=title,
        sentence=sentence,
        figure=figure,
        do=do,
        since_ms=since_ms,
        task=(failure.task_id or "") if failure is not None else "",
        task_manager=(failure.resource_id or "") if failure is not None else "",
        weight=weight,
    )
