"""The rules for records that are written with a Schema Registry (K10), and the schemas that a job has for them. Pure.

A record carries the id of its writer's schema, and writers change. So that a job has the same columns after a restart,
it reads all records with one schema, and writes with one. That is found out when the job is submitted, and belongs to
the job from then on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit

from msgspec.structs import replace

from minflinkd.jobgraph.faults import Faults, at, meant, show
from minflinkd.jobgraph.model import JobGraph, RecordFormat, SchemaRegistry, Sink, Source, Vertex
from minflinkd.runtime.ids import VertexId
from minflinkd.runtime.secrets import without_credentials
from minflinkd.runtime.units import Duration

FORMATS: Final = ("avro",)
PARTS: Final = ("key", "value")  # of a record of Kafka
_LONGEST: Final = Duration(600.0)

Formats = Mapping[VertexId, Mapping[str, RecordFormat]]  # of each source and sink, by the part of its records


def record_formats(end: Source | Sink) -> dict[str, RecordFormat]:
    """Return how the parts of a source's or a sink's records are written: those that are not left as bytes."""
    found = {part: getattr(end, part) for part in PARTS}
    return {part: format for part, format in found.items() if format is not None}


def subject_of(part: str, format: RecordFormat, end: Source | Sink) -> str | None:
    """Return the subject of a part in the registry; None if the source or sink does not have one topic."""
    if format.subject is not None:
        return format.subject
    option = "subscribe" if isinstance(end, Source) else "topic"
    topics = next((text for name, text in end.options.items() if name.lower() == option), "")
    return f"{topics.strip()}-{part}" if topics.strip() and "," not in topics else None


def with_formats(graph: JobGraph, found: Formats) -> JobGraph:
    """Return the job with the schemas that it reads and writes with from now on, whatever the registry has later."""

    def pinned(vertex: Vertex) -> Vertex:
        parts = found.get(vertex.id)
        if not parts:
            return vertex
        if vertex.source is not None:
            return replace(vertex, source=replace(vertex.source, **parts))
        return vertex if vertex.sink is None else replace(vertex, sink=replace(vertex.sink, **parts))

    return replace(graph, vertices=tuple(map(pinned, graph.vertices))) if found else graph


def check_records(end: Source | Sink, path: str, faults: Faults) -> None:
    """Check how the records of a source or a sink are written."""
    parts = record_formats(end)
    if not parts:
        if end.schema_registry is not None and not any(faults.touch(at(path, part)) for part in PARTS):
            hint = "value: {format: avro}, for example"
            faults.add(at(path, "schema-registry"), "no part of the records has a schema of the registry", hint)
        return
    if end.format != "kafka":
        part = next(iter(parts))
        faults.add(at(path, part), f"only records of Kafka have a {part}", "format: kafka, or leave it out")
        return
    if end.schema_registry is None:
        if not faults.touch(at(path, "schema-registry")):
            hint = 'schema-registry: {url: "https://registry:8081"}'
            faults.add(path, "there is no registry with the schemas of its records", hint)
    else:
        _check_registry(end.schema_registry, at(path, "schema-registry"), faults)
    for part, format in parts.items():
        _check_format(part, format, end, at(path, part), faults)


def _check_format(part: str, format: RecordFormat, end: Source | Sink, path: str, faults: Faults) -> None:
    if format.format not in FORMATS and not faults.touch(at(path, "format")):
        problem = f"{show(format.format)} is no format of records" if format.format else "the format is missing"
        faults.add(at(path, "format"), problem, meant(format.format, FORMATS, "one of"))
    if format.schema is not None:
        if format.version is not None:
            faults.add(at(path, "version"), "the schema is given already", "leave one of the two out")
        try:
            json.loads(format.schema)
        except ValueError as error:
            faults.add(at(path, "schema"), f"the schema is no JSON: {error}", "an Avro schema, as the registry has it")
        if format.id is None and isinstance(end, Sink):
            faults.add(at(path, "schema"), "a sink writes with a schema that the registry has", "name its subject")
    elif format.id is not None:
        faults.add(at(path, "id"), "an id alone is not enough: it stands beside its schema", "name subject and version")
    elif subject_of(part, format, end) is None and not faults.touch(at(path, "subject")):
        problem = f"there is no single topic, whose subject would be TOPIC-{part}"
        faults.add(path, problem, "subject: <the one that has the schema>")


def _check_registry(registry: SchemaRegistry, path: str, faults: Faults) -> None:
    for url in (part.strip() for part in registry.url.split(",")):
        if "${" in url:
            continue  # a param may be the whole URL, and is checked where it is known
        problem = url_problem(url)
        if problem:
            faults.add(at(path, "url"), problem, "https://registry:8081")
    for name, text in _credentials(registry):
        if not (text.startswith("${secret:") and text.endswith("}") and text.count("${") == 1):
            problem = f"the {name} would be readable in the job"
            faults.add(at(path, name), problem, f'name a secret: {name}: "${{secret:registry}}"')
    if (registry.user is None) != (registry.password is None):
        lacking = "password" if registry.password is None else "user"
        if not faults.touch(at(path, lacking)):
            faults.add(path, f"there is no {lacking}", "give both, or none of them")
    if registry.token is not None and registry.user is not None:
        faults.add(at(path, "token"), "a token is sent in place of user and password", "leave one of the two out")
    if not 0 < registry.timeout <= _LONGEST:
        faults.add(at(path, "timeout"), f"{registry.timeout} is not between 0 and {_LONGEST}", "timeout: 60 s")


def url_problem(url: str) -> str:
    """Return what is wrong with the URL of a registry, without its credentials; "" if nothing is."""
    shown = show(without_credentials(url))
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return f"{shown} is no URL"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return f"{shown} is no URL of a registry"
    if "@" in parts.netloc:
        return "user and password do not belong into the URL, which is shown"
    if parts.query or parts.fragment:
        return f"{shown} has more than a path"
    return ""


def _credentials(registry: SchemaRegistry) -> Iterator[tuple[str, str]]:
    for name in ("password", "token"):
        if (text := getattr(registry, name)) is not None:
            yield name, text
