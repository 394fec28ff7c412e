"""What comes in: sources without data, inputs that hold the watermark back, rows that come too late."""

from __future__ import annotations

from collections.abc import Iterator

from minflinkd.checkpoint.row_counts import bad_records
from minflinkd.diagnosis.facts import JobFacts
from minflinkd.diagnosis.findings import Finding, Severity
from minflinkd.diagnosis.words import MINUTE, SECOND, number, share, span
from minflinkd.jobgraph.bad_records import bad_record_sink
from minflinkd.rpc.jobs import TaskDetails

QUIET = 1 * MINUTE  # without a row: worth a word to who looks
SILENT = 10 * MINUTE  # without a row: worth a warning
HELD = 1 * MINUTE  # that the watermark stood still while another input went on
BEHIND = 1 * MINUTE  # that reading takes what waits: worth a word
FAR_BEHIND = 10 * MINUTE  # worth a warning
MOST = 0.75  # of what waits, if it is in one of several partitions: then they are uneven
LATE_SHARE = 0.01  # of the rows: more than stragglers


def silent_sources(facts: JobFacts) -> Iterator[Finding]:
    """A source has delivered nothing for long, though its task is ready to read."""
    for task in facts.running_tasks():
        if not _reads(task):
            continue
        for vertex in (each for each in task.task.vertices if each.source is not None):
            last = task.metrics.source_rows_ms.get(vertex.id)
            since = last if last is not None else task.start_ms
            if since < 0 or (quiet := facts.now - since) < QUIET:
                continue
            place = f" ({vertex.source.path})" if vertex.source is not None and vertex.source.path else ""
            what = "has delivered no row yet" if last is None else "has delivered no row"
            yield Finding(
                code="source-without-data",
                severity=Severity.WARNING if quiet >= SILENT else Severity.INFO,
                title="A source without data",
                sentence=f"Source {vertex.id}{place} {what} for {span(quiet)}; its task {task.task.name} waits for it"
                + _in_kafka(task, vertex.id),
                figure=span(quiet),
                do="see whether whoever writes there still does, and whether the path, topic or filter of the source "
                "is right",
                since_ms=since,
                task=task.task.id,
                task_manager=task.resource_id or "",
                weight=quiet / SILENT,
            )


def _reads(task: TaskDetails) -> bool:
    """Whether the task would read a new row at once: it is not busy with earlier ones."""
    metrics = task.metrics
    return metrics.batch_since_ms is None and not metrics.backpressured and not metrics.waits_for_space


def _in_kafka(task: TaskDetails, source: str) -> str:
    """Say what there is for a source that delivers nothing: who writes may be at fault, or who reads."""
    if (told := task.pending.get(source)) is None:
        return ""
    return f", although {number(told.records)} records wait in Kafka" if told.records else "; no record waits in Kafka"


def sources_behind(facts: JobFacts) -> Iterator[Finding]:
    """More records wait in Kafka than the task reads in a minute."""
    for task in facts.running_tasks():
        rate = task.metrics.rows_per_second
        for source, told in sorted(task.pending.items()):
            if rate <= 0 or (takes := told.records / rate * SECOND) < BEHIND:
                continue
            part, most = max(told.parts.items(), key=lambda item: item[1], default=("", 0))
            uneven = len(told.parts) > 1 and most > MOST * told.records
            where = f"; {number(most)} of them are in {part}" if uneven else ""
            do = (
                "see how whoever writes chooses the partition; with minPartitions of the source several Spark tasks "
                "read one partition"
                if uneven
                else "see below what its micro-batches spend their time on, or give it more parallelism (minflinkd "
                "rescale); after a start from old offsets this is as it should be, and goes away"
            )
            yield Finding(
                code="source-behind",
                severity=Severity.WARNING if takes >= FAR_BEHIND else Severity.INFO,
                title="A source is behind",
                sentence=f"{number(told.records)} records of Kafka wait for source {source} of task {task.task.name}: "
                f"at its present {number(rate)} rows/s it needs {span(takes)} for them{where}",
                figure=span(takes),
                do=do,
                task=task.task.id,
                task_manager=task.resource_id or "",
                weight=takes / FAR_BEHIND,
            )


