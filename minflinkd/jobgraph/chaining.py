"""Turns vertices into tasks (J5, J6): what is connected and can run as one Spark query becomes one task.

A task ends at sinks or at one exchange. Everything at its end reads the same vertex, so a micro-batch is computed once.
Sinks of bad records are no ends: they belong to the task of the vertices that send them.
An edge is cut if the graph says so, or if one query would otherwise have to end at two vertices.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from minflinkd.jobgraph.bad_records import check_senders, senders
from minflinkd.jobgraph.faults import Faults, at, show, vertex_path
from minflinkd.jobgraph.model import JobGraph, OutputMode, Task, Vertex
from minflinkd.jobgraph.topology import connected_parts, topological_order
from minflinkd.runtime.ids import TaskId, VertexId

Edge = tuple[VertexId, VertexId]  # from, to


def chain(graph: JobGraph) -> tuple[Task, ...]:
    """Return the tasks of a valid graph, by the id of their first vertex.

    The result depends only on the vertices, never on their order in the document. So a task keeps its id, and with it
    its state, as long as its first vertex stays.
    """
    vertices = topological_order(graph.vertices)
    cut = cut_edges(graph)
    parts = _with_bad_record_sinks(_parts(vertices, cut))
    owner = {vertex.id: TaskId(part[0].id) for part in parts for vertex in part}
    readers: dict[TaskId, set[TaskId]] = {}
    for upstream, downstream in cut:
        readers.setdefault(owner[upstream], set()).add(owner[downstream])
    modes = {
        owner[edge.id]: edge.output_mode
        for v in vertices
        for edge in v.inputs
        if edge.output_mode and (edge.id, v.id) in cut
    }
    tasks = []
    for part in parts:
        task = owner[part[0].id]
        tasks.append(_task(graph, part, tuple(sorted(readers.get(task, ()))), modes.get(task)))
    return tuple(sorted(tasks, key=lambda task: task.id))


def _task(
    graph: JobGraph, part: tuple[Vertex, ...], readers: tuple[TaskId, ...], exchange_mode: OutputMode | None
) -> Task:
    # A number that a vertex states counts, even if it is less than the job's: all vertices of the part share one query.
    stated = [vertex.parallelism for vertex in part if vertex.parallelism is not None]
    return Task(
        id=TaskId(part[0].id),
        vertices=part,
        parallelism=max(stated, default=graph.parallelism),
        slot_sharing_group=part[0].slot_sharing_group,
        readers=readers,
        exchange_mode=exchange_mode,
    )


def cut_edges(graph: JobGraph) -> frozenset[Edge]:
    """Return the edges that are exchanges: those that the graph asks for, and those that it needs."""
    by_id = {vertex.id: vertex for vertex in graph.vertices}
    vertices = topological_order(graph.vertices)
    cut = {
        (edge.id, vertex.id)
        for vertex in vertices
        for edge in vertex.inputs
        if edge.id in by_id and (edge.exchange or by_id[edge.id].slot_sharing_group != vertex.slot_sharing_group)
    }
    while more := _needed(vertices, cut):
        cut |= more
    return frozenset(cut)


def cut_reasons(graph: JobGraph) -> dict[Edge, str]:
    """Return for each exchange why it is one, in words for people."""
    groups = {vertex.id: vertex.slot_sharing_group for vertex in graph.vertices}
    asked = {(edge.id, vertex.id) for vertex in graph.vertices for edge in vertex.inputs if edge.exchange}
    reasons = {}
    for upstream, downstream in sorted(cut_edges(graph)):
        if (upstream, downstream) in asked:
            why = "the job asks for it (exchange: true)"
        elif groups[upstream] != groups[downstream]:
            why = f"the slot sharing groups differ ({groups[upstream]}, {groups[downstream]})"
        else:
            why = f"one Spark query ends at one vertex, and {upstream} leads to several ends"
        reasons[upstream, downstream] = why
    return reasons


def slots_wanted(tasks: Iterable[Task]) -> dict[str, int]:
    """Return by slot sharing group how many slots its tasks want: as many as the widest of them."""
    wanted: dict[str, int] = {}
    for task in tasks:
        wanted[task.slot_sharing_group] = max(wanted.get(task.slot_sharing_group, 0), task.parallelism)
    return wanted


def _needed(vertices: tuple[Vertex, ...], cut: set[Edge]) -> set[Edge]:
    """Return the edges to cut in parts with several ends: those from a vertex with more ends than its consumer."""
    more: set[Edge] = set()
    for part in _parts(vertices, frozenset(cut)):
        own = {vertex.id for vertex in part}
        ends = _ends(part, cut)
        if len(frozenset().union(*ends.values())) < 2:
            continue
        more |= {
            (edge.id, vertex.id)
            for vertex in part
            if vertex.sink is None
            for edge in vertex.inputs
            if edge.id in own and (edge.id, vertex.id) not in cut and ends[edge.id] != ends[vertex.id]
        }
    return more


def _ends(part: tuple[Vertex, ...], cut: set[Edge]) -> dict[VertexId, frozenset[VertexId]]:
    """Map each vertex to the ends of its part that it leads to.

    An end is a vertex that a sink reads, or that something outside the part reads.
    """
    found: dict[VertexId, set[VertexId]] = {vertex.id: set() for vertex in part if vertex.sink is None}
    for upstream, _ in cut:
        if upstream in found:
            found[upstream].add(upstream)
    for vertex in reversed(part):
        for edge in vertex.inputs:
            if edge.id in found and (edge.id, vertex.id) not in cut:
                found[edge.id] |= {edge.id} if vertex.sink is not None else found[vertex.id]
    return {vertex: frozenset(ends) for vertex, ends in found.items()}


def _parts(vertices: tuple[Vertex, ...], cut: frozenset[Edge]) -> list[tuple[Vertex, ...]]:
    """Return the connected parts of the graph without the cut edges. The vertices keep all their inputs."""
    whole = {vertex.id: vertex for vertex in vertices}
    without = tuple(replace(v, inputs=tuple(e for e in v.inputs if (e.id, v.id) not in cut)) for v in vertices)
    return [tuple(whole[v.id] for v in part) for part in connected_parts(without)]


def _with_bad_record_sinks(parts: list[tuple[Vertex, ...]]) -> list[tuple[Vertex, ...]]:
    """Return the parts with each sink of bad records at the end of the part of those that send them."""
    feeds = senders(vertex for part in parts for vertex in part)
    single = {part[0].id: part[0] for part in parts if part[0].id in feeds}
    found = []
    for part in parts:
        if part[0].id not in single:
            own = {vertex.id for vertex in part}
            found.append((*part, *(sink for name, sink in single.items() if feeds[name][0] in own)))
    return found


def check_exchanges(graph: JobGraph, faults: Faults) -> None:
    """Check settings of edges that are no exchanges, what the readers of one exchange do not agree on, and bad records.

    Bad records of several tasks cannot go to one sink.
    """
    if faults.touch("vertices"):
        return  # if an edge is missing or wrong, the ends of the tasks mean nothing
    cut = cut_edges(graph)
    parts = _parts(topological_order(graph.vertices), cut)
    check_senders(senders(graph.vertices), {vertex.id: part[0].id for part in parts for vertex in part}, faults)
    asked: dict[VertexId, tuple[OutputMode, VertexId]] = {}
    for vertex in graph.vertices:
        _check_complete(graph, vertex, cut, faults)
        for i, edge in enumerate(vertex.inputs):
            where = at(at(vertex_path(vertex.id), "inputs"), i)
            if (edge.id, vertex.id) not in cut:
                for name, value in (("output-mode", edge.output_mode), ("idle-timeout", edge.idle_timeout)):
                    if value is not None:
                        problem = f"{name} is a setting of exchanges, and {edge.id} is read within one Spark query"
                        faults.add(at(where, name), problem, "exchange: true, or leave it out")
            elif edge.output_mode is not None:
                mode, other = asked.setdefault(edge.id, (edge.output_mode, vertex.id))
                if mode is not edge.output_mode:
                    problem = f"{vertex.id} reads {edge.id} in mode {edge.output_mode}, and {other} in mode {mode}"
                    faults.add(
                        at(where, "output-mode"), problem, "one vertex has one exchange: give both the same mode"
                    )


def _check_complete(graph: JobGraph, sink: Vertex, cut: frozenset[Edge], faults: Faults) -> None:
    """Check that a sink in mode complete has its aggregate in its own query, as Spark requires.

    A sink that reads an exchange has no aggregate there.
    """
    if sink.sink is None or sink.output_mode is not OutputMode.COMPLETE:
        return
    for edge in sink.inputs:
        if (edge.id, sink.id) not in cut:
            continue
        given = next(vertex for vertex in graph.vertices if vertex.id == edge.id)
        why, mend = [], []
        if given.slot_sharing_group != sink.slot_sharing_group:
            groups = f"{show(given.slot_sharing_group)} and {show(sink.slot_sharing_group)}"
            why.append(f"their slot sharing groups are {groups}")
            mend.append(f"give {sink.id} slot-sharing-group: {given.slot_sharing_group}")
        if edge.exchange:
            why.append("exchange: true")
            mend.append("leave exchange: true out")
        faults.add(
            at(vertex_path(sink.id), "output-mode"),
            f"a sink in mode complete needs its aggregate in the same Spark query, and between {edge.id} and {sink.id} "
            f"there is an exchange ({', '.join(why)})",
            f"{' and '.join(mend)}; or let the exchange carry it: inputs: [{{id: {edge.id}, output-mode: complete}}], "
            "and no output-mode of the sink",
        )
