"""From vertices to tasks (J5, J6): what is connected and can run as one Spark query becomes one task.

Where the graph needs an exchange between two tasks it is refused for now; `exchange_faults` says where and why.
"""

from __future__ import annotations

from minflinkd.jobgraph.faults import Faults, at, vertex_path
from minflinkd.jobgraph.model import JobGraph, Task, Vertex
from minflinkd.jobgraph.topology import connected_parts, topological_order
from minflinkd.runtime.ids import TaskId

_NOT_YET = "needs an exchange between two tasks, which this version cannot run yet"


def chain(graph: JobGraph) -> tuple[Task, ...]:
    """The tasks of a valid graph, by the id of their first vertex. Raises InvalidJobGraph where one needs an exchange.

    The result depends on the vertices alone, never on their order in the document, so a task keeps its id and with it
    its state as long as its first vertex stays.
    """
    faults = Faults()
    check_exchanges(graph, faults)
    faults.raise_if_any()
    parts = connected_parts(topological_order(graph.vertices))
    return tuple(sorted((_task(graph, part) for part in parts), key=lambda task: task.id))


def _task(graph: JobGraph, part: tuple[Vertex, ...]) -> Task:
    # A number that a vertex states counts, even if it is less than the job's: they all share one query.
    stated = [vertex.parallelism for vertex in part if vertex.parallelism is not None]
    return Task(
        id=TaskId(part[0].id),
        vertices=part,
        parallelism=max(stated, default=graph.parallelism),
        slot_sharing_group=part[0].slot_sharing_group,
    )


def check_exchanges(graph: JobGraph, faults: Faults) -> None:
    """Every place at which a task would have to end before a sink."""
    sound = not faults.touch("vertices")
    groups = {vertex.id: vertex.slot_sharing_group for vertex in graph.vertices}
    for vertex in graph.vertices:
        path = vertex_path(vertex.id)
        for i, edge in enumerate(vertex.inputs):
            where = at(at(path, "inputs"), i)
            if edge.exchange:
                faults.add(where, f"exchange: true {_NOT_YET}", "leave it out: the vertices run as one Spark query")
            elif groups.get(edge.id, vertex.slot_sharing_group) != vertex.slot_sharing_group:
                problem = f"another slot sharing group than {edge.id} has {_NOT_YET}"
                faults.add(at(path, "slot-sharing-group"), problem, "give connected vertices the same group")
    if sound:  # with an edge missing or wrong, where the tasks end says nothing
        for part in connected_parts(topological_order(graph.vertices)):
            _check_ends(part, faults)


def _check_ends(part: tuple[Vertex, ...], faults: Faults) -> None:
    """One micro-batch may feed several sinks, but only if they all write the same vertex."""
    ends = {sink.inputs[0].id: sink.id for sink in reversed(part) if sink.sink is not None and sink.inputs}
    if len(ends) < 2:
        return
    (first, first_sink), *others = sorted(ends.items(), key=lambda end: end[1])
    for end, sink in others:
        problem = f"{sink} writes {end} while {first_sink} writes {first}, and both read the same data: it {_NOT_YET}"
        faults.add(vertex_path(sink), problem, "let both sinks write the same vertex, or submit two jobs")
