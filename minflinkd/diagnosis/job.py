"""All rules about one job."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from minflinkd.diagnosis import (
    autoscaler,
    backpressure,
    checkpoints,
    inputs,
    outputs,
    restarts,
    slots,
    state,
    throughput,
)
from minflinkd.diagnosis.facts import JobFacts
from minflinkd.diagnosis.findings import Finding, Severity, ordered
from minflinkd.diagnosis.words import number, span

Rule = Callable[[JobFacts], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    restarts.failed,
    restarts.same_error,
    restarts.recent_failure,
    restarts.lost_task_manager,
    slots.too_few,
    slots.fewer_than_wanted,
    slots.unheard,
    autoscaler.limited,
    backpressure.full_disk,
    backpressure.backpressured,
    checkpoints.failing,
    checkpoints.overdue,
    checkpoints.damaged,
    checkpoints.storage_slow,
    checkpoints.slow,
    checkpoints.storage_answers_slowly,
    inputs.held_watermark,
    inputs.silent_sources,
    inputs.sources_behind,
    inputs.late_rows,
    inputs.rejected_records,
    outputs.failing_compactions,
    state.grows_without_end,
    throughput.stuck_micro_batch,
    throughput.source_slow,
    throughput.state_commits,
    throughput.python_workers,
    throughput.garbage_collection,
    throughput.skewed_partitions,
)


def diagnose(facts: JobFacts) -> tuple[Finding, ...]:
    """Return what limits or ails the job, what hurts most first."""
    return ordered(_of_job(facts, finding) for rule in RULES for finding in rule(facts))


def _of_job(facts: JobFacts, finding: Finding) -> Finding:
    """Return what a rule has found, with the job, and with the command that shows most of it if the rule names none."""
    job_id = facts.details.job_id
    return replace(finding, job=job_id, where=finding.where or f"minflinkd info {job_id}")


def summary(facts: JobFacts, findings: tuple[Finding, ...]) -> str:
    """Return one sentence on how the job does."""
    worst = [finding for finding in findings if finding.severity is not Severity.INFO]
    if worst:
        return f"{worst[0].title}."
    if not facts.running:
        return f"The job is {facts.details.status}."
    tasks = list(facts.running_tasks())
    rate = sum(task.metrics.rows_per_second for task in tasks if any(v.source is not None for v in task.task.vertices))
    if tasks and all(throughput.keeps_up(task.metrics) for task in tasks):
        slowest = max((task.metrics.batch_ms for task in tasks if task.metrics.real_time is None), default=None)
        if slowest is None:
            return f"The job keeps up. The last batches processed {number(rate)} rows/s."
        return (
            "The job keeps up: only its sources bound it. "
            f"The last micro-batches took at most {span(slowest)}, and processed {number(rate)} rows/s."
        )
    return "No problem of the job is known."
