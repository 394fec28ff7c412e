"""From a shape that went wrong to the smallest one that still goes wrong in the same way."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

from tests.shapes.keyed import Totals
from tests.shapes.playing import Verdict
from tests.shapes.refusals import still_illegal
from tests.shapes.rows import Operator
from tests.shapes.shape import Node, Shape, TooLarge
from tests.shapes.sources import Source
from tests.shapes.stateless import Filter, Tripping

Try = Callable[[list[Shape]], Awaitable[list[Verdict]]]

AT_ONCE = 4  # smaller shapes that are tried on one cluster


async def reduced(wrong: Verdict, attempt: Try, *, seconds: float, tell: Callable[[str], None] = print) -> Verdict:
    """Return the last verdict that was wrong in the same way, when nothing smaller is wrong so or the time is over.

    `attempt` plays some shapes and returns their verdicts, in any order.
    """
    end = time.monotonic() + seconds
    smallest = wrong
    tried: set[Shape] = set()
    while time.monotonic() < end:
        candidates = [shape for shape in smaller(smallest.shape) if shape not in tried][:AT_ONCE]
        if not candidates:
            break
        tried.update(candidates)
        verdicts = await attempt(candidates)
        alike = [verdict for verdict in verdicts if same(verdict, wrong)]
        if alike:
            smallest = min(alike, key=lambda verdict: size(verdict.shape))
            tell(f"smaller: {len(smallest.shape.nodes)} vertices, {len(smallest.shape.sinks)} sinks")
    return smallest


def same(verdict: Verdict, other: Verdict) -> bool:
    """Whether the same went wrong, apart from numbers, names and ids."""
    return verdict.kind == other.kind and _family(verdict) == _family(other)


def _family(verdict: Verdict) -> str:
    """Return what is compared: for wrong rows, missing or surplus; otherwise the error code or the first words."""
    if verdict.kind == "wrong rows":
        return " ".join(sorted({word for word in ("missing", "surplus") if word in verdict.why}))
    code = re.search(r"\[([a-zA-Z_.-]+)\]", verdict.why)
    words = re.sub(r"\S*[\d/_]\S*", "", verdict.why)
    return code.group(1) if code else " ".join(words.split()[:6])


def size(shape: Shape) -> tuple[int, ...]:
    settings = sum(bool(n.parallelism) + bool(n.group) + len(n.exchanges) for n in shape.nodes)
    more = (
        sum(sink.partitioned + sink.exchange for sink in shape.sinks)
        + bool(shape.alignment)
        + bool(shape.max_parallelism)
    )
    files = sum(source.files * source.rows_per_file for source in shape.sources.values())
    return (len(shape.nodes), len(shape.sinks), len(shape.done), settings + more + shape.parallelism, files)


def smaller(shape: Shape) -> Iterator[Shape]:
    """Yield shapes with one thing less, the greatest steps first. All of them have rows to compare."""
    seen: set[Shape] = set()
    for candidate in _steps(shape):
        made = candidate.without_unread()
        if made in seen or size(made) >= size(shape) or not made.sources or not still_illegal(made):
            continue
        seen.add(made)
        try:
            rows = made.batch()
        except TooLarge:
            continue
        if made.refused or all(rows.values()):
            yield made


def _steps(shape: Shape) -> Iterator[Shape]:
    for sink in shape.sinks:
        if len(shape.sinks) > 1:
            yield replace(shape, sinks=(sink,))
    if len(shape.sinks) > 2:
        for sink in shape.sinks:
            yield replace(shape, sinks=tuple(s for s in shape.sinks if s is not sink))
    for what in dict.fromkeys(shape.done):
        left = list(shape.done)
        left.remove(what)
        yield replace(shape, done=tuple(left), pace=shape.pace if left else "")
    for node in reversed(shape.nodes):
        if _can_go(shape, node):
            for given in dict.fromkeys(node.inputs):
                yield _without(shape, node, given)
    yield replace(shape, max_parallelism=None)
    yield replace(shape, parallelism=1, alignment="", nodes=tuple(_plain(node) for node in shape.nodes))
    if shape.arriving:
        yield replace(shape, arriving=False)
    for node in shape.nodes:
        for given in sorted(node.exchanges):
            yield _with(shape, replace(node, exchanges=node.exchanges - {given}))
    for sink in shape.sinks:
        plain = replace(sink, partitioned=False, exchange=False, format="parquet" if sink.mode is None else sink.format)
        yield replace(shape, sinks=tuple(plain if s is sink else s for s in shape.sinks))
    for node in shape.nodes:
        if isinstance(source := node.operator, Source):
            yield _with(shape, replace(node, operator=_poorer(source)))


def _can_go(shape: Shape, node: Node) -> bool:
    """Whether the vertex may be left out: neither what is done to the job nor its illegality needs it."""
    if isinstance(node.operator, Source) or node.changes:
        return False
    if isinstance(node.operator, Tripping) and "raise" in shape.done:
        return False
    return not (isinstance(node.operator, Filter) and "hot restart" in shape.done)


def _without(shape: Shape, gone: Node, instead: str) -> Shape:
    """Leave out a vertex. What read it reads one of its inputs instead."""

    def new(vertex: str) -> str:
        return instead if vertex == gone.id else vertex

    nodes = tuple(
        replace(n, inputs=tuple(map(new, n.inputs)), exchanges=frozenset(map(new, n.exchanges)))
        for n in shape.nodes
        if n is not gone
    )
    sinks = tuple(replace(sink, input=new(sink.input)) for sink in shape.sinks)
    if isinstance(gone.operator, Totals):  # without it, the result no longer changes
        sinks = tuple(replace(sink, mode=None) if sink.input == instead else sink for sink in sinks)
    return replace(shape, nodes=nodes, sinks=sinks)


def _with(shape: Shape, node: Node) -> Shape:
    return replace(shape, nodes=tuple(node if n.id == node.id else n for n in shape.nodes))


def _plain(node: Node) -> Node:
    return replace(node, parallelism=None, group="")


def _poorer(source: Source) -> Operator:
    return replace(
        source, format="json", files=min(source.files, 4), rows_per_file=min(source.rows_per_file, 4), repeats=0
    )
