"""Which rows a batch job reads that has an `input-range`. Pure.

Example: `input-range: {from: 2026-03-01, to: 2026-03-02}` reads the first of March.

A vertex with a watermark says what the time of a row is. So rows are chosen there, by their event time, and windows get
all of their rows. Where no vertex has a watermark, a row has the time at which its record was written: the timestamp of
a Kafka record, the modification time of a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from minflinkd.jobgraph.bad_records import senders
from minflinkd.jobgraph.delivery import key_of
from minflinkd.jobgraph.faults import Faults, at, show, vertex_path
from minflinkd.jobgraph.formats import FILE_FORMATS
from minflinkd.jobgraph.model import JobGraph, RuntimeMode, Source, Struct, Vertex
from minflinkd.runtime.ids import VertexId

EARLY_MS = 3_600_000  # how long before its event a record may seem to be written, as clocks differ

_TIMES = "2026-03-01, or 2026-03-01T06:00, in UTC; or with a zone: 2026-03-01T06:00+02:00"


class Limit(Struct, frozen=True):
    """The rows of a vertex that are read: those of `since_ms` and later, but before `until_ms`, since 1970.

    `column`: the event time. Empty: the time when a record was written, of a source. `until_ms` None: no end.
    """

    since_ms: int
    until_ms: int | None
    column: str = ""


class Limits(Struct, frozen=True):
    """`since_ms`, `until_ms`: the range. `guarded`: its rows must not replace those of another time."""

    since_ms: int
    until_ms: int
    vertices: dict[VertexId, tuple[Limit, ...]]
    guarded: bool = False


def parse_time(text: str) -> int | None:
    """Return a time of ISO 8601 in milliseconds since 1970; None if it is none. Without a zone it is UTC."""
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return round((time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp() * 1000)


def format_time(ms: int) -> str:
    """Return a time as `parse_time` reads it, in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds" if ms % 1000 else "seconds")


def check_input_range(graph: JobGraph, faults: Faults) -> None:
    """Check the range, and that the time of each row is known."""
    if graph.input_range is None:
        return
    if graph.mode is not RuntimeMode.BATCH:
        faults.add("input-range", "a streaming job has no end of its input", "mode: batch, or leave input-range out")
    if graph.restore is not None:
        problem = "a job with a range begins with empty state: state of other rows would be mixed with it"
        faults.add("restore", problem, "leave one of the two out")
    times = {"from": graph.input_range.since, "to": graph.input_range.until}
    read = {key: parse_time(text) for key, text in times.items()}
    for key, ms in read.items():
        if ms is None:
            faults.add(at("input-range", key), f"{show(times[key])} is not a time", _TIMES)
    since, until = read["from"], read["to"]
    if since is not None and until is not None and until <= since:
        faults.add("input-range.to", f"{show(times['to'])} is not later than {show(times['from'])}")
    reach = _Reach(graph)
    for vertex in graph.vertices:
        if vertex.source is not None:
            _check_source(vertex, vertex.source, reach, faults)


def limits(graph: JobGraph) -> Limits | None:
    """Return which rows a graph reads; None: all, or its range is a fault, of which the check of the job tells."""
    if graph.input_range is None:
        return None
    since, until = parse_time(graph.input_range.since), parse_time(graph.input_range.until)
    if since is None or until is None or until <= since:
        return None
    reach = _Reach(graph)
    found: dict[VertexId, tuple[Limit, ...]] = {}
    for vertex in graph.vertices:
        own = tuple(_limits(vertex, reach, since, until))
        if own:
            found[vertex.id] = own
    keyed = any(key_of(vertex.sink) for vertex in graph.vertices if vertex.sink is not None)
    guarded = keyed and not graph.input_range.allow_other_times
    return Limits(since_ms=since, until_ms=until, vertices=found, guarded=guarded)


def _limits(vertex: Vertex, reach: _Reach, since: int, until: int) -> Iterator[Limit]:
    if vertex.source is not None:
        if vertex.id in reach.plain:
            yield Limit(since_ms=since, until_ms=until)
        elif vertex.source.format == "kafka":  # an event is not older than its record: what is older is not read
            yield Limit(since_ms=since - EARLY_MS, until_ms=None)
    if vertex.watermark is not None and vertex.id in reach.first:
        yield Limit(since_ms=since, until_ms=until, column=vertex.watermark.column)


def _check_source(vertex: Vertex, source: Source, reach: _Reach, faults: Faults) -> None:
    path = vertex_path(vertex.id)
    timed, plain = reach.timed.get(vertex.id, ()), reach.plain.get(vertex.id, ())
    if timed and plain:
        problem = f"{timed[0]} reads it by event time, and on its way to {plain[0]} no vertex has a watermark"
        faults.add(path, f"{problem}: what is its time in the range?", "give the other way a watermark, too")
    if source.format.startswith("rate"):
        faults.add(at(path, "source"), "a rate source has no rows of another time", "leave input-range out")
    elif plain and (source.python is not None or source.format not in (*FILE_FORMATS, "kafka")):
        problem = "nobody knows the time of its rows"
        faults.add(path, problem, "give it, or a vertex after it, a watermark: the range is then of event time")


class _Reach:
    """What rows of each source meet first: a vertex with a watermark, or a sink.

    `timed`: source -> the vertices with a watermark that its rows come to first. `first`: all of them. `plain`: source
    -> the sinks that its rows come to without meeting one.
    """

    def __init__(self, graph: JobGraph) -> None:
        readers: dict[str, list[Vertex]] = {vertex.id: [] for vertex in graph.vertices}
        for vertex in graph.vertices:
            for edge in vertex.inputs:
                if edge.id in readers:
                    readers[edge.id].append(vertex)
        self.timed: dict[VertexId, list[VertexId]] = {}
        self.plain: dict[VertexId, list[VertexId]] = {}
        of_bad_records = senders(graph.vertices)
        for source in graph.vertices:
            if source.source is None:
                continue
            seen, rest = {source.id}, [source]
            while rest:
                vertex = rest.pop()
                if vertex.watermark is not None:
                    self.timed.setdefault(source.id, []).append(vertex.id)
                elif vertex.kind == "sink" and vertex.id not in of_bad_records:
                    self.plain.setdefault(source.id, []).append(vertex.id)
                else:
                    new = [reader for reader in readers[vertex.id] if reader.id not in seen]
                    seen.update(reader.id for reader in new)
                    rest += new
        self.first = frozenset(vertex for found in self.timed.values() for vertex in found)
