"""The job as a graph: edges, cycles, order, connected parts.

Covers what needs more than one vertex at a time, but not what a vertex does.
"""

from __future__ import annotations

import graphlib
import heapq
from collections.abc import Iterable, Mapping
from functools import partial

from minflinkd.jobgraph.bad_records import senders
from minflinkd.jobgraph.faults import Faults, at, meant, nearest, vertex_path
from minflinkd.jobgraph.model import JobGraph, Vertex

MOST_CYCLES = 10  # that are shown at a time


def check_topology(graph: JobGraph, faults: Faults) -> None:
    """Check the edges for every fault. A cycle is named in full, once."""
    if not graph.vertices:
        if not faults.touch("vertices"):
            faults.add("vertices", "the job has no vertices", "a source and a sink, at least")
        return
    consumed = _check_edges(graph, faults)
    # A vertex with forgotten inputs is most likely the one that this vertex should lead to.
    fed = senders(graph.vertices)
    forgotten = any(not v.inputs and v.kind not in ("source", "nothing") and v.id not in fed for v in graph.vertices)
    for vertex in () if forgotten else graph.vertices:
        path = vertex_path(vertex.id)
        if vertex.id not in consumed and vertex.kind not in ("sink", "nothing") and not faults.touch(f"{path}.sink"):
            problem = f"the {vertex.kind} vertex leads nowhere"
            faults.add(path, problem, "name it in the inputs of a vertex, or leave it out")
    for cycle in _cycles(predecessors(v for v in graph.vertices if v.kind != "source"), most=MOST_CYCLES):
        path = at(vertex_path(cycle[0]), "inputs")
        faults.add(path, f"cycle: {' -> '.join([*cycle, cycle[0]])}", "data flows from sources to sinks only")


def _check_edges(graph: JobGraph, faults: Faults) -> set[str]:
    """Check the inputs. Return the ids of all vertices that another one reads, or clearly means to read."""
    by_id = {vertex.id: vertex for vertex in graph.vertices}
    readable = [vertex.id for vertex in graph.vertices if vertex.kind != "sink"]
    consumed: set[str] = set()
    for vertex in graph.vertices:
        seen: set[str] = set()
        for i, edge in enumerate(vertex.inputs):
            path = at(at(vertex_path(vertex.id), "inputs"), i)
            consumed.add(edge.id)
            if edge.id in seen:
                faults.add(path, f"{edge.id} is an input twice", "one input is enough, SQL may read it several times")
            elif edge.id not in by_id:
                others = [] if faults.full else [name for name in readable if name != vertex.id]
                consumed.add(nearest(edge.id, others) or edge.id)
                hint = partial(meant, edge.id, others, "the vertices are")
                faults.add(path, f"unknown input {edge.id}", hint)
            elif by_id[edge.id].kind == "sink":
                faults.add(path, f"{edge.id} is a sink, and nothing can read from it", "read what the sink reads")
            seen.add(edge.id)
    return consumed


def predecessors(vertices: Iterable[Vertex]) -> dict[str, list[str]]:
    """Map each vertex id to the ids of its inputs that exist."""
    by_id = {vertex.id: vertex for vertex in vertices}
    return {v.id: [edge.id for edge in v.inputs if edge.id in by_id] for v in by_id.values()}


def _cycles(inputs: Mapping[str, list[str]], *, most: int) -> list[list[str]]:
    """Return cycles without a common vertex, until the rest has none. Each is in the direction of the data flow."""
    rest = {vertex: list(ids) for vertex, ids in inputs.items()}
    found: list[list[str]] = []
    while len(found) < most:
        try:
            graphlib.TopologicalSorter(rest).prepare()
        except graphlib.CycleError as error:
            cycle = list(error.args[1])[1:]
            first = cycle.index(min(cycle))
            found.append(cycle[first:] + cycle[:first])
            gone = set(cycle)
            rest = {v: [i for i in ids if i not in gone] for v, ids in rest.items() if v not in gone}
        else:
            break
    return found


def topological_order(vertices: Iterable[Vertex]) -> tuple[Vertex, ...]:
    """Sort inputs before their consumers, otherwise by id: the order in the document never matters.

    The vertices must be free of cycles.
    """
    by_id: dict[str, Vertex] = {vertex.id: vertex for vertex in vertices}
    inputs = predecessors(by_id.values())
    missing = {vertex: len(set(ids)) for vertex, ids in inputs.items()}
    consumers: dict[str, list[str]] = {vertex: [] for vertex in by_id}
    for vertex, ids in inputs.items():
        for source in set(ids):
            consumers[source].append(vertex)
    ready = [vertex for vertex, count in missing.items() if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        vertex = heapq.heappop(ready)
        order.append(by_id[vertex])
        for consumer in consumers[vertex]:
            missing[consumer] -= 1
            if missing[consumer] == 0:
                heapq.heappush(ready, consumer)
    return tuple(order)


def connected_parts(vertices: tuple[Vertex, ...]) -> list[tuple[Vertex, ...]]:
    """Return the vertices by connected part, each in the order of `vertices`. Edges count in both directions."""
    inputs = predecessors(vertices)
    neighbours: dict[str, set[str]] = {vertex: set(ids) for vertex, ids in inputs.items()}
    for vertex, ids in inputs.items():
        for source in ids:
            neighbours[source].add(vertex)
    part: dict[str, int] = {}
    for number, start in enumerate(inputs):
        reach = [start]
        while reach:
            reached = reach.pop()
            if reached not in part:
                part[reached] = number
                reach.extend(neighbours[reached] - part.keys())
    parts: dict[int, list[Vertex]] = {}
    for one in vertices:
        parts.setdefault(part[one.id], []).append(one)
    return [tuple(members) for members in parts.values()]