def held_watermark(facts: JobFacts) -> Iterator[Finding]:
    """Windows wait for an input without rows, since the watermark is the least of all inputs."""
    for task in facts.running_tasks():
        times, moved = task.metrics.source_rows_ms, task.metrics.watermark_moved_ms
        inputs = [v.id for v in task.task.vertices if v.source is not None] + [e.id for e in task.task.inputs]
        if len(inputs) < 2 or not times or task.metrics.newest_ms is None:
            continue
        stood_since = moved if moved is not None else task.start_ms
        active, newest = max(times.items(), key=lambda item: item[1])
        if stood_since < 0 or newest - stood_since < HELD:
            continue
        idle = [name for name in inputs if times.get(name, -1) <= stood_since and name != active]
        if not idle:
            continue
        first = min(idle, key=lambda name: times.get(name, -1))
        ahead = span(task.metrics.newest_ms - task.metrics.watermark_ms) if task.metrics.watermark_ms else ""
        edges = {edge.id for edge in task.task.inputs}
        do = (
            f"give the input {first} an idle-timeout, or let its upstream send something"
            if first in edges
            else f"let {first} send something from time to time, or read it in a task of its own (exchange: true) with "
            "an idle-timeout"
        )
        yield Finding(
            code="watermark-held-back",
            severity=Severity.WARNING,
            title="The watermark is held back by an idle input",
            sentence=f"The watermark of task {task.task.name} has stood still for {span(newest - stood_since)} because "
            f"{first} delivers no rows, while {active} does"
            + (f"; the newest row is {ahead} ahead of it" if ahead else ""),
            figure=span(newest - stood_since),
            do=do,
            since_ms=stood_since,
            task=task.task.id,
            task_manager=task.resource_id or "",
            weight=2.0,  # windows do not fire
        )


def rejected_records(facts: JobFacts) -> Iterator[Finding]:
    """A source cannot parse records, or a vertex rejects them."""
    for task in facts.running_tasks():
        for vertex in task.task.vertices:
            bad = bad_records(task.task, task.rows).get(vertex.id, 0)
            if not bad:
                continue
            sink = bad_record_sink(vertex)
            found = f"{number(bad)} bad record{'s' if bad > 1 else ''}"
            goes = "bad records are dropped" if sink is None else f"bad records go to {sink}, with what is wrong"
            yield Finding(
                code="bad-records",
                severity=Severity.WARNING,
                title="Records are bad",
                sentence=f"{vertex.id} has found {found} since the job was submitted; {goes}",
                figure=number(bad),
                do="tell whoever writes them, or mend the vertex"
                + ("; session.log shows some, and a sink would have all" if sink is None else ""),
                task=task.task.id,
                task_manager=task.resource_id or "",
                weight=bad / max(sum(task.rows.read.values()), 1),
            )


def late_rows(facts: JobFacts) -> Iterator[Finding]:
    """Rows come after the watermark has passed them, and are dropped."""
    for task in facts.running_tasks():
        late, read = task.metrics.late_rows, task.metrics.rows_in
        if not late or late < LATE_SHARE * max(read, 1):
            continue
        yield Finding(
            code="late-rows",
            severity=Severity.WARNING,
            title="Rows come too late",
            sentence=f"Task {task.task.name} has dropped {number(late)} of {number(read)} rows since this attempt "
            "began, because the watermark had passed them",
            figure=share(late, read),
            do="give the watermark of the source a longer delay; then windows fire later and there is more state",
            task=task.task.id,
            task_manager=task.resource_id or "",
            weight=late / max(read, 1),
        )
