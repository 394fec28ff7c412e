"""Makes of a streaming job the batch job that computes a past time again, into the same sinks. Pure.

The batch job has the job's graph, reads an `input-range`, and ends. It runs beside the job, and has state of its own.

A row of the backfill replaces the job's own row if the sink has a key. Any other sink would have both rows. It is
refused, unless it is given another place.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from minflinkd.jobgraph.bad_records import bad_record_sink, in_agreement, senders
from minflinkd.jobgraph.chaining import cut_edges
from minflinkd.jobgraph.delivery import KEYED_FORMATS, NEWEST_BY, key_of
from minflinkd.jobgraph.faults import Faults, GraphFault, at, meant, show, vertex_path
from minflinkd.jobgraph.formats import FILE_FORMATS, PASSING_FORMATS
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

# Options that say where a sink writes, beside its path.
_PLACES = ("catalog", "table", "catalog.uri", "url", "dbtable", "kafka.bootstrap.servers", "topic")


class Backfill(Struct, frozen=True):
    """What a user asks for. `since`, `until` and `allow_other_times` are as in `input-range`.

    `sinks`: those that it writes; none: all of the job. If they are given, `params` are set or replaced, `parallelism`
    holds for all tasks, and `name` is the new job's.
    """

    since: str
    until: str
    sinks: tuple[str, ...] = ()
    params: dict[str, Any] = {}
    parallelism: int | None = None
    name: str = ""
    allow_other_times: bool = False


class Made(Struct, frozen=True):
    """A backfill. `notes` are for the user. `shares`: it writes to where the job's own rows are."""

    graph: JobGraph
    notes: tuple[str, ...]
    shares: bool


def backfill_of(job: JobGraph, asked: Backfill, *, now_ms: int, done_ms: int | None) -> Made:
    """Return the batch job. What the job file's own rules check is not checked here.

    `done_ms`: the time up to which the running job is done with its input, 0 if it does not say; None: it has ended, or
    has no watermark. Raises InvalidJobGraph.
    """
    faults, notes = Faults(), list[str]()
    if job.mode is not RuntimeMode.STREAMING:
        faults.add("mode", f"{job.name} is a batch job", "submit its file again, with another input-range")
    for name in sorted(set(asked.params) - set(job.params)):
        faults.add(at("params", name), f"{job.name} has no param {show(name)}", partial(meant, name, job.params))
    params = {**job.params, **asked.params}
    kept = _chosen(job, asked.sinks, faults)
    own = [vertex for vertex in kept if vertex.sink is not None]
    places = {_place(vertex, job.params) for vertex in job.vertices if vertex.sink is not None} - {None}
    shared = [sink for sink in own if _is_shared(sink, params, places)]
    for sink in shared:
        _check_shared(sink, faults, is_fed=sink.id in senders(job.vertices))
    _check_end(asked, now_ms, done_ms if shared else None, faults)
    faults.raise_if_any()
    dropped = {bad_record_sink(v) for v in kept} - {None} - {v.id for v in own}
    if dropped:
        names = ", ".join(sorted(map(str, dropped)))
        notes.append(f"bad records are counted and dropped, since the job itself has sent them to {names}")
    for vertex in kept:
        if vertex.source is not None and vertex.source.format not in (*FILE_FORMATS, "kafka"):
            notes.append(f"{vertex.id} is read from where its own code or options begin, perhaps only from now on")
    groups = {vertex.slot_sharing_group for vertex in kept}
    graph = replace(
        job,
        name=asked.name or f"{job.name}-backfill",
        params=params,
        mode=RuntimeMode.BATCH,
        input_range=InputRange(since=asked.since, until=asked.until, allow_other_times=asked.allow_other_times),
        vertices=_final(in_agreement(kept), asked.parallelism),
        parallelism=asked.parallelism or job.parallelism,
        max_parallelism=max(filter(None, (job.max_parallelism, asked.parallelism)), default=None),
        min_parallelism=1,
        checkpointing=replace(job.checkpointing, externalized=None),
        restore=None,
        recovery=Recovery.RESTART,
        execution=Execution.MICRO_BATCH,
        trigger_interval=Duration(0.0),
        autoscaler=None,
        slot_sharing_groups={g: stated for g, stated in job.slot_sharing_groups.items() if g in groups},
    )
    return Made(graph=graph, notes=tuple(notes), shares=bool(shared))


