"""Makes of a streaming job the batch job that computes a past time again, into the same sinks. Pure.

The batch job has the job's graph, reads an `input-range`, and ends. It runs beside the job, and has state of its own.

A row of the backfill replaces the job's own row if the sink has a key. Any other sink would have both rows. It is
refused, unless it is given another place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from minflinkd.jobgraph.bad_records import bad_record_sink, in_agreement, senders
from minflinkd.jobgraph.chaining import cut_edges
from minflinkd.jobgraph.delivery import key_of
from minflinkd.jobgraph.faults import Faults, GraphFault, at, meant, show, vertex_path
from minflinkd.jobgraph.input_range import format_time, parse_time
from minflinkd.jobgraph.model import (
    Execution,
    InputRange,
    JobGraph,
    OutputMode,
    Recovery,
    RuntimeMode,
    Struct,
    Vertex,
)
from minflinkd.jobgraph.params import problems, resolve
from minflinkd.runtime.ids import VertexId
from minflinkd.runtime.units import Duration

_SHOWS = ("console", "collect")  # sinks that keep nothing
_KEYED = ("jdbc", "delta", "iceberg")  # whose rows replace each other, if they have a key

# Options that say where a sink writes, beside its path.
_PLACES = ("catalog", "table", "catalog.uri", "url", "dbtable", "kafka.bootstrap.servers", "topic")


class Backfill(Struct, frozen=True):
    """`since` and `until` are as in `input-range`. `sinks`: those that it writes; none: all of the job.

    `params` are set or replaced, `parallelism` holds for all tasks, and `name` is the new job's, if they are given.
    """

    since: str
    until: str
    sinks: tuple[str, ...] = ()
    params: dict[str, Any] = {}
    parallelism: int | None = None
    name: str = ""


def backfill_of(job: JobGraph, asked: Backfill, *, now_ms: int, watermark_ms: int | None) -> tuple[JobGraph, list[str]]:
    """Return the batch job, and notes for the user. What the job file's own rules check is not checked here.

    `watermark_ms`: the time up to which the running job is done with its input; None: not known, or it does not run.
    Raises InvalidJobGraph.
    """
    faults, notes = Faults(), list[str]()
    if job.mode is not RuntimeMode.STREAMING:
        faults.add("mode", f"{job.name} is a batch job", "submit its file again, with another input-range")
    for name in sorted(set(asked.params) - set(job.params)):
        faults.add(at("params", name), f"{job.name} has no param {show(name)}", partial(meant, name, job.params))
    params = {**job.params, **asked.params}
    kept = _chosen(job, asked.sinks, faults)
    own = [vertex for vertex in kept if vertex.sink is not None]
    shared = [sink for sink in own if _is_shared(sink, job.params, params)]
    for sink in shared:
        _check_shared(sink, faults, is_fed=sink.id in senders(job.vertices))
    _check_end(asked, now_ms, watermark_ms if shared else None, faults)
    faults.raise_if_any()
    dropped = {bad_record_sink(v) for v in kept} - {None} - {v.id for v in own}
    if dropped:
        names = ", ".join(map(str, dropped))
        notes.append(f"bad records are counted and dropped, since the job itself has sent them to {names}")
    graph = replace(
        job,
        name=asked.name or f"{job.name}-backfill",
        params=params,
        mode=RuntimeMode.BATCH,
        input_range=InputRange(since=asked.since, until=asked.until),
        vertices=_final(in_agreement(kept), asked.parallelism),
        parallelism=asked.parallelism or job.parallelism,
        max_parallelism=max(filter(None, (job.max_parallelism, asked.parallelism)), default=None),
        min_parallelism=1,
        checkpointing=replace(job.checkpointing, externalized=None),
        restore=None,
        recovery=Recovery.RESTART,
        execution=Execution.MICRO_BATCH,
        trigger_interval=Duration(0.0),
    )
    return graph, notes


def _check_end(asked: Backfill, now_ms: int, watermark_ms: int | None, faults: Faults) -> None:
    until = parse_time(asked.until)
    if until is None:
        return  # the job file's own rules say so
    if until > now_ms:
        faults.add("input-range.to", f"{show(asked.until)} has not come yet", f"now it is {format_time(now_ms)}")
    elif watermark_ms is not None and until > watermark_ms:
        problem = "the job itself still works on that time: its watermark has not come so far"
        faults.add("input-range.to", problem, f"{format_time(watermark_ms)}, or earlier; or wait")


def _chosen(job: JobGraph, sinks: Iterable[str], faults: Faults) -> list[Vertex]:
    """Return the chosen sinks and what is on the way to them, in the job's order. Without any, all but bad records."""
    by_id: dict[str, Vertex] = {vertex.id: vertex for vertex in job.vertices}
    known = [vertex.id for vertex in job.vertices if vertex.sink is not None]
    for name in sinks:
        if name not in known:
            faults.add(vertex_path(name), f"there is no sink {show(name)}", partial(meant, name, known))
    rest: list[str] = [name for name in sinks if name in known]
    if not sinks:
        rest = [vertex.id for vertex in job.vertices if vertex.sink is not None and vertex.inputs]
    fed = senders(job.vertices)
    found = set[str]()
    while rest:
        name = rest.pop()
        if name not in found:
            found.add(name)
            rest += [edge.id for edge in by_id[name].inputs]
            rest += fed.get(VertexId(name), ())
    return [vertex for vertex in job.vertices if vertex.id in found]


