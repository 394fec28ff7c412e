from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.model import JobGraph, OutputMode
from minflinkd.jobgraph.validation import parse_job


def source() -> dict[str, Any]:
    return {"source": {"format": "rate"}}


def sql(*inputs: str, **settings: Any) -> dict[str, Any]:
    return {"inputs": list(inputs), "sql": "SELECT 1", **settings}


def sink(vertex: str) -> dict[str, Any]:
    return {"inputs": [vertex], "sink": {"format": "json", "path": "/data/out"}}


def job(parallelism: int = 1, **vertices: dict[str, Any]) -> JobGraph:
    return parse_job({"name": "test", "parallelism": parallelism, "vertices": vertices})


def test_a_chain_of_vertices_is_one_task() -> None:
    """A task is what Spark can run as one query (J5)."""
    (task,) = chain(job(z=source(), m=sql("z"), a=sink("m")))
    assert (task.id, task.name) == ("z", "z -> m -> a")


def test_one_micro_batch_may_feed_several_sinks() -> None:
    """A task ends at its sinks, which all write the rows of one vertex (J5)."""
    (task,) = chain(job(a=source(), b=sql("a"), out1=sink("b"), out2=sink("b")))
    assert [v.id for v in task.sinks] == ["out1", "out2"]


def test_a_join_of_two_sources_is_one_task() -> None:
    """J5."""
    (task,) = chain(job(left=source(), right=source(), both=sql("left", "right"), out=sink("both")))
    assert [v.id for v in task.vertices] == ["left", "right", "both", "out"]


def test_a_vertex_read_twice_on_the_way_to_one_sink_stays_in_one_task() -> None:
    """A self-join is one query (J5)."""
    graph = job(a=source(), b=sql("a"), c=sql("a"), d=sql("b", "c"), out=sink("d"))
    assert [t.name for t in chain(graph)] == ["a -> b -> c -> d -> out"]


def test_parts_that_are_not_connected_are_tasks_of_their_own() -> None:
    """J5."""
    graph = job(y=source(), out_y=sink("y"), x=source(), out_x=sink("x"))
    assert [t.name for t in chain(graph)] == ["x -> out_x", "y -> out_y"]


def test_a_task_has_the_parallelism_that_its_vertices_state_or_else_the_jobs() -> None:
    """J6."""
    assert chain(job(4, a=source(), out=sink("a")))[0].parallelism == 4
    stated = job(4, a=source(), b=sql("a", parallelism=2), c=sql("b", parallelism=3), out=sink("c"))
    assert chain(stated)[0].parallelism == 3


@pytest.mark.parametrize(
    ("vertices", "tasks"),
    [
        pytest.param(
            {"a": source(), "b": sql("a"), "c": sql("a"), "out1": sink("b"), "out2": sink("c")},
            {"a": ("a", "b c"), "b": ("b out1", ""), "c": ("c out2", "")},
            id="two branches",
        ),
        pytest.param(
            {"a": source(), "b": sql("a"), "out1": sink("a"), "out2": sink("b")},
            {"a": ("a out1", "b"), "b": ("b out2", "")},
            id="a sink in the middle",
        ),
        pytest.param(
            {"a": source(), "b": sql("a", **{"slot-sharing-group": "big"}), "out": sink("b")},
            {"a": ("a", "b"), "b": ("b", "out"), "out": ("out", "")},
            id="another slot sharing group",
        ),
        pytest.param(
            {"a": source(), "b": sql("a"), "c": {"inputs": ["b", {"id": "a", "exchange": True}], "sql": "SELECT 1"}}
            | {"out": sink("c")},
            {"a": ("a", "b"), "b": ("b c out", "")},
            id="an exchange beside a way within the task",
        ),
        pytest.param(
            {"a": source(), "b": sql("a"), "c": sql("a"), "d": sql("b", "c"), "out": sink("d")},
            {"a": ("a b c d out", "")},
            id="a diamond within one query",
        ),
        pytest.param(
            {"a": source(), "b": sql("a"), "c": sql("a")}
            | {name: {"inputs": [{"id": read, "exchange": True}], "sql": "SELECT 1"} for name, read in ("xb", "yc")}
            | {"out1": sink("x"), "out2": sink("y")},
            {
                "a": ("a", "b c"),
                "b": ("b", "x"),
                "c": ("c", "y"),
                "x": ("x out1", ""),
                "y": ("y out2", ""),
            },
            id="branches that end at exchanges",
        ),
        pytest.param(
            {"a": source(), "out": sink("a"), "k": source(), "l": sql("k"), "m": sql("k")}
            | {"out1": sink("l"), "out2": sink("m")},
            {"a": ("a out", ""), "k": ("k", "l m"), "l": ("l out1", ""), "m": ("m out2", "")},
            id="branches beside a part with one end",
        ),
        pytest.param(
            {"a": source(), "b": sql("a"), "c": sql("b"), "d": sql("b"), "out1": sink("c"), "out2": sink("d")}
            | {"out3": sink("d")},
            {"a": ("a b", "c d"), "c": ("c out1", ""), "d": ("d out2 out3", "")},
            id="branches after a chain",
        ),
    ],
)
def test_a_task_ends_where_a_micro_batch_would_be_computed_twice(
    vertices: dict[str, Any], tasks: dict[str, tuple[str, str]]
) -> None:
    """Such a task ends at an exchange, which all tasks after it read (J5)."""
    chained = {t.id: (" ".join(v.id for v in t.vertices), " ".join(t.readers)) for t in chain(job(**vertices))}
    assert chained == tasks


