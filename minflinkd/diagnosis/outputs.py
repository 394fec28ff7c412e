"""What goes out: tables of sinks that cannot be compacted."""

from __future__ import annotations

from collections.abc import Iterator

from minflinkd.diagnosis.facts import JobFacts
from minflinkd.diagnosis.findings import Finding, Severity


def failing_compactions(facts: JobFacts) -> Iterator[Finding]:
    """The last compaction of a sink's table has failed. Readers get slower with each small file."""
    for task in facts.running_tasks():
        for sink, told in task.metrics.compactions.items():
            if told.failure:
                yield Finding(
                    code="compaction-fails",
                    severity=Severity.WARNING,
                    title="A table is not compacted",
                    sentence=f"The table of sink {sink} keeps its small files, as its compaction fails: {told.failure}",
                    figure=f"{told.failed} failed",
                    do="the message says it; rows are written as before",
                    task=task.task.id,
                    task_manager=task.resource_id or "",
                )
