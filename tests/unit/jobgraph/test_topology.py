"""Edges, order and connected parts of a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minflinkd.jobgraph.faults import GraphFault
from minflinkd.jobgraph.model import Input, Vertex
from minflinkd.jobgraph.topology import connected_parts, predecessors, topological_order
from minflinkd.runtime.ids import VertexId

FindFaults = Callable[[object], dict[str, GraphFault]]
Document = dict[str, Any]


def graph(**inputs: str) -> tuple[Vertex, ...]:
    return tuple(
        Vertex(id=VertexId(name), inputs=tuple(Input(id=VertexId(one)) for one in read))
        for name, read in inputs.items()
    )


def names(vertices: tuple[Vertex, ...]) -> str:
    return "".join(vertex.id for vertex in vertices)


EDGES: dict[str, tuple[Callable[[Document], object], dict[str, str]]] = {
    "an input like none": (
        lambda v: v["delays"].update(inputs=["flights", "xyzzy"]),
        {"vertices.delays.inputs[1]": "unknown input xyzzy (the vertices are: flights)"},
    ),
    "a misspelt input means the vertex that it is like": (
        lambda v: v["delays"].update(inputs=["fligts"]),
        {"vertices.delays.inputs[0]": "unknown input fligts (did you mean flights?)"},
    ),
    "an input of no name and one twice, beside good ones": (
        lambda v: v["delays"].update(inputs=["flights", "xyzzy", "flights", "out", "delays"]),
        {
            "vertices.delays.inputs": "cycle: delays -> delays (data flows from sources to sinks only)",
            "vertices.delays.inputs[1]": "unknown input xyzzy (the vertices are: flights)",
            "vertices.delays.inputs[2]": "flights is an input twice "
            "(one input is enough, SQL may read it several times)",
            "vertices.delays.inputs[3]": "out is a sink, and nothing can read from it (read what the sink reads)",
        },
    ),
    "a source that nobody reads": (
        lambda v: v.update(more={"source": {"format": "rate"}}),
        {"vertices.more": "the source vertex leads nowhere (name it in the inputs of a vertex, or leave it out)"},
    ),
    "a vertex may lead to the one whose inputs were forgotten": (
        lambda v: v["out"].pop("inputs"),
        {"vertices.out": "the sink has no input (inputs: [<id of the vertex that it writes>])"},
    ),
    "a vertex that leads nowhere beside one that does nothing": (
        lambda v: v.update(more={"inputs": ["flights"], "sql": "SELECT 1"}, idle={}),
        {
            "vertices.idle": "the vertex does nothing (give it one of source, sql, python, sink)",
            "vertices.more": "the sql vertex leads nowhere (name it in the inputs of a vertex, or leave it out)",
        },
    ),
    "a vertex whose sink is no sink": (
        lambda v: v.update(more={"inputs": ["flights"], "sql": "SELECT 1", "sink": 5}),
        {
            "vertices.more.sink": "5 is not a mapping "
            "(with format, path, partition-by, delivery, options, python, compaction, key, value, schema-registry)"
        },
    ),
    "cycles that have a vertex in common": (
        lambda v: v.update(
            a={"inputs": ["flights", "b", "c"], "sql": "SELECT 1"},
            b={"inputs": ["a"], "sql": "SELECT 1"},
            c={"inputs": ["a"], "sql": "SELECT 1"},
            d={"inputs": ["a", "e"], "sql": "SELECT 1"},
            e={"inputs": ["d"], "sql": "SELECT 1"},
        ),
        {
            "vertices.a.inputs": "cycle: a -> b -> a (data flows from sources to sinks only)",
            "vertices.d.inputs": "cycle: d -> e -> d (data flows from sources to sinks only)",
        },
    ),
}


@pytest.mark.parametrize("what", EDGES)
def test_every_wrong_edge_is_told_at_its_place(what: str, document: Document, faults: FindFaults) -> None:
    """Nothing is told that only follows from another fault (J4)."""
    change, wanted = EDGES[what]
    change(document["vertices"])
    found = {path: str(fault).partition(": ")[2] for path, fault in faults(document).items()}
    assert dict(sorted(found.items())) == wanted


def test_inputs_that_do_not_exist_are_no_predecessors() -> None:
    """They are faults of their own (J4)."""
    assert predecessors(graph(a="", b="ax", c="bab")) == {"a": [], "b": ["a"], "c": ["b", "a", "b"]}


@pytest.mark.parametrize(
    ("inputs", "order"),
    [
        ({"c": "", "b": "c", "a": "b"}, "cba"),
        ({"d": "", "c": "", "b": "d", "a": "c"}, "cadb"),
        ({"c": "aa", "b": "a", "a": ""}, "abc"),
        ({"e": "dc", "d": "a", "c": "b", "b": "", "a": ""}, "abcde"),
        ({"b": "", "a": "xb"}, "ba"),
    ],
)
def test_inputs_come_before_their_readers_and_otherwise_names_decide(inputs: dict[str, str], order: str) -> None:
    """So the order in the document never matters (J2)."""
    assert names(topological_order(graph(**inputs))) == order


def test_parts_are_what_edges_connect_in_either_direction() -> None:
    """Each is in the order of the vertices, and so are the parts (J5)."""
    vertices = graph(a="", x="", b="a", y="x", z="", c="", d="cb", w="zx")
    assert [names(part) for part in connected_parts(vertices)] == ["abcd", "xyzw"]
    assert [names(part) for part in connected_parts(graph(a="", b="", c="ab", d=""))] == ["abc", "d"]
    assert connected_parts(()) == []


@given(st.lists(st.lists(st.integers(0, 7), max_size=3), max_size=8))
def test_any_graph_without_a_cycle_is_sorted_and_divided(edges: list[list[int]]) -> None:
    """Each vertex is there once, after all that it reads and in one part with it (J5)."""
    inputs = {"hgfedcba"[n]: "".join("hgfedcba"[i] for i in read if i < n) for n, read in enumerate(edges)}
    order = topological_order(graph(**inputs))
    assert sorted(names(order)) == sorted(inputs)
    for position, vertex in enumerate(order):
        assert {edge.id for edge in vertex.inputs} <= set(names(order[:position]))
    parts = [names(part) for part in connected_parts(order)]
    assert sorted("".join(parts)) == sorted(inputs)
    for vertex in order:
        [part] = [part for part in parts if vertex.id in part]
        assert {edge.id for edge in vertex.inputs} <= set(part)
