"""The rules for records that are written with a Schema Registry (K10), and the schemas that a job reads with. Pure.

A record carries the id of its writer's schema, and writers change. So that a job has the same columns after a restart,
it reads all records with one schema. That is found out when the job is submitted, and belongs to the job from then on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit

from msgspec.structs import replace

from minflinkd.jobgraph.faults import Faults, at, meant, show
from minflinkd.jobgraph.model import JobGraph, RecordFormat, SchemaRegistry, Source, Vertex
from minflinkd.runtime.ids import VertexId
from minflinkd.runtime.secrets import without_credentials
from minflinkd.runtime.units import Duration

FORMATS: Final = ("avro",)
PARTS: Final = ("key", "value")  # of a record of Kafka
_LONGEST: Final = Duration(600.0)

Schemas = Mapping[VertexId, Mapping[str, str]]  # of each source, by the part of its records; as JSON


def record_formats(source: Source) -> dict[str, RecordFormat]:
    """Return how the parts of a source's records are written: those that are not left as bytes."""
    found = {part: getattr(source, part) for part in PARTS}
    return {part: format for part, format in found.items() if format is not None}


def subject_of(part: str, format: RecordFormat, source: Source) -> str | None:
    """Return the subject of a part in the registry; None if the source does not read from one topic."""
    if format.subject is not None:
        return format.subject
    topics = next((text for name, text in source.options.items() if name.lower() == "subscribe"), "")
    return f"{topics.strip()}-{part}" if topics.strip() and "," not in topics else None


def with_schemas(graph: JobGraph, schemas: Schemas) -> JobGraph:
    """Return the job with the schemas that it reads with from now on, whatever the registry has later."""

    def pinned(vertex: Vertex) -> Vertex:
        found = schemas.get(vertex.id)
        if vertex.source is None or not found:
            return vertex
        parts = record_formats(vertex.source)
        known = {part: replace(parts[part], schema=text, version=None) for part, text in found.items() if part in parts}
        return replace(vertex, source=replace(vertex.source, **known))

    return replace(graph, vertices=tuple(map(pinned, graph.vertices))) if schemas else graph


def check_records(source: Source, path: str, faults: Faults) -> None:
    """Check how the records of a source are written."""
    parts = record_formats(source)
    if not parts:
        if source.schema_registry is not None and not any(faults.touch(at(path, part)) for part in PARTS):
            hint = "value: {format: avro}, for example"
            faults.add(at(path, "schema-registry"), "nothing is read with schemas of the registry", hint)
        return
    if source.format != "kafka":
        part = next(iter(parts))
        faults.add(at(path, part), f"only records of Kafka have a {part}", "format: kafka, or leave it out")
        return
    if source.schema_registry is None:
        if not faults.touch(at(path, "schema-registry")):
            hint = 'schema-registry: {url: "https://registry:8081"}'
            faults.add(path, "there is no registry with the schemas of its records", hint)
    else:
        _check_registry(source.schema_registry, at(path, "schema-registry"), faults)
    for part, format in parts.items():
        _check_format(part, format, source, at(path, part), faults)


def _check_format(part: str, format: RecordFormat, source: Source, path: str, faults: Faults) -> None:
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
    elif subject_of(part, format, source) is None and not faults.touch(at(path, "subject")):
        problem = f"the source reads from no single topic, whose subject would be TOPIC-{part}"
        faults.add(path, problem, "subject: <the one whose schema the job reads with>")


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
