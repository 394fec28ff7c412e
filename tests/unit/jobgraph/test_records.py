"""The rules for records that are written with a Schema Registry."""

from __future__ import annotations

import json
from typing import Any

import pytest

from minflinkd.jobgraph.faults import InvalidJobGraph
from minflinkd.jobgraph.model import JobGraph, RecordFormat, Source, decode, encode, version_of
from minflinkd.jobgraph.params import names_secrets, resolve
from minflinkd.jobgraph.records import subject_of, with_formats
from minflinkd.jobgraph.validation import parse_job
from minflinkd.runtime.ids import VertexId

REGISTRY = {"url": "https://registry:8081"}
SCHEMA = json.dumps({"type": "record", "name": "View", "fields": [{"name": "user", "type": "long"}]})


def parsed(source: dict[str, Any], **fields: Any) -> JobGraph:
    kafka = {"format": "kafka", "options": {"subscribe": "views"}, "value": {"format": "avro"}}
    views = {"source": kafka | {"schema-registry": REGISTRY} | source}
    vertices = {"views": views | fields, "out": {"inputs": ["views"], "sink": {"format": "console"}}}
    if "on-bad-record" in fields:
        vertices["bad"] = {"sink": {"format": "console"}}
    return parse_job({"name": "j", "vertices": vertices, "params": {"host": "registry"}})


def refused(source: dict[str, Any]) -> dict[str, str]:
    """Return what is wrong, by its path below the source."""
    with pytest.raises(InvalidJobGraph) as raised:
        parsed(source)
    return {fault.path.removeprefix("vertices.views.source."): fault.problem for fault in raised.value.faults}


def test_a_job_may_name_a_registry_with_secrets() -> None:
    """Secrets stay names wherever the job is shown or stored (E44, K10)."""
    where = {
        "url": "https://${host}:8081,http://other",
        "user": "me",
        "password": "${secret:registry}",
        "timeout": "5 s",
    }
    graph = parsed({"schema-registry": where, "key": {"format": "avro", "version": 3, "subject": "k"}})
    (views, _) = graph.vertices
    assert names_secrets(views)
    assert decode(encode(graph)) == graph
    shown, filled = resolve(views, graph.params).source, resolve(views, graph.params, str.upper).source
    assert shown is not None
    assert shown.schema_registry is not None
    assert shown.schema_registry.password == "${secret:registry}"
    assert filled is not None
    assert filled.schema_registry is not None
    assert filled.schema_registry.password == "REGISTRY"
    assert filled.schema_registry.url == "https://registry:8081,http://other"


def test_bad_records_of_such_a_source_may_go_to_a_sink() -> None:
    """It parses records, unlike a source that yields bytes (K7)."""
    assert parsed({}, **{"on-bad-record": {"to": "bad"}}).vertices[0].on_bad_record is not None


@pytest.mark.parametrize(
    ("source", "path", "words"),
    [
        ({"value": {"format": "arvo"}}, "value.format", "is no format of records"),
        ({"value": {}}, "value.format", "the format is missing"),
        ({"value": {"format": "avro", "schema": "{"}}, "value.schema", "no JSON"),
        ({"value": {"format": "avro", "schema": SCHEMA, "version": 2}}, "value.version", "given already"),
        ({"value": {"format": "avro", "version": 0}}, "value.version", "0 is not"),
        ({"options": {"subscribe": "a,b"}}, "value", "no single topic"),
        ({"options": {"subscribePattern": "a.*"}}, "value", "no single topic"),
        ({"value": None}, "schema-registry", "no part of the records"),
        ({"format": "rate"}, "value", "only records of Kafka"),
        ({"schema-registry": None}, "vertices.views.source", "no registry"),
        ({"schema-registry": {}}, "schema-registry.url", "url is missing"),
        ({"schema-registry": {"url": "registry:8081"}}, "schema-registry.url", "no URL of a registry"),
        ({"schema-registry": {"url": "ftp://registry"}}, "schema-registry.url", "no URL of a registry"),
        ({"schema-registry": {"url": "http://r?a=b"}}, "schema-registry.url", "more than a path"),
        ({"schema-registry": REGISTRY | {"user": "me"}}, "schema-registry", "no password"),
        ({"schema-registry": REGISTRY | {"password": "${secret:r}"}}, "schema-registry", "no user"),
        ({"schema-registry": REGISTRY | {"ca": "${secret:r}"}}, "schema-registry.ca", "may not stand here"),
        ({"schema-registry": REGISTRY | {"timeout": "1 h"}}, "schema-registry.timeout", "not between"),
    ],
)
def test_what_cannot_be_read_is_refused(source: dict[str, Any], path: str, words: str) -> None:
    """With the place in the job file (J4)."""
    found = refused(source)
    assert words in found[path], found


