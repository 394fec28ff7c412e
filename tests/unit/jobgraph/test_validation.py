from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minflinkd.jobgraph.faults import GraphFault, InvalidJobGraph
from minflinkd.jobgraph.model import Delivery, decode, encode
from minflinkd.jobgraph.validation import parse_job
from minflinkd.runtime.errors import Consequence
from minflinkd.runtime.units import Duration

FindFaults = Callable[[object], dict[str, GraphFault]]
Document = dict[str, Any]


def test_the_example_of_the_specification_is_valid(document: Document) -> None:
    """The example is the job file of jobs.md (J1, J2)."""
    graph = parse_job(document)
    assert [v.id for v in graph.vertices] == ["flights", "delays", "out"]
    assert graph.checkpointing.interval == Duration(5.0)
    flights, out = graph.vertex("flights"), graph.vertex("out")
    assert flights.source is not None
    assert flights.source.options == {"maxFilesPerTrigger": "1"}
    assert out.sink is not None
    assert out.sink.delivery is Delivery.EXACTLY_ONCE


def test_vertices_may_be_a_mapping_or_a_list(document: Document) -> None:
    """Both forms describe the same job (J1)."""
    listed = document | {"vertices": [{"id": key, **vertex} for key, vertex in document["vertices"].items()]}
    assert parse_job(listed) == parse_job(document)


def test_an_encoded_graph_is_a_job_file_again(document: Document) -> None:
    """A JobGraph in JSON is a job file (J1)."""
    graph = parse_job(document)
    assert parse_job(json.loads(encode(graph))) == graph
    assert decode(encode(graph)) == graph


def test_option_values_take_the_form_that_spark_reads(document: Document) -> None:
    """Numbers and booleans may be written as such (J2)."""
    document["vertices"]["flights"]["source"]["options"] = {"multiLine": True, "maxFilesPerTrigger": 3, "x": 0.5}
    document["spark"] = {"spark.sql.ansi.enabled": False}
    graph = parse_job(document)
    source = graph.vertex("flights").source
    assert source is not None
    assert source.options == {"multiLine": "true", "maxFilesPerTrigger": "3", "x": "0.5"}
    assert graph.spark == {"spark.sql.ansi.enabled": "false"}


def test_a_refusal_has_a_code_a_consequence_and_names_all_faults(document: Document) -> None:
    """Every fault is reported at once (J4)."""
    document["nmae"] = document.pop("name")
    document["vertices"]["delays"]["inputs"] = ["flihgts"]
    document["vertices"]["out"]["sink"]["format"] = "parqet"
    with pytest.raises(InvalidJobGraph) as refused:
        parse_job(document)
    info = refused.value.info()
    assert (info.code, info.consequence) == ("invalid-job-graph", Consequence.REFUSED)
    assert [f.path for f in refused.value.faults] == [
        "nmae",
        "vertices.out.sink.format",
        "vertices.delays.inputs[0]",
    ]
    assert all(fault.path in info.message for fault in refused.value.faults)


def test_ids_that_differ_in_case_only_are_refused(document: Document, faults: FindFaults) -> None:
    """Views in SQL have names without case, so one source would be read in place of the other (J1)."""
    document["vertices"]["Flights"] = document["vertices"]["flights"] | {"source": {"format": "rate"}}
    document["vertices"]["delays"]["inputs"] = ["flights", "Flights"]
    found = faults(document)
    assert list(found) == ["vertices.Flights"]
    assert "Flights and flights differ in upper and lower case only" in found["vertices.Flights"].problem
    assert "rename one" in found["vertices.Flights"].hint


def test_every_cycle_is_named_in_full(document: Document, faults: FindFaults) -> None:
    """The names are in the direction of the data (J4)."""
    document["vertices"] |= {
        "a": {"inputs": ["c", "flights"], "sql": "SELECT 1"},
        "b": {"inputs": ["a"], "sql": "SELECT 1"},
        "c": {"inputs": ["b"], "sql": "SELECT 1"},
        "self": {"inputs": ["self"], "sql": "SELECT 1"},
    }
    found = faults(document)
    assert found["vertices.a.inputs"].problem == "cycle: a -> b -> c -> a"
    assert found["vertices.self.inputs"].problem == "cycle: self -> self"
    assert len(found) == 2