def _check_end(asked: Backfill, now_ms: int, done_ms: int | None, faults: Faults) -> None:
    until = parse_time(asked.until)
    if until is None:
        return  # the job file's own rules say so
    if until > now_ms:
        faults.add("input-range.to", f"{show(asked.until)} has not come yet", f"now it is {format_time(now_ms)}")
    elif done_ms == 0:
        problem = "the job does not say yet how far it is, and may still work on that time"
        faults.add(
            "input-range.to", problem, "wait until `minflinkd info` shows its watermark; or another place, with -p"
        )
    elif done_ms is not None and until > done_ms:
        problem = f"the job itself still works on that time: its watermark is at {format_time(done_ms)}"
        faults.add("input-range.to", problem, "wait; or choose an earlier time at which windows begin")


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
    for name in sinks:  # those of bad records get them from what is computed for the others
        if name in found and fed.get(VertexId(name)) and not found & set(fed[VertexId(name)]):
            problem = "nothing that sends it bad records leads to a sink that is chosen"
            faults.add(vertex_path(name), problem, "choose a sink of results, too")
    return [vertex for vertex in job.vertices if vertex.id in found]


def _is_shared(vertex: Vertex, params: Mapping[str, Any], places: Container[object]) -> bool:
    """Whether the sink writes to where the job's own rows are, of whichever sink."""
    assert vertex.sink is not None
    return vertex.sink.format not in PASSING_FORMATS and _place(vertex, params) in places


def _check_shared(vertex: Vertex, faults: Faults, *, is_fed: bool) -> None:
    sink, hint = vertex.sink, "choose others with --sink, or give it another place with -p, if its place is a param"
    assert sink is not None
    path = at(vertex_path(vertex.id), "sink")
    if key_of(sink):
        if NEWEST_BY in sink.options:
            problem = "its rows are changes of a table, and those of an earlier time would undo later ones"
            faults.add(path, problem, hint)
        return
    if sink.python is not None:
        problem = "nobody knows whether a Python sink can take rows a second time"
        faults.add(path, problem, "choose others with --sink; or submit a job file of your own, with an input-range")
        return
    keyed = sink.format in KEYED_FORMATS and not is_fed
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
    return (filled.format, *map(_plain, (filled.path, *(filled.options.get(name) for name in _PLACES))))


def _plain(place: str | None) -> str:
    """Return a path, or an address, in one of the ways in which it can be written."""
    text = re.sub(r"^s3[an]://", "s3://", re.sub(r"^file:(//)?(?=/)", "", place or ""))
    if text.startswith("jdbc:"):
        text = text.partition("?")[0]
    scheme, there, rest = text.rpartition("://")
    return f"{scheme}{there}{re.sub('/+', '/', rest).rstrip('/')}"


def _final(vertices: tuple[Vertex, ...], parallelism: int | None) -> tuple[Vertex, ...]:
    """Return the vertices, writing each row once, when it is final: nobody is to see a count that is half done.

    Spark refuses what never is final, such as a total by user. Its rows would be totals of the range, and take the
    place of the job's.
    """
    cut = cut_edges(JobGraph(name="", vertices=vertices))

    def final(vertex: Vertex) -> Vertex:
        changes: dict[str, Any] = {} if parallelism is None else {"parallelism": None}
        changes["inputs"] = tuple(  # some are no exchanges any more, when only some sinks are chosen
            replace(edge, output_mode=OutputMode.APPEND)
            if (edge.id, vertex.id) in cut
            else replace(edge, output_mode=None, idle_timeout=None)
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
    if "output mode" not in fault.problem.lower():
        return fault
    path = fault.path.removesuffix(".output-mode")
    hint = "a backfill writes rows when they are final, and these never are: choose other sinks with --sink"
    return replace(fault, path=path, hint=hint)
