"""Checkpoints that fail, are slow, or do not come at all."""

from __future__ import annotations

from collections.abc import Iterator

from minflinkd.checkpoint.causes import FailureCause
from minflinkd.checkpoint.statistics import CheckpointRecord
from minflinkd.diagnosis.facts import JobFacts
from minflinkd.diagnosis.findings import Finding, Severity
from minflinkd.diagnosis.words import MINUTE, SECOND, line, number, share, size, span

IN_A_ROW = 3  # failures after which nobody should hope any more
UPLOAD_SHARE = 0.5  # of a checkpoint's time
OF_INTERVAL = 0.5  # a checkpoint that takes less of its interval disturbs nobody
SLOW_REQUEST = 1 * SECOND  # for one request of a few bytes, such as the metadata
REQUESTS = 5  # that are enough for a mean
MISSED = 3  # intervals without a checkpoint
OVERDUE = 1 * MINUTE  # at least

_DO = {
    FailureCause.EXPIRED: "give checkpoints a longer timeout (checkpointing.timeout), or let micro-batches read less",
    FailureCause.DECLINED: "the error of the task says what to mend",
    FailureCause.STORAGE: "look at the storage: space, permissions, answers (minflinkd plugins --check URI)",
    FailureCause.FINALIZE_FAILURE: "look at the storage: its space, its permissions, its answers",
    FailureCause.TRIGGER_FAILURE: "look whether the TaskManagers answer: minflinkd taskmanagers",
    FailureCause.MASTER_HOOK: "look at the hook, and at what it calls",
    FailureCause.TASK_FAILURE: "mend what makes the tasks fail first",
}


def failing(facts: JobFacts) -> Iterator[Finding]:
    """The last checkpoints have failed, one after another."""
    statistics = facts.checkpoints
    if statistics is None or facts.details.status.terminal:
        return
    in_a_row = max(statistics.consecutive_failures, statistics.consecutive_trigger_failures)
    last = statistics.latest_failed
    if not in_a_row or last is None:
        return
    cause = last.cause
    why = line(last.error.message) if last.error is not None else "no reason was given"
    by = f" of task {last.failed_task}" if last.failed_task else ""
    waits = (
        f"; {', '.join(last.missing)} had not acknowledged it" if last.missing and cause is FailureCause.EXPIRED else ""
    )
    many = f"The last {in_a_row} checkpoints have failed" if in_a_row > 1 else "The last checkpoint has failed"
    yield Finding(
        code="checkpoints-fail",
        severity=Severity.CRITICAL if in_a_row >= IN_A_ROW else Severity.WARNING,
        title="Checkpoints fail",
        sentence=f"{many}, number {last.checkpoint_id} because of {cause or 'an unknown cause'}{by}: {why}{waits}",
        figure=f"{in_a_row} in a row",
        do=(last.error.hint if last.error is not None and last.error.hint else _DO.get(cause, "")) if cause else "",
        since_ms=_since_failing(facts),
        task=last.failed_task or "",
        weight=2.5,
        where=f"minflinkd checkpoints {facts.details.job_id}",
    )


def _since_failing(facts: JobFacts) -> int | None:
    """Return when the first failure after the last completed checkpoint was, as far as the history goes."""
    assert facts.checkpoints is not None
    failed = [record.failed_ms for record in facts.checkpoints.history if record.failed_ms]
    done = facts.checkpoints.latest_completed
    after = [at for at in failed if done is None or at >= done.triggered_ms]
    return min(after, default=None)


def storage_slow(facts: JobFacts) -> Iterator[Finding]:
    """Most of the time of a checkpoint goes into the storage."""
    statistics = facts.checkpoints
    if statistics is None or not facts.running or (last := statistics.latest_completed) is None:
        return
    took, interval = last.duration_ms + last.metadata_ms, statistics.interval_ms
    if not last.tasks or not took or not interval or took < OF_INTERVAL * interval:
        return
    slowest = max(last.tasks, key=lambda task: task.async_ms)
    in_storage = slowest.async_ms + last.metadata_ms
    if in_storage < UPLOAD_SHARE * took:
        return
    uploaded = sum(task.bytes_uploaded for task in last.tasks)
    yield Finding(
        code="bounded-by-checkpoint-storage",
        severity=Severity.WARNING,
        title="Bounded by the checkpoint storage",
        sentence=f"Checkpoint {last.checkpoint_id} took {span(took)} of its interval of {span(interval)}, and "
        f"{span(in_storage)} of that went into the storage, to write {size(uploaded)}",
        figure=f"{share(in_storage, took)}, {size(uploaded / max(in_storage / SECOND, 0.001))}/s",
        do="take a faster storage or one that is nearer, raise checkpointing.interval, or keep less state",
        task=slowest.task_id,
        weight=in_storage / took,
        where=f"minflinkd checkpoints {facts.details.job_id}",
    )