def test_an_id_that_two_vertices_have_is_named(document: Document, faults: FindFaults) -> None:
    """In a list of vertices, an id may occur only once (J4)."""
    vertices = [{"id": key, **vertex} for key, vertex in document["vertices"].items()]
    again = {"id": "out", "inputs": ["flights"], "sink": {"format": "csv", "path": "/y"}}
    found = faults(document | {"vertices": [*vertices, again]})
    assert found["vertices[3].id"].problem == "out is the id of two vertices"


def test_an_artifact_must_be_there_when_the_client_looks(document: Document, tmp_path: Path) -> None:
    """On the daemon, which has no such file, nobody checks (J4)."""
    (tmp_path / "there.py").touch()
    document["artifacts"] = ["there.py", "missing.py"]
    parse_job(document)
    with pytest.raises(InvalidJobGraph, match=r"artifacts\[1\]: there is no file .*missing\.py"):
        parse_job(document, base=tmp_path)


def test_an_artifact_written_as_a_path_has_the_name_of_the_file(document: Document) -> None:
    """J3."""
    document["artifacts"] = ["lib/flights.py", {"name": "a.zip", "path": "lib/b.zip"}]
    assert [(a.name, a.path) for a in parse_job(document).artifacts] == [
        ("flights.py", "lib/flights.py"),
        ("a.zip", "lib/b.zip"),
    ]


def test_batch_mode_needs_no_interval(document: Document, faults: FindFaults) -> None:
    """A batch job takes its checkpoint at the end (J3)."""
    document["checkpointing"]["interval"] = 0
    document["mode"] = "batch"
    assert not faults(document)


# Documents that differ little from a good one reach deeper code than arbitrary JSON.
WORDS = ["name", "vertices", "id", "inputs", "source", "sql", "python", "sink", "format", "path", "watermark", "delay"]
WORDS += [
    "options",
    "params",
    "spark",
    "artifacts",
    "parallelism",
    "checkpointing",
    "interval",
    "mode",
    "json",
    "a",
    "b",
]
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(WORDS)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS) | st.text(), inner, max_size=6),
    max_leaves=30,
)
VERTEX = st.fixed_dictionaries(
    {},
    optional={
        "id": JSON,
        "inputs": st.lists(st.sampled_from(["a", "b", "c"]), max_size=3) | JSON,
        "source": st.fixed_dictionaries({}, optional={"format": JSON, "path": JSON, "options": JSON}) | JSON,
        "sql": st.sampled_from(["SELECT 1", "${", "${}", "${a}", "$${a}"]) | JSON,
        "python": JSON,
        "sink": st.fixed_dictionaries({"format": st.sampled_from(["json", "kafka"]) | JSON, "path": JSON}) | JSON,
        "watermark": st.fixed_dictionaries({"column": JSON, "delay": JSON}) | JSON,
        "parallelism": JSON,
        "output-mode": st.sampled_from(["append", "update"]) | JSON,
    },
)
JOB = st.fixed_dictionaries(
    {"name": JSON, "vertices": st.dictionaries(st.sampled_from(["a", "b", "c"]) | st.text(), VERTEX) | JSON},
    optional={
        "params": JSON,
        "spark": JSON,
        "checkpointing": st.fixed_dictionaries({}, optional={"interval": JSON, "mode": JSON}) | JSON,
        "artifacts": JSON,
        "restart-strategy": JSON,
        "max-parallelism": JSON,
    },
)


@given(JSON | JOB)
def test_no_document_makes_it_fail_otherwise(document: object) -> None:
    """For any JSON value the result is a JobGraph, or faults that each have a path and a problem (J4)."""
    try:
        graph = parse_job(document)
    except InvalidJobGraph as error:
        found = error.faults
    else:
        assert decode(encode(graph)) == graph
        return
    assert found
    assert all(fault.path and fault.problem and str(fault).encode() for fault in found)
