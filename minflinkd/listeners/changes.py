"""What has changed between two looks at the jobs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from minflinkd.jobgraph.model import JobGraph, Vertex
from minflinkd.listeners.interface import ChangeKind, Dataset, JobChange
from minflinkd.rpc.jobs import JobDetails, JobOverview, JobStatus
from minflinkd.runtime.ids import JobId
from minflinkd.storage.masking import masked

RECENT = 3600_000  # ms; jobs that ended before a leadership are told again if they ended no longer ago
LONGEST_SQL = 16 * 1024  # characters
MOST_DATASETS = 100  # of each kind

_ENDS = {
    JobStatus.FINISHED: ChangeKind.COMPLETED,
    JobStatus.FAILED: ChangeKind.FAILED,
    JobStatus.CANCELED: ChangeKind.CANCELED,
}


@dataclass(frozen=True)
class Seen:
    """The jobs at the last look: whether each had ended. None: this is the first look of a leadership."""

    ended: Mapping[JobId, bool] | None = None


@dataclass(frozen=True)
class Look:
    """What is to be told after a look, and what was seen."""

    seen: Seen
    news: tuple[tuple[JobId, tuple[ChangeKind, ...]], ...] = field(default=())


def look(before: Seen, jobs: Iterable[JobOverview], now: int) -> Look:
    """Return what is new.

    At the first look, jobs that run have started, and jobs that ended lately have ended: perhaps nobody was told, as
    the daemon before was lost. Told twice, it does no harm.
    """
    news: list[tuple[JobId, tuple[ChangeKind, ...]]] = []
    ended: dict[JobId, bool] = {}
    for job in sorted(jobs, key=lambda each: (each.start_ms, each.job_id)):
        ended[job.job_id] = job.status.terminal
        known = None if before.ended is None else before.ended.get(job.job_id)
        old = before.ended is None and job.status.terminal and now - job.end_ms > RECENT
        if old or known is job.status.terminal:
            continue
        started = (ChangeKind.STARTED,) if known is None else ()
        end = (_ENDS[job.status],) if job.status in _ENDS else ()
        if started or end:
            news.append((job.job_id, (*started, *end)))
    return Look(Seen(ended), tuple(news))


def changes(details: JobDetails, kinds: Iterable[ChangeKind]) -> Iterator[JobChange]:
    """Yield the changes of a job with what they are about."""
    graph = details.graph
    for kind in kinds:
        ends = kind is not ChangeKind.STARTED
        failure = details.failures[0] if kind is ChangeKind.FAILED and details.failures else None
        yield JobChange(
            kind=kind,
            job_id=details.job_id,
            name=graph.name,
            at_ms=details.end_ms if ends and details.end_ms >= 0 else details.start_ms,
            started_ms=details.start_ms,
            owner=details.owner,
            inputs=tuple(map(_source, [v for v in graph.vertices if v.source is not None][:MOST_DATASETS])),
            outputs=tuple(map(_sink, [v for v in graph.vertices if v.sink is not None][:MOST_DATASETS])),
            sql=_sql(graph),
            error=None if failure is None else failure.error,
        )


def _source(vertex: Vertex) -> Dataset:
    source = vertex.source
    assert source is not None
    kind = "python" if source.python is not None else source.format
    return Dataset(vertex=vertex.id, format=kind, path=source.path or "", options=masked(source.options))


def _sink(vertex: Vertex) -> Dataset:
    sink = vertex.sink
    assert sink is not None
    kind = "python" if sink.python is not None else sink.format
    return Dataset(vertex=vertex.id, format=kind, path=sink.path or "", options=masked(sink.options))


def _sql(graph: JobGraph) -> str:
    found = [f"-- {vertex.id}\n{vertex.sql.strip()}" for vertex in graph.vertices if vertex.sql]
    return ";\n".join(found)[:LONGEST_SQL]