def slow(facts: JobFacts) -> Iterator[Finding]:
    """A checkpoint takes longer than its interval, for another reason than the storage."""
    statistics = facts.checkpoints
    if statistics is None or not facts.running or (last := statistics.latest_completed) is None or not last.warning:
        return
    if any(True for _ in storage_slow(facts)):
        return
    yield Finding(
        code="checkpoints-slow",
        severity=Severity.WARNING,
        title="Checkpoints take longer than their interval",
        sentence=f"Checkpoint {last.checkpoint_id}: {last.warning.partition(': ')[0]}",
        figure=span(last.duration_ms + last.metadata_ms),
        do=last.warning.partition(": ")[2] or "raise checkpointing.interval",
        weight=0.5,
        where=f"minflinkd checkpoints {facts.details.job_id}",
    )


def storage_answers_slowly(facts: JobFacts) -> Iterator[Finding]:
    """Even small requests take long."""
    statistics = facts.checkpoints
    if statistics is None or not facts.running:
        return
    for kind, calls in sorted(statistics.calls.items()):
        if calls.count >= REQUESTS and calls.average_ms >= SLOW_REQUEST:
            yield Finding(
                code="storage-answers-slowly",
                severity=Severity.WARNING,
                title="The checkpoint storage answers slowly",
                sentence=f"A {kind} request of the daemon to the checkpoint storage takes "
                f"{span(calls.average_ms)}, the mean of {number(calls.count)}",
                figure=span(calls.average_ms),
                do="look at the storage and the network to it; minflinkd plugins --check URI tries it",
                weight=0.4,
                where=f"minflinkd checkpoints {facts.details.job_id}",
            )
            return


def overdue(facts: JobFacts) -> Iterator[Finding]:
    """None has completed for several intervals, and none has failed."""
    statistics = facts.checkpoints
    if statistics is None or not facts.running or not statistics.interval_ms or statistics.consecutive_failures:
        return
    done = statistics.latest_completed
    entered = facts.details.timestamps.get("RUNNING", 0)
    since = max(done.latest_ack_ms if done is not None else 0, entered)
    waited = facts.now - since
    if not since or waited < max(OVERDUE, MISSED * statistics.interval_ms):
        return
    pending = min(statistics.in_progress, key=lambda record: record.triggered_ms, default=None)
    yield Finding(
        code="checkpoints-overdue",
        severity=Severity.WARNING,
        title="No checkpoint completes",
        sentence=f"No checkpoint has completed for {span(waited)}, with an interval of {span(statistics.interval_ms)}"
        + _pending(pending, facts.now),
        figure=span(waited),
        do="a checkpoint waits for the micro-batch in progress: see whether one is stuck, and let sources read less at "
        "once (maxFilesPerTrigger, maxOffsetsPerTrigger)",
        since_ms=since,
        weight=2.0,
        where=f"minflinkd checkpoints {facts.details.job_id}",
    )


def _pending(record: CheckpointRecord | None, now: int) -> str:
    if record is None:
        return ""
    waits = f" and waits for {', '.join(record.missing)}" if record.missing else ""
    return f"; number {record.checkpoint_id} has been under way for {span(now - record.triggered_ms)}{waits}"


def damaged(facts: JobFacts) -> Iterator[Finding]:
    """What the job would be restored from is not what was written."""
    statistics = facts.checkpoints
    if statistics is None or not statistics.damaged:
        return
    ids = ", ".join(str(record.checkpoint_id) for record in statistics.damaged)
    yield Finding(
        code="checkpoints-damaged",
        severity=Severity.WARNING,
        title="Checkpoints are damaged",
        sentence=f"Files of the retained checkpoints {ids} are missing or not what was written",
        figure=f"{len(statistics.damaged)} damaged",
        do=f"minflinkd checkpoints {facts.details.job_id} --verify names the files; put them back, or take a new "
        f"checkpoint now: minflinkd checkpoint {facts.details.job_id}",
        weight=2.2,
        where=f"minflinkd checkpoints {facts.details.job_id}",
    )
