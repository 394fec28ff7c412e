"""The graph that runs in place of a job's own, in a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.faults import GraphFault
from minflinkd.jobgraph.model import Delivery, JobGraph, OutputMode, RuntimeMode
from minflinkd.jobgraph.validation import parse_job
from minflinkd.testing.graphs import NoSuchVertex, find, own_words, repeats, schema_of, under_test, view

DOCUMENT = {
    "name": "job",
    "mode": "batch",
    "parallelism": 8,
    "params": {"columns": "n LONG"},
    "vertices": {
        "files": {"source": {"format": "json", "path": "/in", "schema": "${columns}"}, "parallelism": 4},
        "broker": {"source": {"format": "kafka", "options": {"subscribe": "t", "kafka.bootstrap.servers": "h:1"}}},
        "sums": {"inputs": ["files"], "sql": "SELECT n, count(*) AS c FROM files GROUP BY n"},
        "more": {"inputs": ["sums", "broker"], "sql": "SELECT 1"},
        "out": {"inputs": ["more"], "sink": {"format": "parquet", "path": "/out", "partition-by": ["c"]}},
        "table": {
            "inputs": [{"id": "sums", "exchange": True}],
            "sink": {"format": "jdbc", "options": {"url": "jdbc:postgresql://h/d", "dbtable": "t", "key": "n"}},
        },
        "told": {"inputs": ["more"], "sink": {"format": "console"}},
    },
}
HOMES = {"files": Path("/rows/files"), "broker": Path("/rows/broker")}
SCHEMAS = {"files": "n LONG", "broker": "value BINARY"}


@pytest.fixture
def graph() -> JobGraph:
    return parse_job(DOCUMENT)


@pytest.fixture
def replaced(graph: JobGraph) -> JobGraph:
    return under_test(graph, SCHEMAS, HOMES, 1, {})


def test_all_sources_yield_rows_of_the_test(replaced: JobGraph) -> None:
    for name in HOMES:
        source = replaced.vertex(name).source
        assert source is not None
        assert (source.path, source.schema) == (str(HOMES[name]), SCHEMAS[name])
        assert source.options == {"maxFilesPerTrigger": "1"}


def test_a_sink_keeps_its_output_mode_and_its_columns(replaced: JobGraph) -> None:
    """A files sink can only append. What replaces it could do more, and would hide a fault."""
    out, table = replaced.vertex("out"), replaced.vertex("table")
    assert out.output_mode is OutputMode.APPEND
    assert table.output_mode is None
    assert out.sink is not None
    assert out.sink.partition_by == ("c",)
    assert out.sink.delivery is Delivery.EXACTLY_ONCE


def test_a_fault_of_the_mode_that_was_added_is_told_of_the_sink(graph: JobGraph) -> None:
    fault = GraphFault(path="vertices.out.output-mode", problem="needs a watermark")
    assert own_words(fault, graph).path == "vertices.out"


def test_the_job_is_cut_into_the_same_tasks(graph: JobGraph, replaced: JobGraph) -> None:
    """Only their parallelism differs, and the test says when the input ends."""
    assert [[v.id for v in task.vertices] for task in chain(graph)] == [
        [v.id for v in task.vertices] for task in chain(replaced)
    ]
    assert {task.parallelism for task in chain(replaced)} == {1}
    assert replaced.mode is RuntimeMode.STREAMING


def test_a_view_has_what_leads_to_its_vertex_and_nothing_else(replaced: JobGraph) -> None:
    assert {vertex.id for vertex in view(replaced, "sums").vertices} == {"files", "sums", "rows_of_sums"}


def test_columns_come_from_the_job_from_spark_or_from_the_test(graph: JobGraph) -> None:
    assert schema_of(graph.vertex("files"), {}, graph) == "n LONG"
    assert "value BINARY" in str(schema_of(graph.vertex("broker"), {}, graph))
    assert schema_of(graph.vertex("broker"), {"broker": "v INT"}, graph) == "v INT"


def test_rows_of_a_sink_that_is_at_least_once_are_repeated(graph: JobGraph) -> None:
    assert [name for name in ("out", "table", "told") if repeats(graph, name)] == ["told"]


def test_a_misspelt_vertex_is_named(graph: JobGraph) -> None:
    with pytest.raises(NoSuchVertex, match=r"has no source 'file' \(did you mean files\?\)"):
        find(graph, "file", ("source",))
    with pytest.raises(NoSuchVertex, match="has no sink 'sums'"):
        find(graph, "sums", ("sink",))
