"""State that grows without end."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from minflinkd.diagnosis.facts import JobFacts
from minflinkd.diagnosis.findings import Finding, Severity
from minflinkd.diagnosis.words import number, share, size, span
from minflinkd.jobgraph.model import JobGraph
from minflinkd.rpc.jobs import TaskDetails

WORTH_A_WORD = 10_000  # rows; less state harms nobody
GROWTH = 0.1  # more than at the beginning of the history
STEPS = 12  # values of the history that are enough to speak of growth; there is one a minute
RISING = 0.9  # of its steps do not go down: state with an end goes up and down
LEFT_IN_STATE = 0.5  # of the rows read, where there is no history: nearly each row is a key of its own


def grows_without_end(facts: JobFacts) -> Iterator[Finding]:
    """A stateful task without a watermark forgets nothing."""
    if any_watermark(facts.details.graph):
        return
    for task in facts.running_tasks():
        rows = task.metrics.state_rows
        if rows < WORTH_A_WORD or task.metrics.watermark_ms is not None:
            continue
        if (told := _growth(facts, task)) is None:
            continue
        figure, how, weight = told
        yield Finding(
            code="state-grows",
            severity=Severity.WARNING,
            title="State grows without end",
            sentence=f"Task {task.task.name} keeps {number(rows)} rows of state ({size(task.metrics.state_bytes)} of "
            f"memory) and forgets none, because no vertex of the job has a watermark; {how}",
            figure=figure,
            do="give the source a watermark and group by window or by the event time, so that old rows can be "
            "forgotten; or let transformWithState expire keys (timeToLive)",
            task=task.task.id,
            task_manager=task.resource_id or "",
            weight=weight,
        )


def any_watermark(graph: JobGraph) -> bool:
    return any(vertex.watermark is not None for vertex in graph.vertices)


def _growth(facts: JobFacts, task: TaskDetails) -> tuple[str, str, float] | None:
    """Return the figure, how it grows, and its weight; None if it does not."""
    history = facts.history_of(task)
    known = history.known("state_rows")
    if len(known) >= STEPS:
        first, last = known[0], known[-1]
        rising = sum(b >= a for a, b in pairwise(known)) / (len(known) - 1)
        if last < first * (1 + GROWTH) or rising < RISING:
            return None
        period = span(history.step_ms * (len(known) - 1))
        return f"+{number(last - first)} rows", f"{number(last - first)} rows were added in the last {period}", 1.0
    read = task.metrics.rows_in
    if task.attempt_number or not read or task.metrics.state_rows < LEFT_IN_STATE * read:
        return None
    kept = share(min(task.metrics.state_rows, read), read)
    return kept, f"that is {kept} of the {number(read)} rows that it has read", 0.5
