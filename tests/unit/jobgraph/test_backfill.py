"""What becomes of a job that computes a past time again, and where that would spoil its output."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from minflinkd.jobgraph.backfill import Backfill, backfill_of, in_words_of_a_backfill
from minflinkd.jobgraph.faults import GraphFault, InvalidJobGraph
from minflinkd.jobgraph.input_range import parse_time
from minflinkd.jobgraph.model import (
    Execution,
    InputRange,
    JobGraph,
    OnBadRecord,
    OutputMode,
    Recovery,
    RuntimeMode,
    encode,
)
from minflinkd.jobgraph.validation import parse_job
from minflinkd.runtime.units import encode_unit

NOW = parse_time("2026-03-10") or 0
RANGE = {"since": "2026-03-01", "until": "2026-03-02"}
KAFKA = {"kafka.bootstrap.servers": "broker:9092"}


def job(**changes: Any) -> JobGraph:
    given = {
        "name": "clicks",
        "parallelism": 4,
        "max-parallelism": 8,
        "min-parallelism": 2,
        "recovery": "hot-standby",
        "trigger-interval": "5 s",
        "checkpointing": {"interval": "10 s", "externalized": "retain"},
        "params": {"output": "/lake/counts", "alerts": "alerts"},
        "vertices": {
            "clicks": {
                "source": {"format": "json", "path": "/in", "schema": "page STRING, time TIMESTAMP"},
                "watermark": {"column": "time", "delay": "1 minute"},
                "on-bad-record": {"to": "bad"},
            },
            "bad": {"sink": {"format": "json", "path": "/bad"}},
            "counts": {"inputs": ["clicks"], "sql": "SELECT page, count(*) n FROM clicks GROUP BY 1", "parallelism": 2},
            "lake": {
                "inputs": ["counts"],
                "sink": {"format": "delta", "path": "${output}", "options": {"key": "page"}},
                "output-mode": "update",
            },
            "large": {"inputs": ["clicks"], "sql": "SELECT page FROM clicks WHERE page > 'x'"},
            "alerts": {
                "inputs": ["large"],
                "sink": {"format": "kafka", "options": KAFKA | {"topic": "${alerts}"}, "delivery": "exactly-once"},
            },
        },
    }
    return parse_job(given | changes)


def backfill(graph: JobGraph, *, done: str | None = None, **asked: Any) -> tuple[JobGraph, tuple[str, ...]]:
    known = None if done is None else parse_time(done)
    made = backfill_of(graph, Backfill(**(RANGE | asked)), now_ms=NOW, done_ms=known)
    return made.graph, made.notes


def problems(graph: JobGraph, **asked: Any) -> dict[str, str]:
    with pytest.raises(InvalidJobGraph) as caught:
        backfill(graph, **asked)
    return {fault.path: f"{fault.problem} ({fault.hint})" for fault in caught.value.faults}


def test_a_backfill_is_a_batch_job_over_a_range_with_the_graph_of_its_job() -> None:
    """It keeps what decides its result, and nothing that is for a job that runs on."""
    graph, notes = backfill(job(), sinks=("lake",))
    assert (graph.name, graph.mode) == ("clicks-backfill", RuntimeMode.BATCH)
    assert graph.input_range == InputRange(since="2026-03-01", until="2026-03-02")
    assert [vertex.id for vertex in graph.vertices] == ["clicks", "counts", "lake"]
    assert (graph.recovery, graph.execution, graph.trigger_interval) == (Recovery.RESTART, Execution.MICRO_BATCH, 0)
    assert (graph.checkpointing.externalized, graph.checkpointing.interval) == (None, 10)
    assert (graph.parallelism, graph.max_parallelism, graph.min_parallelism) == (4, 8, 1)
    assert graph.vertex("lake").output_mode is OutputMode.APPEND, "no reader sees a count that is not done"
    assert graph.vertex("clicks").on_bad_record is OnBadRecord.DROP
    assert notes == ("bad records are counted and dropped, since the job itself has sent them to bad",)


def test_a_backfill_of_a_job_with_an_autoscaler_has_none() -> None:
    """It has no rate at which rows come in (R62)."""
    assert backfill(job(autoscaler={"max": 8}), sinks=("lake",))[0].autoscaler is None


def test_a_backfill_states_resources_only_for_the_slot_sharing_groups_that_it_has() -> None:
    """A group that nobody is in is a fault (R40)."""
    document = {"large": {"resources": {"memory": "4 GB"}}, "default": {"resources": {"gpu": 1}}}
    vertices = msgspec.to_builtins(job().vertices, enc_hook=encode_unit)
    placed = [v | {"slot-sharing-group": "large"} if v["id"] in ("large", "alerts") else v for v in vertices]
    graph, _ = backfill(job(**{"slot-sharing-groups": document, "vertices": placed}), sinks=("lake",))
    assert list(graph.slot_sharing_groups) == ["default"]


def test_a_sink_without_a_key_would_have_rows_twice() -> None:
    found = problems(job())
    assert set(found) == {"vertices.alerts.sink"}
    assert (
        "a kafka sink only adds: they would be there twice (choose others with --sink" in found["vertices.alerts.sink"]
    )


def test_a_sink_may_be_given_another_place() -> None:
    graph, _ = backfill(job(), params={"alerts": "alerts-again"})
    assert graph.params == {"output": "/lake/counts", "alerts": "alerts-again"}
    assert {vertex.id for vertex in graph.vertices} == {"clicks", "counts", "lake", "large", "alerts"}


@pytest.mark.parametrize(
    ("sink", "problem"),
    [
        ({"format": "parquet", "path": "/out"}, "a parquet sink only adds"),
        ({"format": "delta", "path": "/out"}, "a delta sink without a key only adds"),
        ({"format": "delta", "path": "/out", "options": {"key": "page"}}, ""),
        (
            {"format": "delta", "path": "/out", "options": {"key": "page", "newest-by": "n"}},
            "its rows are changes of a table, and those of an earlier time would undo later ones",
        ),
        ({"python": "acme:write"}, "nobody knows whether a Python sink can take rows a second time"),
        ({"format": "collect"}, ""),
        ({"format": "console"}, ""),
        (
            {
                "format": "jdbc",
                "options": {"url": "jdbc:postgresql://db/d", "dbtable": "t", "key": "page", "password": "${secret:p}"},
            },
            "",
        ),
    ],
)
def test_what_a_sink_can_take_a_second_time(sink: dict[str, Any], problem: str) -> None:
    vertices = {
        "clicks": {"source": {"format": "json", "path": "/in", "schema": "page STRING"}},
        "out": {"inputs": ["clicks"], "sink": sink},
    }
    graph = job(vertices=vertices)
    if problem:
        assert problem in problems(graph)["vertices.out.sink"]
    else:
        assert backfill(graph)[0].vertex("out").sink is not None


def test_the_sink_of_bad_records_can_be_asked_for() -> None:
    """Then it would have them twice. In another place it is welcome, beside a sink of results."""
    assert set(problems(job(), sinks=("lake", "bad"))) == {"vertices.bad.sink"}
    vertices = msgspec.to_builtins(job().vertices, enc_hook=encode_unit)
    for vertex in vertices:
        if vertex["id"] == "bad":
            vertex["sink"]["path"] = "${bad}"
    elsewhere = job(vertices=vertices, params={"output": "/lake/counts", "alerts": "alerts", "bad": "/bad"})
    graph, notes = backfill(elsewhere, sinks=("lake", "bad"), params={"bad": "/bad-again"})
    assert [vertex.id for vertex in graph.vertices] == ["clicks", "bad", "counts", "lake"]
    assert notes == ()
    found = problems(elsewhere, sinks=("bad",), params={"bad": "/bad-again"})
    assert "nothing that sends it bad records leads to a sink that is chosen" in found["vertices.bad"]


def test_the_job_must_be_done_with_that_time() -> None:
    """It would write the same rows, half-counted perhaps, after the backfill. In another place it cannot."""
    found = problems(job(), sinks=("lake",), done="2026-03-01T12:00")
    assert found == {
        "input-range.to": "the job itself still works on that time: its watermark is at 2026-03-01T12:00:00+00:00 "
        "(wait; or choose an earlier time at which windows begin)"
    }
    assert "does not say yet how far it is" in problems(job(), sinks=("lake",), done="1970-01-01")["input-range.to"]
    backfill(job(), sinks=("lake",), done="2026-03-02")
    backfill(job(), sinks=("lake",), done="2026-03-01T12:00", params={"output": "/lake/again"})


@pytest.mark.parametrize(
    ("place", "shared"),
    [
        ("/lake/counts/", True),
        ("file:///lake/counts", True),
        ("/lake//counts", True),
        ("/lake/others", True),  # where another sink of the job writes
        ("/lake/counts-again", False),
        ("s3://lake/counts", False),
    ],
)
def test_one_place_may_be_written_in_several_ways(place: str, shared: bool) -> None:
    """None of them makes a place another one, and the place of any sink of the job is the job's."""
    delta = {"format": "delta", "options": {"key": "page"}}
    vertices = {
        "clicks": {"source": {"format": "json", "path": "/in", "schema": "page STRING"}},
        "lake": {"inputs": ["clicks"], "sink": delta | {"path": "${output}"}},
        "others": {"inputs": ["clicks"], "sink": delta | {"path": "/lake/others"}},
    }
    asked = Backfill(**RANGE, sinks=("lake",), params={"output": place})  # type: ignore[arg-type]
    assert backfill_of(job(vertices=vertices), asked, now_ms=NOW, done_ms=None).shares is shared


