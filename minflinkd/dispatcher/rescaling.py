"""Makes a version of a job that differs from another only in its parallelism. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.faults import GraphFault, InvalidJobGraph
from minflinkd.jobgraph.model import JobGraph


def rescaled(graph: JobGraph, parallelism: int, vertices: Mapping[str, int], least: int) -> JobGraph:
    """Return the graph with other parallelisms. Raises InvalidJobGraph.

    `parallelism`: of the whole job; 0 changes nothing. `vertices`: of single tasks or vertices, by id; a missing one is
    not changed.
    """
    if faults := tuple(_faults(graph, parallelism, vertices, least)):
        raise InvalidJobGraph(faults)
    if parallelism:
        widest = replace(graph, parallelism=parallelism)
        widest = replace(widest, vertices=tuple(replace(v, parallelism=None) for v in graph.vertices))
    else:
        widest = graph
    of_vertex = {v.id: vertices[t.id] for t in chain(graph) if t.id in vertices for v in t.vertices} | dict(vertices)
    if {v.id for v in graph.vertices} <= of_vertex.keys():  # the job's own number counts for none of them any more
        widest = replace(widest, parallelism=max(of_vertex.values()))
    return replace(
        widest,
        vertices=tuple(replace(v, parallelism=of_vertex.get(v.id, v.parallelism)) for v in widest.vertices),
        min_parallelism=least or min(graph.min_parallelism, widest.parallelism),
    )


def _faults(graph: JobGraph, parallelism: int, vertices: Mapping[str, int], least: int) -> Iterator[GraphFault]:
    known = {vertex.id for vertex in graph.vertices}
    for name in sorted(set(vertices) - known):
        yield GraphFault(
            path=name, problem="the job has no such vertex", hint=f"its vertices: {', '.join(sorted(known))}"
        )
    limit = graph.max_parallelism
    for path, wanted in (("parallelism", parallelism), *sorted(vertices.items())):
        if wanted < 0 or (path in vertices and wanted == 0):
            yield GraphFault(path=path, problem=f"the parallelism is {wanted}", hint="at least 1")
        elif limit is not None and wanted > limit:
            yield GraphFault(path=path, problem=f"{wanted} is more than max-parallelism, {limit}", hint="ask for less")
    if least < 0:
        yield GraphFault(path="min-parallelism", problem=f"the least parallelism is {least}", hint="at least 1")
