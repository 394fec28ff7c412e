"""What a job does with bad records: those that a source cannot parse, and those that a vertex rejects (K7). Pure.

`on-bad-record: {to: bad}` makes `bad` a sink of bad records. It has no inputs. It belongs to the task of the vertices
that name it, since it takes part in their micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from msgspec.structs import replace

from minflinkd.jobgraph import delivery, params
from minflinkd.jobgraph.faults import Faults, at, meant, show, vertex_path
from minflinkd.jobgraph.model import BadRecordSink, JobGraph, OnBadRecord, OutputMode, Source, Vertex
from minflinkd.jobgraph.records import record_formats
from minflinkd.runtime.ids import VertexId

PARSED = ("json", "csv")  # formats whose parser tells good records from bad ones
CORRUPT = "_corrupt_record"  # a column of a source: the text of a record that it cannot parse
ERROR = "_error"  # a column of a vertex: why it rejects a row, null if it does not

# The columns that a sink of bad records gets, with Spark's types.
COLUMNS = {"time": "timestamp", "vertex": "string", "error": "string", "record": "string", "source": "string"}

_DECIDED = ("mode", "columnnameofcorruptrecord")  # options of Spark's parsers that say the same in another way


def bad_record_sink(vertex: Vertex) -> VertexId | None:
    """Return the sink of the vertex's bad records, if it has one."""
    return vertex.on_bad_record.to if isinstance(vertex.on_bad_record, BadRecordSink) else None


def senders(vertices: Iterable[Vertex]) -> dict[VertexId, list[VertexId]]:
    """Map each sink of bad records to the vertices whose bad records it gets."""
    found: dict[VertexId, list[VertexId]] = {}
    for vertex in vertices:
        if (sink := bad_record_sink(vertex)) is not None:
            found.setdefault(sink, []).append(vertex.id)
    return found


def check_bad_records(graph: JobGraph, faults: Faults) -> None:
    """Check each vertex for itself, and the sink that it names."""
    by_id = {vertex.id: vertex for vertex in graph.vertices}
    for vertex in graph.vertices:
        if vertex.on_bad_record is None:
            continue
        path = at(vertex_path(vertex.id), "on-bad-record")
        if vertex.kind == "sink":
            faults.add(path, "a sink has no bad records", "set it on the vertex that finds them")
        elif vertex.source is not None and vertex.source.python is None:
            _check_source(graph, vertex.source, path, faults)
        if (name := bad_record_sink(vertex)) is not None:
            _check_sink(by_id, name, at(path, "to"), faults)


def _check_source(graph: JobGraph, source: Source, path: str, faults: Faults) -> None:
    if source.format not in PARSED and not record_formats(source):
        problem = f"a {source.format or 'faulty'} source parses no records"
        hint = f"set it on the vertex that parses them, which says in a column {ERROR} what is wrong with a row"
        faults.add(path, problem, hint)
    for name in source.options:
        if name.lower() in _DECIDED:
            faults.add(path, f"the option {name} says what becomes of bad records, too", f"leave {name} out")
    for name, text in source.options.items() if source.format == "json" else ():
        if any(params.problems(text, graph.params)):
            continue  # a fault of its own
        value = params.substitute(text, graph.params)
        if name.lower() == "multiline" and value.lower() != "false":
            problem = "with multiLine, Spark takes a whole file for bad if one of its records is"
            faults.add(path, problem, "write one record to a line, and leave multiLine out")
        if name.lower() in ("encoding", "charset") and value.lower().replace("-", "") not in ("utf8", "usascii"):
            faults.add(
                path, f"Spark does not keep the text of bad records that are in {value}", "write the files in UTF-8"
            )


def _check_sink(by_id: Mapping[VertexId, Vertex], name: VertexId, path: str, faults: Faults) -> None:
    sink = by_id.get(name)
    if sink is None:
        known = [vertex.id for vertex in by_id.values() if vertex.kind == "sink" and not vertex.inputs]
        faults.add(path, f"there is no sink {show(name)}", partial(meant, name, known, "sinks without inputs"))
    elif sink.kind != "sink":
        faults.add(path, f"{name} is no sink", "name a sink of its own, which has no inputs")
    elif sink.inputs:
        problem = f"{name} writes what {sink.inputs[0].id} yields, and bad records have other columns"
        faults.add(path, problem, "name a sink of its own, which has no inputs")
    elif sink.output_mode not in (None, OutputMode.APPEND):
        faults.add(at(vertex_path(name), "output-mode"), "bad records are only appended", "leave it out")
    elif sink.parallelism is not None or sink.slot_sharing_group != "default":
        setting = "parallelism" if sink.parallelism is not None else "slot-sharing-group"
        problem = "a sink of bad records runs with the vertices that send them"
        faults.add(at(vertex_path(name), setting), problem, f"leave {setting} out")
    elif sink.sink is not None and delivery.key_of(sink.sink):
        problem = "bad records have no key by which they could replace each other"
        faults.add(at(at(vertex_path(name), "sink"), "options"), problem, "leave the key out")
    elif sink.sink is not None and (formats := record_formats(sink.sink)):
        part, problem = next(iter(formats)), "bad records are written to Kafka as JSON"
        faults.add(at(at(vertex_path(name), "sink"), part), problem, f"leave {part} and schema-registry out")


def in_agreement(kept: Iterable[Vertex]) -> tuple[Vertex, ...]:
    """Return some vertices of a job without what needs the others.

    A sink to which none of them sends bad records is left out. Bad records whose sink is not among them are dropped.
    """
    vertices = tuple(kept)
    there, sent = {vertex.id for vertex in vertices}, senders(vertices)

    def agreed(vertex: Vertex) -> Vertex:
        sink = bad_record_sink(vertex)
        return vertex if sink is None or sink in there else replace(vertex, on_bad_record=OnBadRecord.DROP)

    return tuple(agreed(v) for v in vertices if v.kind != "sink" or v.inputs or v.id in sent)


def check_senders(sinks: Mapping[VertexId, list[VertexId]], owner: Mapping[VertexId, VertexId], faults: Faults) -> None:
    """Check that the bad records of a sink come from one task. `owner`: the first vertex of a vertex's task."""
    for name, vertices in sinks.items():
        first = vertices[0]
        for vertex in vertices[1:]:
            if owner[vertex] != owner[first]:
                problem = f"{name} gets the bad records of {first}, which is in another task than {vertex}"
                path = at(at(vertex_path(vertex), "on-bad-record"), "to")
                faults.add(path, problem, f"give {vertex} a sink of its own; an exchange divides the tasks")