def _is_shared(vertex: Vertex, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether the sink writes to where the job's own rows are."""
    assert vertex.sink is not None
    place = _place(vertex, after)
    return vertex.sink.format not in _SHOWS and place is not None and place == _place(vertex, before)


def _check_shared(vertex: Vertex, faults: Faults, *, is_fed: bool) -> None:
    sink, hint = vertex.sink, "choose others with --sink, or give it another place with -p, if its place is a param"
    assert sink is not None
    if key_of(sink):
        return
    path = at(vertex_path(vertex.id), "sink")
    if sink.python is not None:
        faults.add(path, "nobody knows whether a Python sink can take rows a second time", hint)
        return
    keyed = sink.format in _KEYED and not is_fed
    problem = f"the job has written these rows, and a {sink.format} sink{' without a key' if keyed else ''} only adds"
    faults.add(path, f"{problem}: they would be there twice", f"give the job's sink a key, {hint}" if keyed else hint)


def _place(vertex: Vertex, params: Mapping[str, Any]) -> tuple[object, ...] | None:
    """Return what tells apart to where sinks write; None if a param has no value, which is a fault of its own."""
    sink = vertex.sink
    assert sink is not None
    if sink.python is not None:
        return (sink.python,)
    texts = [sink.path or "", *sink.options.values()]
    if any(True for text in texts for _ in problems(text, params, secrets=True)):
        return None
    filled = resolve(vertex, params).sink
    assert filled is not None
    return (filled.format, (filled.path or "").rstrip("/"), *(filled.options.get(name) for name in _PLACES))


def _final(vertices: tuple[Vertex, ...], parallelism: int | None) -> tuple[Vertex, ...]:
    """Return the vertices, writing each row once, when it is final: nobody is to see a count that is half done.

    Spark refuses what never is final, such as a total by user. Its rows would be totals of the range, and take the
    place of the job's.
    """
    cut = cut_edges(JobGraph(name="", vertices=vertices))

    def final(vertex: Vertex) -> Vertex:
        changes: dict[str, Any] = {} if parallelism is None else {"parallelism": None}
        changes["inputs"] = tuple(
            replace(edge, output_mode=OutputMode.APPEND) if (edge.id, vertex.id) in cut else edge
            for edge in vertex.inputs
        )
        if vertex.sink is not None and vertex.inputs:
            changes["output_mode"] = OutputMode.APPEND
            if vertex.sink.compaction is not None:  # the job does it
                changes["sink"] = replace(vertex.sink, compaction=None)
        return replace(vertex, **changes)

    return tuple(map(final, vertices))


def in_words_of_a_backfill(fault: GraphFault) -> GraphFault:
    """Return a fault of the batch job for somebody who does not know that it has another output mode."""
    if not fault.path.endswith("output-mode"):
        return fault
    path = fault.path.removesuffix(".output-mode")
    hint = "a backfill writes rows when they are final, and these never are: choose other sinks with --sink"
    return replace(fault, path=path, hint=hint)
