"""What `minflinkd explain` says of a job (J5, J6)."""

from __future__ import annotations

from msgspec.structs import replace

from minflinkd.cli.explain import explanation, lines
from minflinkd.jobgraph.chaining import cut_edges, cut_reasons
from minflinkd.jobgraph.model import BadRecordSink, Input, JobGraph, OnBadRecord, Sink, Source, Vertex
from minflinkd.rest.schemas import ExplainedOperator, TaskExplanation
from minflinkd.runtime.ids import VertexId


def vertex(name: str, *inputs: str, group: str = "default", exchange: bool = False, sink: bool = False) -> Vertex:
    return Vertex(
        id=VertexId(name),
        source=None if inputs else Source(format="rate"),
        inputs=tuple(Input(id=VertexId(each), exchange=exchange) for each in inputs),
        sql="SELECT 1" if inputs and not sink else None,
        sink=Sink(format="console") if sink else None,
        slot_sharing_group=group,
    )


GRAPH = JobGraph(
    name="clicks",
    parallelism=2,
    vertices=(
        vertex("events"),
        vertex("counts", "events", exchange=True),
        vertex("heavy", "counts", group="heavy"),
        vertex("out", "heavy", group="heavy", sink=True),
        vertex("raw", "events"),
        vertex("log", "raw", sink=True),
        vertex("wide", "raw"),
        vertex("wide-log", "wide", sink=True),
    ),
)


def test_each_exchange_has_its_reason() -> None:
    """The job asks for it, the slot sharing groups differ, or one query would have several ends."""
    reasons = cut_reasons(GRAPH)
    assert reasons.keys() == cut_edges(GRAPH)
    assert "exchange: true" in reasons[VertexId("events"), VertexId("counts")]
    assert "(default, heavy)" in reasons[VertexId("counts"), VertexId("heavy")]
    assert any("leads to several ends" in why for why in reasons.values())


def test_slots_are_the_widest_task_of_each_group() -> None:
    found = explanation(GRAPH, {}, "no daemon answers")
    assert found["slot-sharing-groups"] == {"default": 2, "heavy": 2}
    assert found["slots"] == 4


def test_without_spark_nothing_is_said_of_state() -> None:
    found = explanation(GRAPH, {}, "no daemon answers")
    assert all(task["state"] is None for task in found["tasks"])
    text = "\n".join(lines(found))
    assert "State and Spark's plan are not shown: no daemon answers." in text
    assert "state: none" not in text


def test_with_spark_each_task_has_its_state_and_its_plan() -> None:
    operators = (
        ExplainedOperator(vertex="events", kind="rate", stateful=False),
        ExplainedOperator(vertex="counts", kind="stateStoreSave", stateful=True),
    )
    told = {"counts": TaskExplanation(id="counts", plan="*(1) Project\n+- Scan", operators=operators)}
    text = list(lines(explanation(GRAPH, told, "")))
    assert "  state: stateStoreSave of counts" in text
    twice = TaskExplanation(id="counts", plan="", operators=(*operators[1:], *operators[1:]))
    assert "  state: stateStoreSave of counts (2 times)" in list(lines(explanation(GRAPH, {"counts": twice}, "")))
    assert text[-3:] == ["Spark's plan of task counts:", "  *(1) Project", "  +- Scan"]
    assert "  begins here, as events -> counts is an exchange: the job asks for it (exchange: true)" in text


def test_a_vertex_that_looks_for_bad_records_says_what_becomes_of_them() -> None:
    """Their sink belongs to the task, though it reads nothing (K7)."""
    events, counts = vertex("events"), vertex("counts", "events")
    graph = JobGraph(
        name="clicks",
        vertices=(
            replace(events, on_bad_record=BadRecordSink(to=VertexId("bad"))),
            replace(counts, on_bad_record=OnBadRecord.DROP),
            replace(vertex("more", "counts"), on_bad_record=OnBadRecord.FAIL),
            vertex("out", "more", sink=True),
            Vertex(id=VertexId("bad"), sink=Sink(format="console")),
        ),
    )
    found = explanation(graph, {}, "no daemon answers")
    [task] = found["tasks"]
    assert {each["id"]: each["does"] for each in task["vertices"]} == {
        "events": "reads rate, sends bad records to bad",
        "counts": "SQL over events, drops bad records",
        "more": "SQL over counts, fails on bad records",
        "out": "writes console",
        "bad": "writes console",
    }