def test_a_sink_may_write_with_a_registry() -> None:
    """With a schema that the registry has: only then there is an id for its records (K10)."""

    def sink(value: dict[str, Any], **fields: Any) -> JobGraph:
        kafka = {"format": "kafka", "options": {"kafka.bootstrap.servers": "b:1", "topic": "out"}}
        out = {"sink": kafka | {"value": {"format": "avro"} | value, "schema-registry": REGISTRY}, "inputs": ["rows"]}
        rows = {"source": {"format": "rate"}, **fields}
        return parse_job({"name": "j", "vertices": {"rows": rows, "out": out}})

    out = sink({}).vertices[1].sink
    assert out is not None
    assert out.value is not None
    assert subject_of("value", out.value, out) == "out-value"
    assert sink({"schema": SCHEMA, "id": 7}).vertices[1].sink is not None, "as it is stored"
    for value, words in (({"schema": SCHEMA}, "that the registry has"), ({"id": 7}, "an id alone")):
        with pytest.raises(InvalidJobGraph, match=words):
            sink(value)


def test_a_sink_of_bad_records_writes_json() -> None:
    """Its rows have columns of their own (K7)."""
    bad = {
        "format": "kafka",
        "options": {"kafka.bootstrap.servers": "b:1", "topic": "bad"},
        "value": {"format": "avro"},
    }
    vertices = {
        "rows": {"source": {"format": "json", "path": "/in", "schema": "n INT"}, "on-bad-record": {"to": "bad"}},
        "out": {"sink": {"format": "console"}, "inputs": ["rows"]},
        "bad": {"sink": bad | {"schema-registry": REGISTRY}},
    }
    with pytest.raises(InvalidJobGraph, match="bad records are written to Kafka as JSON"):
        parse_job({"name": "j", "vertices": vertices})


@pytest.mark.parametrize("name", ["password", "token"])
def test_credentials_must_be_secrets(name: str) -> None:
    """A job file, its records and its answers are read by others (E44)."""
    other = {"password": "user"}.get(name)
    registry = REGISTRY | {name: "hunter2"} | ({other: "me"} if other else {})
    found = refused({"schema-registry": registry})
    assert "readable" in found[f"schema-registry.{name}"]
    assert "hunter2" not in str(found)


def test_credentials_in_the_url_are_refused_without_being_shown() -> None:
    """The URL stands in errors and plans (E44)."""
    found = refused({"schema-registry": {"url": "https://me:hunter2@registry"}})
    assert "do not belong into the URL" in found["schema-registry.url"]
    assert "hunter2" not in str(found)


def test_the_subject_is_that_of_the_topic() -> None:
    """As Confluent's serializers name it, unless the job says otherwise (K10)."""
    avro = RecordFormat(format="avro")
    assert subject_of("value", avro, Source(options={"subscribe": " views "})) == "views-value"
    assert subject_of("key", avro, Source(options={"Subscribe": "views"})) == "views-key"
    assert subject_of("key", RecordFormat(format="avro", subject="s"), Source(options={})) == "s"
    assert subject_of("value", avro, Source(options={"assign": "{}"})) is None


def test_a_job_keeps_the_schema_that_it_was_submitted_with() -> None:
    """It is a part of the job: another schema makes another version (K10)."""
    graph = parsed({"value": {"format": "avro", "version": 3}, "key": {"format": "avro"}})
    known = with_formats(graph, {VertexId("views"): {"value": RecordFormat(format="avro", schema=SCHEMA)}})
    source = known.vertices[0].source
    assert source is not None
    assert source.value == RecordFormat(format="avro", schema=SCHEMA)
    assert source.key == RecordFormat(format="avro"), "the registry was not asked for it"
    assert known.vertices[1:] == graph.vertices[1:]
    assert version_of(known) != version_of(graph)
    assert parse_job(json.loads(encode(known))) == known, "what is stored may be submitted again"
    assert with_formats(known, {}) is known
