"""Shapes that must be refused when they are submitted, each with the words that the refusal must contain."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace

from tests.shapes.rows import Operator
from tests.shapes.shape import Node, Shape
from tests.shapes.sinks import Sink
from tests.shapes.sources import Source
from tests.shapes.stateless import Explode, Filter, Project, Rekey

RARE = ("a second watermark", "reads what is not among its inputs", "nothing can store it")  # few shapes can have them
LONGEST = 1_500  # characters of a fault: people read it

REASONS = {  # the name of a reason, and what the refusal says
    "a second watermark": r"(?i)watermark.*(already|second|twice|redefin)|redefin\w* watermark",
    "reads what is not among its inputs": r"(?i)n(ot|or) among|cannot be found|not an input|TABLE_OR_VIEW_NOT_FOUND",
    "an unknown source format": r"(?i)format",
    "an aggregate without watermark": r"(?i)watermark",
    "update into files": r"(?i)mode",
    "a misspelt option": r"did you mean",
    "ids that differ only in case": r"(?i)\bcase\b",
    "nothing can store it": r"cannot be stored",
    "complete, with an exchange before the sink": r"there is an exchange.*slot sharing groups are",
}

BY_CHANCE = {"bad records of what is computed twice": r"the task reads \w+ \d+ times"}  # of shapes that may be refused


def with_its_own_fault(shape: Shape) -> Shape:
    """Mark a shape that was drawn with a fault by chance."""
    return replace(shape, refused="complete, with an exchange before the sink") if _complete_apart(shape) else shape


def _complete_apart(shape: Shape) -> bool:
    """Whether a sink of mode complete comes after an exchange: sinks are in no slot sharing group of their own."""
    return any(sink.mode == "complete" and shape.node(sink.input).group for sink in shape.sinks)


def made_illegal(shape: Shape, rng: random.Random) -> Shape:
    """Return the shape with one fault, or as it is if none fits."""
    made = {reason: maker(shape, rng) for reason, maker in _MAKERS.items()}
    fitting = [reason for reason, found in made.items() if found is not None]
    rare = [reason for reason in fitting if reason in RARE]
    if not fitting:
        return shape
    reason = rng.choice(rare or fitting)
    found = made[reason]
    assert found is not None
    return replace(found, refused=reason)


def reason_of(told: str) -> str | None:
    """Return the first of the known reasons that a refusal gives."""
    known = REASONS | BY_CHANCE
    return next((name for name, pattern in known.items() if re.search(pattern, told, re.DOTALL)), None)


def right_reason(shape: Shape, told: str) -> bool:
    return re.search(REASONS[shape.refused], told, re.DOTALL) is not None


def still_illegal(shape: Shape) -> bool:
    """Whether a shape that must be refused still has the reason, after something was left out."""
    match shape.refused:
        case "":
            return True
        case "an aggregate without watermark":
            return _no_watermark(shape, random.Random(0)) is not None
        case "update into files":
            return any(sink.mode == "update" and sink.is_of_files for sink in shape.sinks)
        case "ids that differ only in case":
            names = {node.id.lower() for node in shape.nodes}
            return len(names) < len(shape.nodes)
        case "nothing can store it":
            changed = {node.id for node in shape.nodes if node.changes}
            return any(changed & node.exchanges for node in shape.nodes)
        case "complete, with an exchange before the sink":
            return _complete_apart(shape)
        case _:
            return any(node.changes for node in shape.nodes)


def _second_watermark(shape: Shape, rng: random.Random) -> Shape | None:
    after = [node for node in shape.nodes if _timed_source(shape, node)]
    return _changed(shape, after, rng, {"watermark": {"column": "ts", "delay": "20 seconds"}})


def _not_an_input(shape: Shape, rng: random.Random) -> Shape | None:
    found = []
    for node in shape.nodes:
        if isinstance(node.operator, Project | Filter) and not node.exchanges:
            above = shape.node(node.inputs[0])
            found += [(node, given) for given in above.inputs if given not in above.exchanges]
    if not found:
        return None
    node, other = rng.choice(found)
    return _changed(shape, [node], rng, {"sql": f"SELECT id, k, ts, v FROM {other}"})


def _unknown_format(shape: Shape, rng: random.Random) -> Shape | None:
    read = [node for node in shape.nodes if isinstance(node.operator, Source)]
    return _changed(shape, read, rng, {"source": {"format": "jsonl", "path": "/nowhere", "schema": "id BIGINT"}})


def _misspelt_option(shape: Shape, rng: random.Random) -> Shape | None:
    read = [node for node in shape.nodes if isinstance(node.operator, Source) and node.operator.format == "json"]
    source = {"format": "json", "path": "/nowhere", "schema": "id BIGINT", "options": {"maxFilePerTrigger": 1}}
    return _changed(shape, read, rng, {"source": source})


def _no_watermark(shape: Shape, rng: random.Random) -> Shape | None:
    if not any(node.operator.name.startswith(("Window", "Session")) for node in shape.nodes):
        return None
    nodes = tuple(
        replace(node, operator=replace(node.operator, delay=0)) if isinstance(node.operator, Source) else node
        for node in shape.nodes
    )
    return replace(shape, nodes=nodes)


def _update_into_files(shape: Shape, rng: random.Random) -> Shape | None:
    files = [sink for sink in shape.sinks if sink.is_of_files]
    if not files:
        return None
    chosen = rng.choice(files)
    return replace(shape, sinks=tuple(replace(s, mode="update") if s is chosen else s for s in shape.sinks))


def _alike_but_for_case(shape: Shape, rng: random.Random) -> Shape | None:
    """Make the names of two inputs of one vertex equal but for case."""
    pairs = [node.inputs for node in shape.nodes if len(set(node.inputs)) == 2]
    if not pairs:
        return None
    first, second = rng.choice(pairs)
    return replace(renamed(shape, second, first.swapcase()), may_be_refused=True)


def _not_storable(shape: Shape, rng: random.Random) -> Shape | None:
    """Add a column of months, which no exchange can store."""
    read = [
        (node, given)
        for node in shape.nodes
        for given in node.inputs
        if isinstance(shape.node(given).operator, Project | Filter | Rekey | Explode)
    ]
    if not read:
        return None
    reader, given = rng.choice(read)
    sql = f"SELECT id, k, ts, v, make_interval(0, 1) AS months FROM {shape.node(given).inputs[0]}"
    cut = replace(reader, exchanges=reader.exchanges | {given})
    nodes = tuple(cut if node is reader else node for node in shape.nodes)
    return _changed(replace(shape, nodes=nodes), [shape.node(given)], rng, {"sql": sql})


_MAKERS: dict[str, Callable[[Shape, random.Random], Shape | None]] = {
    "a second watermark": _second_watermark,
    "reads what is not among its inputs": _not_an_input,
    "an unknown source format": _unknown_format,
    "a misspelt option": _misspelt_option,
    "an aggregate without watermark": _no_watermark,
    "update into files": _update_into_files,
    "ids that differ only in case": _alike_but_for_case,
    "nothing can store it": _not_storable,
}


def renamed(shape: Shape, before: str, after: str) -> Shape:
    def new(vertex: str) -> str:
        return after if vertex == before else vertex

    nodes = tuple(
        replace(
            node, id=new(node.id), inputs=tuple(map(new, node.inputs)), exchanges=frozenset(map(new, node.exchanges))
        )
        for node in shape.nodes
    )
    sinks: tuple[Sink, ...] = tuple(replace(sink, input=new(sink.input)) for sink in shape.sinks)
    return replace(shape, nodes=nodes, sinks=sinks)


def _timed_source(shape: Shape, node: Node) -> bool:
    """Whether the node reads a source with a watermark, in its own query, and keeps the watermark."""
    if not isinstance(node.operator, Project | Filter) or node.exchanges:
        return False
    given: Operator = shape.node(node.inputs[0]).operator
    return isinstance(given, Source) and given.delay > 0


def _changed(shape: Shape, nodes: list[Node], rng: random.Random, changes: dict[str, object]) -> Shape | None:
    if not nodes:
        return None
    chosen = rng.choice(nodes)
    return replace(shape, nodes=tuple(replace(n, changes=changes) if n is chosen else n for n in shape.nodes))
