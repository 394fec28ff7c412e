"""Where bad records may go, and to which task their sinks belong."""

from __future__ import annotations

from typing import Any

import pytest

from minflinkd.dispatcher.submission import without_python
from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.faults import InvalidJobGraph
from minflinkd.jobgraph.model import BadRecordSink, JobGraph, OnBadRecord, Task, decode, encode
from minflinkd.jobgraph.sound_part import sound_tasks
from minflinkd.jobgraph.validation import parse_job
from minflinkd.runtime.ids import VertexId

EVENTS = {"source": {"format": "json", "path": "/in", "schema": "id BIGINT"}, "on-bad-record": {"to": "bad"}}
BAD = {"sink": {"format": "json", "path": "/bad"}}
OUT = {"sink": {"format": "parquet", "path": "/out"}}


def vertices(**changed: Any) -> dict[str, Any]:
    """A source and a vertex that reject records, the sink of these, and an end."""
    given = {
        "events": EVENTS,
        "prices": {"inputs": ["events"], "sql": "SELECT * FROM events", "on-bad-record": {"to": "bad"}},
        "out": {"inputs": ["prices"], **OUT},
        "bad": BAD,
    }
    return given | changed


def job(given: dict[str, Any]) -> JobGraph:
    return parse_job({"name": "shop", "vertices": given})


