"""Tasks that wait: for those that read from them, or for room on a disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from minflinkd.diagnosis.facts import JobFacts
from minflinkd.diagnosis.findings import Finding, Severity
from minflinkd.diagnosis.words import MINUTE, share, size, span
from minflinkd.rpc.jobs import TaskDetails
from minflinkd.runtime.ids import TaskId

HELD_SHARE = 0.5  # of the time: then its readers set the pace, and not the task
LATELY = 5 * MINUTE  # of the history that counts


def backpressured(facts: JobFacts) -> Iterator[Finding]:
    """A task waits for a reader. Named is the last one of the chain, which waits for nobody."""
    by_id = {task.task.id: task for task in facts.details.tasks}
    for task in facts.running_tasks():
        held = _held(facts, task)
        if held is None or held < HELD_SHARE or task.metrics.waits_for_space:
            continue
        slow = _slowest(task, by_id)
        blame, do, at = "its readers", "give the tasks that read from it more parallelism", ""
        if slow is not None:
            name = slow.task.name
            took = f", whose micro-batches take {span(slow.metrics.batch_ms)}" if slow.metrics.batch_ms else ""
            blame, at = f"task {name}{took}", f"; see what limits {name}"
            do = f"give {name} more parallelism (minflinkd rescale), or make it cheaper"
        yield Finding(
            code="backpressure",
            severity=Severity.WARNING,
            title="Backpressure",
            sentence=f"Task {task.task.name} waits {100 * held:.0f} % of the time for {blame}; "
            f"{size(task.metrics.output_backlog)} are in between{at}",
            figure=share(held, 1.0),
            do=do,
            task=task.task.id,
            task_manager=task.resource_id or "",
            weight=held,
        )


def _held(facts: JobFacts, task: TaskDetails) -> float | None:
    """Return the share of the time that the task has waited for readers; None if it does not wait now."""
    if not task.metrics.backpressured:
        return None
    lately = facts.history_of(task).known("backpressured", LATELY)
    if lately:
        return sum(lately) / len(lately)
    ran = facts.now - task.start_ms
    return min(1.0, task.metrics.backpressured_ms / ran) if task.start_ms >= 0 and ran > 0 else None


def _slowest(task: TaskDetails, by_id: Mapping[TaskId, TaskDetails]) -> TaskDetails | None:
    """Follow readers that wait themselves to the one that does not."""
    seen: set[str] = set()
    while True:
        seen.add(task.task.id)
        readers = [by_id[each] for each in task.task.readers if each in by_id and each not in seen]
        if not readers:
            return None
        waiting = [reader for reader in readers if reader.metrics.backpressured]
        if not waiting:
            return max(readers, key=lambda reader: reader.metrics.batch_ms)
        task = waiting[0]
        if not task.task.readers:
            return task


def full_disk(facts: JobFacts) -> Iterator[Finding]:
    """A task processes nothing, since another micro-batch might fill the disk."""
    for task in facts.running_tasks():
        if not task.metrics.waits_for_space:
            continue
        yield Finding(
            code="disk-full",
            severity=Severity.CRITICAL,
            title="A disk is nearly full",
            sentence=f"Task {task.task.name} processes nothing on {task.resource_id or 'its TaskManager'}, "
            f"because a disk is nearly full: {task.metrics.waits_for_space}",
            figure=task.metrics.waits_for_space.partition(" are free")[0],
            do="free space there; the task then goes on by itself. If checkpoints fail as well, mend these first: what "
            "they would publish or replace takes up the room",
            task=task.task.id,
            task_manager=task.resource_id or "",
            where=f"minflinkd logs {task.resource_id or facts.details.job_id}",
            weight=3.0,
        )
