"""The graph that a test runs in place of the job's: sources read rows of the test, sinks keep their rows. Pure.

Everything in between is the job's own, and so are its tasks: the graph is cut where the job's is cut. To read the rows
of a vertex that is no sink, another graph runs beside it, a *view*: the vertex, all that leads to it, and a sink.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from msgspec.structs import replace

from minflinkd.jobgraph.bad_records import in_agreement
from minflinkd.jobgraph.delivery import delivery_of, refused_mode
from minflinkd.jobgraph.faults import GraphFault, meant
from minflinkd.jobgraph.model import (
    Delivery,
    Execution,
    Input,
    JobGraph,
    OutputMode,
    RuntimeMode,
    Sink,
    Source,
    Vertex,
    Watermark,
)
from minflinkd.jobgraph.params import resolve
from minflinkd.jobgraph.records import record_formats
from minflinkd.runtime.ids import VertexId
from minflinkd.runtime.units import Duration

KEEPS = "minflinkd.testing.keeping:KeptRows"

# What Spark's own sources yield, which have no schema in a job file.
_KAFKA = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT"
_RATE = "timestamp TIMESTAMP, value BIGINT"
KNOWN_SCHEMAS = {
    "kafka": _KAFKA,
    "rate": _RATE,
    "rate-micro-batch": _RATE,
    "socket": "value STRING",
    "text": "value STRING",
}


class NoSuchVertex(LookupError):
    """The job has no vertex of this name, or none of this kind."""

    def __str__(self) -> str:
        return str(self.args[0])


def find(graph: JobGraph, name: str, kinds: Collection[str] = ()) -> Vertex:
    """Return a vertex. Raises NoSuchVertex."""
    known = [vertex.id for vertex in graph.vertices if not kinds or vertex.kind in kinds]
    if name not in known:
        what = " or ".join(kinds) or "vertex"
        raise NoSuchVertex(
            f"the job {graph.name} has no {what} {name!r} ({meant(name, known, 'it has') or 'it has none'})"
        )
    return graph.vertex(name)


def schema_of(vertex: Vertex, given: Mapping[str, str], graph: JobGraph) -> str | None:
    """Return the schema of a source's rows as it is written; None if only Spark or the source itself knows it."""
    if vertex.id in given:
        return given[vertex.id]
    source = resolve(vertex, graph.params).source
    assert source is not None
    return source.schema or (None if record_formats(source) else KNOWN_SCHEMAS.get(source.format))


def under_test(
    graph: JobGraph,
    schemas: Mapping[str, str],
    places: Mapping[str, Path],
    parallelism: int,
    marks: Mapping[str, Watermark],
) -> JobGraph:
    """Return the graph with the sources and sinks of a test.

    `schemas`, `places`: of the sources, and where their rows are. `marks`: watermarks that sources have set themselves.
    """
    vertices = in_agreement(_replaced(vertex, schemas, places, parallelism, marks) for vertex in graph.vertices)
    if graph.execution is Execution.REAL_TIME:  # it has this mode
        vertices = tuple(v if v.sink is None else replace(v, output_mode=OutputMode.UPDATE) for v in vertices)
    return replace(
        graph,
        vertices=vertices,
        mode=RuntimeMode.STREAMING,  # it ends when the test says so
        parallelism=parallelism,
        min_parallelism=1,
        max_parallelism=None,
        trigger_interval=Duration(0.0),
        execution=Execution.MICRO_BATCH,  # its sources and sinks are files
        restore=None,
        autoscaler=None,
    )


def _replaced(
    vertex: Vertex,
    schemas: Mapping[str, str],
    places: Mapping[str, Path],
    parallelism: int,
    marks: Mapping[str, Watermark],
) -> Vertex:
    vertex = vertex if vertex.parallelism is None else replace(vertex, parallelism=parallelism)
    if vertex.source is not None:
        source = Source(
            format="parquet",
            path=str(places[vertex.id]),
            schema=schemas[vertex.id],
            options={"maxFilesPerTrigger": "1"},  # one feed, one micro-batch
        )
        watermark = vertex.watermark or marks.get(vertex.id)
        return replace(vertex, source=source, watermark=watermark, on_bad_record=None)  # a test gives good rows
    if vertex.sink is None:
        return vertex
    kept = Sink(python=KEEPS, delivery=Delivery.EXACTLY_ONCE, partition_by=vertex.sink.partition_by)
    return replace(vertex, sink=kept, output_mode=vertex.output_mode or _only_mode(vertex.sink))


def _only_mode(sink: Sink) -> OutputMode | None:
    """Return the output mode of a sink that can take no other."""
    modes = [mode for mode in OutputMode if refused_mode(sink, mode) is None]
    return modes[0] if len(modes) == 1 else None


def own_words(fault: GraphFault, graph: JobGraph) -> GraphFault:
    """Return a fault of the replaced graph as it would be found in the job's own."""
    for vertex in graph.vertices:
        if vertex.sink is not None and vertex.output_mode is None and fault.path == f"vertices.{vertex.id}.output-mode":
            return replace(fault, path=f"vertices.{vertex.id}")
    return fault


def repeats(graph: JobGraph, sink: str) -> bool:
    """Whether rows of the sink are visible at once, and again after a restart: it is at-least-once."""
    found = graph.vertex(sink).sink
    return found is not None and delivery_of(found) is Delivery.AT_LEAST_ONCE


def view(graph: JobGraph, name: str) -> JobGraph:
    """Return the graph that ends at this vertex of a replaced graph, with a sink there."""
    by_id = {vertex.id: vertex for vertex in graph.vertices}
    wanted: dict[VertexId, Vertex] = {}
    waiting = [VertexId(name)]
    while waiting:
        vertex = by_id[waiting.pop()]
        if vertex.id not in wanted:
            wanted[vertex.id] = vertex
            waiting += [edge.id for edge in vertex.inputs]
    kept = Vertex(
        id=view_sink(name),
        inputs=(Input(id=VertexId(name)),),
        sink=Sink(python=KEEPS, delivery=Delivery.EXACTLY_ONCE),
        slot_sharing_group=by_id[VertexId(name)].slot_sharing_group,
    )
    return replace(graph, name=f"{graph.name}/{name}", vertices=(*wanted.values(), kept))


def view_sink(name: str) -> VertexId:
    return VertexId(f"rows_of_{name}")