def problems(given: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(InvalidJobGraph) as caught:
        job(given)
    return {fault.path: f"{fault.problem} ({fault.hint})" for fault in caught.value.faults}


def by_id(graph: JobGraph) -> dict[str, Task]:
    return {task.id: task for task in chain(graph)}


def test_a_sink_of_bad_records_belongs_to_the_task_that_sends_them() -> None:
    """It takes part in that task's micro-batches, and is no end of it (K7, J5)."""
    graph = job(vertices())
    [task] = chain(graph)
    assert [vertex.id for vertex in task.vertices] == ["events", "prices", "out", "bad"]
    assert (task.end, [sink.id for sink in task.result_sinks]) == ("prices", ["out"])
    assert graph.vertex("events").on_bad_record == BadRecordSink(to=VertexId("bad"))
    assert decode(encode(graph)) == graph


def test_its_name_does_not_matter() -> None:
    """A task has the id of its first vertex, and that is never the sink."""
    given = vertices()
    given["aaa"] = given.pop("bad")
    for name in ("events", "prices"):
        given[name] = given[name] | {"on-bad-record": {"to": "aaa"}}
    [task] = chain(job(given))
    assert (task.id, task.vertices[-1].id) == ("events", "aaa")


def test_a_task_that_only_feeds_others_may_have_such_a_sink() -> None:
    """The exchange is its end (J5)."""
    tasks = by_id(job(vertices(out={"inputs": [{"id": "prices", "exchange": True}], **OUT})))
    assert [vertex.id for vertex in tasks["events"].vertices] == ["events", "prices", "bad"]
    assert (tasks["events"].end, tasks["events"].readers) == ("prices", ("out",))
    assert tasks["out"].sinks == tasks["out"].result_sinks


def test_tasks_have_sinks_of_their_own() -> None:
    """One sink has one transaction for each checkpoint, and one task that commits it (J12)."""
    prices = vertices()["prices"] | {"inputs": [{"id": "events", "exchange": True}]}
    assert problems(vertices(prices=prices)) == {
        "vertices.prices.on-bad-record.to": "bad gets the bad records of events, which is in another task than prices "
        "(give prices a sink of its own; an exchange divides the tasks)"
    }
    own = prices | {"on-bad-record": {"to": "odd"}}
    tasks = by_id(job(vertices(prices=own, odd=BAD)))
    assert [[vertex.id for vertex in task.vertices] for task in tasks.values()] == [
        ["events", "bad"],
        ["prices", "out", "odd"],
    ]


@pytest.mark.parametrize("action", list(OnBadRecord))
def test_records_can_fail_the_job_or_be_dropped(action: OnBadRecord) -> None:
    given = {"events": EVENTS | {"on-bad-record": action.value}, "out": {"inputs": ["events"], **OUT}}
    assert job(given).vertex("events").on_bad_record is action


KAFKA = {"source": {"format": "kafka", "options": {"subscribe": "clicks"}}, "on-bad-record": "drop"}


def of_json(**options: str) -> dict[str, Any]:
    return {"source": EVENTS["source"] | {"options": options}, "on-bad-record": "drop"}


@pytest.mark.parametrize(
    ("changed", "path", "said"),
    [
        ({"bad": {"inputs": ["prices"], **BAD}}, "events.on-bad-record.to", "bad writes what prices yields"),
        ({"events": EVENTS | {"on-bad-record": {"to": "out"}}}, "events.on-bad-record.to", "out writes what prices"),
        ({"events": EVENTS | {"on-bad-record": {"to": "prices"}}}, "events.on-bad-record.to", "prices is no sink"),
        ({"events": EVENTS | {"on-bad-record": {"to": "bed"}}}, "events.on-bad-record.to", "did you mean bad?"),
        ({"events": EVENTS | {"on-bad-record": "skip"}}, "events.on-bad-record", "is not one of fail, drop"),
        ({"events": EVENTS | {"on-bad-record": {"too": "bad"}}}, "events.on-bad-record.too", "did you mean to?"),
        ({"events": KAFKA}, "events.on-bad-record", "a kafka source parses no records"),
        (
            {"events": of_json(mode="FAILFAST")},
            "events.on-bad-record",
            "the option mode says what becomes of bad records, too",
        ),
        ({"events": of_json(multiLine="true")}, "events.on-bad-record", "a whole file for bad"),
        ({"events": of_json(encoding="UTF-16")}, "events.on-bad-record", "records that are in UTF-16"),
        ({"bad": BAD | {"parallelism": 2}}, "bad.parallelism", "runs with the vertices that send them"),
        ({"bad": BAD | {"slot-sharing-group": "own"}}, "bad.slot-sharing-group", "leave slot-sharing-group out"),
        ({"out": {"inputs": ["prices"], **OUT, "on-bad-record": "drop"}}, "out.on-bad-record", "a sink has no bad"),
        ({"bad": BAD | {"output-mode": "update"}}, "bad.output-mode", "bad records are only appended"),
        ({"other": BAD}, "other", "the sink has no input"),
    ],
)
def test_what_cannot_be_is_named(changed: dict[str, Any], path: str, said: str) -> None:
    """With the place, and what to do (K7, J4)."""
    assert said in problems(vertices(**changed))[f"vertices.{path}"]


def test_an_option_that_is_refused_may_come_from_a_param() -> None:
    """What counts is the value that the source gets."""
    given = {"name": "shop", "vertices": vertices(events=of_json(multiLine="${lines}"))}
    parse_job(given | {"params": {"lines": False}})
    with pytest.raises(InvalidJobGraph, match="a whole file for bad"):
        parse_job(given | {"params": {"lines": True}})


def test_python_vertices_are_left_out_with_the_sinks_of_their_bad_records() -> None:
    """What needs artifacts that are missing is not analysed, and nothing is said about the rest (J4)."""
    given = vertices(prices={"inputs": ["events"], "python": "shop:prices", "on-bad-record": {"to": "odd"}}, odd=BAD)
    left = without_python(job(given))
    assert [vertex.id for vertex in left.vertices] == ["events", "bad"]
    given = vertices(bad={"sink": {"python": "shop:bad"}})
    left = without_python(job(given))
    assert left.vertex("events").on_bad_record is OnBadRecord.DROP


def test_a_faulty_sink_of_bad_records_keeps_nobody_from_looking_at_the_rest() -> None:
    """Spark analyses what is sound: without that sink, bad records are dropped there (J4)."""
    with pytest.raises(InvalidJobGraph) as caught:
        job(vertices(bad={"sink": {"format": "jsn"}}))
    [task] = sound_tasks(caught.value.sound)
    assert [vertex.id for vertex in task.vertices] == ["events", "prices", "out"]
    assert {vertex.on_bad_record for vertex in task.vertices[:2]} == {OnBadRecord.DROP}


def test_a_sink_of_bad_records_is_left_out_with_those_that_send_them() -> None:
    """If the vertices are faulty that name it, it has nothing to write (J4)."""
    with pytest.raises(InvalidJobGraph) as caught:
        job(vertices(events=EVENTS | {"watermark": {"column": "id", "delay": "soon"}}))
    assert sound_tasks(caught.value.sound) == ()
