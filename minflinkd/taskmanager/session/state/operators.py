"""Finds out to which vertex each source and each stateful operator of a query belongs (C25).

Spark finds state by the number of an operator, and offsets by the number of a source: both are positions in the plan.
So each vertex's frame is marked in the plan by an alias of its own, and the plan is read back with these marks.

The numbers are Spark's: it counts stateful operators and sources from the sink downwards, left before right. Spark's
own list of stateful operators (in `UnsupportedOperationChecker`) is not used, as it leaves some of them out.

A source has three kinds of numbers, see `rpc.plan_sources`.

A query that WITH names is in the plan once, and so are its sources. What reads it holds a reference to it. Spark
replaces each reference by the query when it runs a micro-batch, and counts stateful operators only then.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

import msgspec
import structlog
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

from minflinkd.rpc.plan_sources import EXCHANGE
from minflinkd.rpc.snapshot import Meant, PlanNode
from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.session.spark import real_time_source
from minflinkd.taskmanager.session.spark.failures import hidden
from minflinkd.taskmanager.session.spark.session import Session
from minflinkd.taskmanager.session.state.meaning import meanings

log = structlog.get_logger(__name__)

_MARK = "minflinkd_vertex_"
_REFERENCE = "CTERelationRef"  # to a query that WITH names
_EXCHANGE_NODE = "StreamingExecutionRelation"  # only exchanges have their source in the plan from the beginning
USER_STATE = "TransformWithState"  # the prefix of all its operator names
_STATEFUL = ("Aggregate", "Distinct", "Deduplicate", "Join", "GlobalLimit", "FlatMapGroups")


def mark(frame: DataFrame, vertex: VertexId) -> DataFrame:
    """Mark the frame of a vertex, for all plans that read it. Columns can then be qualified by the vertex id."""
    return frame.alias(_MARK + vertex).alias(vertex)


def reads(session: Session, frame: DataFrame) -> Counter[str]:
    """Return how often the query of a frame computes each vertex."""
    inlined = session.jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE(True, False, False)
    return Counter(_marks(inlined.apply(frame._jdf.queryExecution().analyzed())))


def _marks(node: Any) -> Iterator[str]:
    if str(node.nodeName()) == "SubqueryAlias" and (alias := str(node.identifier().name())).startswith(_MARK):
        yield alias.removeprefix(_MARK)
    for child in _all(node.children()):
        yield from _marks(child)


def nodes(session: Session, frame: DataFrame) -> tuple[PlanNode, ...]:
    """Return the stateful operators and the sources, in the plan's order."""
    walk, plan = _Walk(), frame._jdf.queryExecution().analyzed()
    found = tuple(walk.all(plan))
    lines = list(walk.sources.values())
    if walk.refers:  # count stateful operators as Spark does, with references replaced; sources stay as they are
        plan = session.jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE(True, False, False).apply(plan)
        walk = _Walk()
        stateful = [node for node in walk.all(plan) if node.stateful]
        found = (*stateful, *(node for node in found if not node.stateful))
    meant = _meanings(plan) if walk.places else {}
    return tuple(
        msgspec.structs.replace(node, meaning=meant.get(walk.places[node.number], ()))
        if node.stateful
        else _with_lines(node, tuple(lines[node.number]))
        for node in found
    )


def _meanings(plan: Any) -> dict[int, tuple[Meant, ...]]:
    """Return the meanings of state. If the plan cannot be read they are unknown, and nothing is refused for that."""
    try:
        return meanings(str(plan.toJSON()))
    except (
        Py4JError,
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
        RecursionError,
        StopIteration,
    ) as error:
        log.warning("what the state of a query means is not known", error=hidden(repr(error))[:500])
        return {}


def _with_lines(node: PlanNode, lines: tuple[int, ...]) -> PlanNode:
    return node if lines == (node.number,) else msgspec.structs.replace(node, lines=lines)


def scans(found: tuple[PlanNode, ...], single: Collection[VertexId]) -> dict[int, int]:
    """Return how often Spark counts each row of a source, by its number; 0 if another source has the same rows.

    Spark counts a row in each place that reads its source. Examples: `s UNION ALL s` is one source that is read in two
    places; `s JOIN s` becomes two sources, and only the first one's rows are counted here. A format may skip rows by
    itself, for a filter in one of the places. Spark does not count them there, so the result is the mean of all places.

    `single`: the vertices that yield one source each; a function may yield a union of several.
    """
    counted: dict[int, int] = {}
    seen: set[str] = set()
    for node in sorted((node for node in found if not node.stateful), key=lambda node: node.number):
        again = node.vertex in seen and node.vertex in single
        counted[node.number] = 0 if again else len(node.offset_lines)
        seen.add(node.vertex)
    return counted


