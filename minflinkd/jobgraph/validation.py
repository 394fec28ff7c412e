"""Turns a document into a JobGraph, or reports every fault at once (J4).

Covers the order of the checks. Spark analyses SQL and user code later, on a TaskManager.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import structs

from minflinkd.jobgraph.autoscaling import check_autoscaler
from minflinkd.jobgraph.bad_records import in_agreement
from minflinkd.jobgraph.chaining import check_exchanges
from minflinkd.jobgraph.faults import DOCUMENT, Faults, at, show, vertex_path
from minflinkd.jobgraph.input_range import check_input_range
from minflinkd.jobgraph.model import JobGraph, Vertex
from minflinkd.jobgraph.places import InvalidUrl, Url, place_of
from minflinkd.jobgraph.reading import Reader
from minflinkd.jobgraph.real_time import check_real_time
from minflinkd.jobgraph.rules import check_job
from minflinkd.jobgraph.topology import check_topology
from minflinkd.runtime.errors import MinflinkError

_DEEPEST = 64  # levels of nesting in a document
MOST_VALUES = 100_000  # in a document
MOST_VERTICES = 1000  # in a job


def parse_job(
    document: object,
    positions: Mapping[str, int] | None = None,
    *,
    base: Path | Url | None = None,
    fetched: Mapping[str, Path | MinflinkError] | None = None,
) -> JobGraph:
    """Return the JobGraph that a document (plain JSON values) describes. Raises InvalidJobGraph, and nothing else.

    `positions` gives the faults their lines in the job file. `base` is the directory of the job file, or its URL. If it
    is given, the artifacts must exist: the client checks that before it uploads them. `fetched` says for artifacts at
    URLs, and for those with a hash, where their files are or why there are none.
    """
    faults = Faults()
    for path, problem in _not_json(document):
        faults.add(path, problem)
        if faults.full:
            break
    _check_size(document, faults)
    faults.raise_if_any(positions)

    fields = Reader(faults).fields(JobGraph, document, DOCUMENT)
    if fields is not None:
        graph = JobGraph(**({"name": "unnamed", "vertices": ()} | fields))  # so that the rest is checked, too
        check_job(graph, faults)
        if graph.script is None:  # otherwise there are no vertices yet
            check_topology(graph, faults)
        if base is not None:
            _check_files(graph, base, fetched or {}, faults)
        check_exchanges(graph, faults)
        check_real_time(graph, faults)
        check_autoscaler(graph, faults)
        check_input_range(graph, faults)
        faults.raise_if_any(positions, lambda: _sound_part(graph, faults))
        return graph
    faults.raise_if_any(positions)
    raise AssertionError("a document that is no mapping is a fault")


def _sound_part(graph: JobGraph, faults: Faults) -> JobGraph:
    """Return the vertices that are not faulty and read nothing faulty, in topological order."""
    sound: dict[str, Vertex] = {}
    waiting = {v.id: v for v in graph.vertices if not faults.touch(vertex_path(v.id))}
    while ready := [v for v in waiting.values() if all(edge.id in sound for edge in v.inputs)]:
        for vertex in ready:
            sound[vertex.id] = waiting.pop(vertex.id)
    return structs.replace(graph, vertices=in_agreement(sound.values()))


def _check_files(
    graph: JobGraph, base: Path | Url, fetched: Mapping[str, Path | MinflinkError], faults: Faults
) -> None:
    for i, artifact in enumerate(graph.artifacts):
        place = at("artifacts", i)
        if artifact.path is None or artifact.key is not None or faults.touch(place):
            continue
        found = fetched.get(artifact.path)
        if isinstance(found, Path):
            continue
        try:
            file = place_of(artifact.path, base).file
        except InvalidUrl as error:
            found = error
        if isinstance(found, MinflinkError):
            faults.add(place, found.message, found.hint, found.code)
        elif isinstance(file, Path) and not file.is_file():
            faults.add(place, f"there is no file {file}", "paths are relative to the job file")


def _check_size(document: object, faults: Faults) -> None:
    vertices = document.get("vertices") if isinstance(document, Mapping) else None
    if isinstance(vertices, Mapping | list | tuple) and len(vertices) > MOST_VERTICES:
        problem = f"the job has {len(vertices):,} vertices, and {MOST_VERTICES:,} are the most"
        faults.add("vertices", problem, "divide it into several jobs")


def _not_json(document: object) -> Iterator[tuple[str, str]]:
    """Yield what JSON text cannot hold, or what could not be written again."""
    rest: list[tuple[str, object, int]] = [(DOCUMENT, document, 0)]
    count = 0
    while rest:
        path, value, depth = rest.pop()
        count += 1
        if count + len(rest) > MOST_VALUES:
            yield DOCUMENT, f"the document has more than {MOST_VALUES:,} values"
            return
        if depth > _DEEPEST:
            yield path, f"the document is nested more than {_DEEPEST} levels deep"
        elif isinstance(value, Mapping):
            for key, entry in value.items():
                if not isinstance(key, str) or not _encodable(key):
                    yield path, f"the key {show(key)} is not text"
                else:
                    rest.append((at(path, key), entry, depth + 1))
        elif isinstance(value, list | tuple):
            rest.extend((at(path, i), entry, depth + 1) for i, entry in enumerate(value))
        elif isinstance(value, str):
            if not _encodable(value):
                yield path, f"{show(value)} is not valid Unicode"
        elif isinstance(value, float):
            if not math.isfinite(value):
                yield path, f"{value} is not a finite number"
        elif not isinstance(value, int | bool | None):
            yield path, f"a {type(value).__name__} is not JSON"
        elif isinstance(value, int) and value.bit_length() > 64:
            yield path, f"{show(value)} does not fit into 64 bits"


def _encodable(text: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in text)
