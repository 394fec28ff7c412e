"""What goes out: tables of sinks that are not compacted."""

from __future__ import annotations

from collections.abc import Iterator

from minflinkd.diagnosis.facts import JobFacts
from minflinkd.diagnosis.findings import Finding, Severity

OVERTAKEN = 5  # commits, and none that was first: it is no accident any more


def failing_compactions(facts: JobFacts) -> Iterator[Finding]:
    """The last compaction of a sink's table has failed, or each one is overtaken. Small files slow down its readers."""
    for task in facts.running_tasks():
        for sink, figures in task.metrics.compactions.items():
            if figures.failure:
                sentence, figure = (
                    f"Compacting the table of sink {sink} fails: {figures.failure}",
                    f"{figures.failed} failed",
                )
                do = "do what the message says; the job keeps writing"
            elif figures.overtaken >= OVERTAKEN and not figures.files:
                sentence = f"Each compaction of the table of sink {sink} is overtaken by commits that change its files"
                figure, do = f"{figures.overtaken} overtaken", "let the other writers change fewer files, or less often"
            else:
                continue
            yield Finding(
                code="compaction-fails",
                severity=Severity.WARNING,
                title="A table is not compacted",
                sentence=sentence,
                figure=figure,
                do=do,
                task=task.task.id,
                task_manager=task.resource_id or "",
            )