class _Walk:
    def __init__(self) -> None:
        self.sources: dict[str, list[int]] = {}  # -> lines of the offset log
        self.refers = False  # the plan has references to a query that WITH names
        self.places: dict[int, int] = {}  # number of a stateful operator -> its place among all nodes, parents first
        self._place = -1
        self._lines = 0

    def all(self, node: Any, inside: tuple[str, ...] = ()) -> Iterator[PlanNode]:
        """Yield the stateful operators and sources below a node. `inside`: the vertices around it, outermost first."""
        self._place += 1
        name = str(node.nodeName())
        if name == "SubqueryAlias" and (alias := str(node.identifier().name())).startswith(_MARK):
            inside = (*inside, alias.removeprefix(_MARK))
        vertex, route = (inside[-1], "/".join(reversed(inside[:-1]))) if inside else ("", "")
        children = _all(node.children())
        if name == _REFERENCE:
            self.refers = True
        elif not children:
            if not node.isStreaming():
                return  # a static table, for a join: not a streaming source
            key = _source(node)
            known, line = key in self.sources, self._lines
            self.sources.setdefault(key, []).append(line)
            self._lines += 1
            if not known:
                number = len(self.sources) - 1
                yield PlanNode(number=number, stateful=False, vertex=vertex, kind=_format(node), route=route)
        elif _is_stateful(node, name, children):
            number = len(self.places)
            self.places[number] = self._place
            yield PlanNode(
                number=number,
                stateful=True,
                vertex=vertex,
                kind=name,
                fingerprint=_digest(_state(node, name, children)),
                sides=_sides(node, children) if name == "Join" else "",
                route=route,
            )
        for child in children:
            yield from self.all(child, inside)


def _is_stateful(node: Any, name: str, children: list[Any]) -> bool:
    if name.startswith(USER_STATE):  # its second child is the initial state: a static table, usually empty
        return bool(children[0].isStreaming())
    return name.startswith(_STATEFUL) and all(child.isStreaming() for child in children)


def _source(leaf: Any) -> str:
    """Return what identifies a source: its column ids. Relations with other column ids are two sources to Spark."""
    if str(leaf.nodeName()) == _EXCHANGE_NODE:
        return str(leaf.source().toString())
    return str(leaf.output().toString())


def _format(leaf: Any) -> str:
    """Return the format of a source. StreamingRelation appends the path, which may change: it is cut off."""
    if str(leaf.nodeName()) == _EXCHANGE_NODE:
        return EXCHANGE
    try:
        return real_time_source.format_of(leaf).partition("[")[0]
    except Py4JError:
        return str(leaf.nodeName())


def _state(node: Any, name: str, children: list[Any]) -> list[str]:
    """Return the types of what the operator keeps; Spark does not compare the names of columns."""
    if name.startswith("Deduplicate"):
        return _types(node.keys())
    if name == "Aggregate":
        return [*_types(node.groupingExpressions()), "->", *_schema(node)]
    if name == "Join":  # also which side is which: one operator keeps both
        sides = _owners_of_sides(children)
        return [str(node.joinType().sql()), *_schema(children[0]), *sides[0], "|", *_schema(children[1]), *sides[1]]
    if name.endswith("WithState") and name.startswith("FlatMapGroups"):
        try:
            return [*_types(node.groupingAttributes()), "->", str(node.stateType().catalogString())]
        except Py4JError:
            return _schema(node)
    if name.startswith(USER_STATE):  # only the grouping key: what else it keeps, only the user's code knows
        return _types(children[0].output())[: int(node.groupingAttributesLen())]
    return [] if name == "GlobalLimit" else _schema(node)


def _sides(node: Any, children: list[Any]) -> str:
    """Describe the sides and the type of a join. Spark compares neither: it would accept the state of another join."""
    left, right = (", ".join(owners) for owners in _owners_of_sides(children))
    return f"{left} {node.joinType().sql()} {right}"


def _owners_of_sides(children: list[Any]) -> list[list[str]]:
    sides = [_owners(child) for child in children]
    if sides[0] == sides[1]:
        sides = [_owners(child, nearest=True) for child in children]
    return sides


def _owners(node: Any, *, nearest: bool = False, vertex: str = "") -> list[str]:
    """Return the vertices of the sources below a node; with `nearest`, the first vertex on each path down."""
    if str(node.nodeName()) == "SubqueryAlias" and (alias := str(node.identifier().name())).startswith(_MARK):
        vertex = alias.removeprefix(_MARK)
        if nearest:
            return [vertex]
    children = _all(node.children())
    if not children:
        return [vertex]
    return [owner for child in children for owner in _owners(child, nearest=nearest, vertex=vertex)]


def _types(expressions: Any) -> list[str]:
    return [str(expression.dataType().catalogString()) for expression in _all(expressions)]


def _schema(node: Any) -> list[str]:
    return [json.dumps(field["type"], sort_keys=True) for field in json.loads(str(node.schema().json()))["fields"]]


def _all(sequence: Any) -> list[Any]:
    return [sequence.apply(position) for position in range(sequence.size())]


def _digest(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