def test_a_url_of_a_database_is_the_same_with_other_settings() -> None:
    options = {"url": "jdbc:postgresql://db/d${more}", "dbtable": "t", "key": "page"}
    vertices = {
        "clicks": {"source": {"format": "json", "path": "/in", "schema": "page STRING"}},
        "out": {"inputs": ["clicks"], "sink": {"format": "jdbc", "options": options}},
    }
    graph = job(vertices=vertices, params={"more": ""})
    asked = Backfill(**RANGE, params={"more": "?connectTimeout=5"})  # type: ignore[arg-type]
    assert backfill_of(graph, asked, now_ms=NOW, done_ms=None).shares


def test_a_source_with_a_beginning_of_its_own_is_named() -> None:
    """Perhaps it reads nothing of that time, and nothing else would say so."""
    vertices = {
        "clicks": {"source": {"python": "acme:clicks"}, "watermark": {"column": "time", "delay": "1 minute"}},
        "out": {"inputs": ["clicks"], "sink": {"format": "collect"}},
    }
    _, notes = backfill(job(vertices=vertices))
    assert notes == ("clicks is read from where its own code or options begin, perhaps only from now on",)


def test_an_edge_that_is_no_exchange_any_more_loses_its_settings() -> None:
    """Without its other sink, clicks leads to one end, so it runs as one query with what reads it."""
    delta = {"format": "delta", "path": "/out", "options": {"key": "page"}}
    edge = {"id": "clicks", "output-mode": "update", "idle-timeout": "1 min"}
    vertices = {
        "clicks": {"source": {"format": "json", "path": "/in", "schema": "page STRING"}},
        "a": {"inputs": [edge], "sql": "TABLE clicks"},
        "a_out": {"inputs": ["a"], "sink": delta},
        "b": {"inputs": [edge], "sql": "TABLE clicks"},
        "b_out": {"inputs": ["b"], "sink": delta | {"path": "/b"}},
    }
    graph, _ = backfill(job(vertices=vertices), sinks=("a_out",))
    assert parse_job(msgspec.json.decode(encode(graph))).vertex("a").inputs[0].output_mode is None
    whole, _ = backfill(job(vertices=vertices))
    assert whole.vertex("a").inputs[0].output_mode is OutputMode.APPEND