def test_a_task_keeps_what_is_said_of_its_slots_and_of_its_exchange() -> None:
    """All readers of an exchange get it in one mode (J5)."""
    read = {"id": "b", "exchange": True, "output-mode": "update"}
    red = {"slot-sharing-group": "red"}
    graph = job(3, b=source(), c={"inputs": [read], "sql": "SELECT 1", **red}, a=sink("c") | red)
    found = [(t.id, t.exchange_mode, t.slot_sharing_group, t.readers, t.parallelism) for t in chain(graph)]
    assert found == [("b", OutputMode.UPDATE, "default", ("c",), 3), ("c", None, "red", (), 3)]


def test_a_reader_that_says_nothing_takes_the_exchange_as_another_one_asks_for_it() -> None:
    """One vertex has one exchange (J5)."""
    read = {"id": "a", "exchange": True}
    for first, second in ((read, read | {"output-mode": "update"}), (read | {"output-mode": "update"}, read)):
        ends = {"out1": sink("b"), "out2": sink("c")}
        asked = {"b": {"inputs": [first], "sql": "SELECT 1"}, "c": {"inputs": [second], "sql": "SELECT 1"}}
        assert chain(job(a=source(), **asked, **ends))[0].exchange_mode is OutputMode.UPDATE


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Return a strategy for valid documents of one to three connected parts."""
    vertices: dict[str, Any] = {}
    names = iter(draw(st.permutations("abcdefghijklmnopqrstuvwxyz")))
    for _ in range(draw(st.integers(1, 3))):
        streams = []
        for _ in range(draw(st.integers(1, 2))):
            streams.append(next(names))
            vertices[streams[-1]] = source()
        for _ in range(draw(st.integers(0, 2))):
            inputs = draw(st.lists(st.sampled_from(streams), min_size=1, unique=True))
            streams.append(next(names))
            vertices[streams[-1]] = sql(*inputs)
        last = next(names)
        vertices[last] = sql(*streams)
        for _ in range(draw(st.integers(1, 3))):
            vertices[next(names)] = sink(last)
    return {"name": "test", "vertices": vertices}


@given(documents())
def test_every_vertex_is_in_exactly_one_task_after_its_inputs(document: dict[str, Any]) -> None:
    """Tasks partition the graph, each in topological order, and end only at sinks or exchanges (J5)."""
    graph = parse_job(document)
    tasks = chain(graph)
    assert sorted(v.id for task in tasks for v in task.vertices) == sorted(v.id for v in graph.vertices)
    for task in tasks:
        order = [str(v.id) for v in task.vertices]
        assert str(task.id) == order[0]
        assert len({sink.inputs[0].id for sink in task.sinks}) == 1
        for vertex in task.vertices:
            assert all(order.index(edge.id) < order.index(vertex.id) for edge in vertex.inputs)


@given(documents(), st.randoms(use_true_random=False))
def test_tasks_do_not_depend_on_the_order_in_the_document(document: dict[str, Any], rng: random.Random) -> None:
    """Ids are stable, because state is matched by them (J2)."""
    entries = list(document["vertices"].items())
    rng.shuffle(entries)
    assert chain(parse_job(document | {"vertices": dict(entries)})) == chain(parse_job(document))