def test_a_time_to_come_has_no_rows_yet() -> None:
    found = problems(job(), sinks=("lake",), until="2026-03-11")
    assert found == {"input-range.to": '"2026-03-11" has not come yet (now it is 2026-03-10T00:00:00+00:00)'}


def test_all_that_is_wrong_is_told_at_once() -> None:
    found = problems(job(), sinks=("lake", "alert"), params={"outptu": 1}, until="2027-01-01")
    assert set(found) == {"vertices.alert", "params.outptu", "input-range.to"}
    assert found["vertices.alert"] == 'there is no sink "alert" (did you mean alerts?)'
    assert found["params.outptu"] == 'clicks has no param "outptu" (did you mean output?)'


def test_a_batch_job_has_no_backfill() -> None:
    assert "clicks is a batch job" in problems(job(mode="batch", recovery="restart"), sinks=("lake",))["mode"]


def test_each_row_is_written_once_when_it_is_final() -> None:
    """Also if the job leaves the mode to its operators, and through exchanges. A total by user is never final."""
    delta = {"format": "delta", "path": "/out", "options": {"key": "page"}}
    vertices = {
        "clicks": {"source": {"format": "json", "path": "/in", "schema": "page STRING"}},
        "totals": {"inputs": ["clicks"], "sql": "SELECT page, count(*) n FROM clicks GROUP BY 1"},
        "copies": {"inputs": [{"id": "totals", "exchange": True, "output-mode": "update"}], "sql": "TABLE totals"},
        "out": {"inputs": ["copies"], "sink": delta},
    }
    graph, _ = backfill(job(vertices=vertices))
    assert graph.vertex("copies").inputs[0].output_mode is OutputMode.APPEND
    assert graph.vertex("totals").inputs[0].output_mode is None, "no exchange"
    assert graph.vertex("out").output_mode is OutputMode.APPEND
    refused = GraphFault(
        path="vertices.out.output-mode", problem="Invalid streaming output mode: append", hint="another"
    )
    told = in_words_of_a_backfill(refused)
    assert told.path == "vertices.out"
    assert "write" in told.hint
    other = GraphFault(path="vertices.out.sink", problem="refused")
    assert in_words_of_a_backfill(other) == other


def test_a_parallelism_holds_for_all_tasks() -> None:
    graph, _ = backfill(job(), sinks=("lake",), parallelism=16, name="march")
    assert (graph.name, graph.parallelism, graph.max_parallelism) == ("march", 16, 16)
    assert {vertex.parallelism for vertex in graph.vertices} == {None}
    with_own, _ = backfill(job(), sinks=("lake",))
    assert with_own.vertex("counts").parallelism == 2


def test_a_job_that_compacts_its_table_goes_on_doing_so_alone() -> None:
    options = {"table": "web.counts", "catalog.uri": "http://catalog", "key": "page"}
    iceberg = {"format": "iceberg", "options": options, "compaction": {}}
    vertices = {
        "clicks": {"source": {"format": "json", "path": "/in", "schema": "page STRING"}},
        "lake": {"inputs": ["clicks"], "sink": iceberg},
    }
    sink = backfill(job(vertices=vertices))[0].vertex("lake").sink
    assert sink is not None
    assert sink.compaction is None
