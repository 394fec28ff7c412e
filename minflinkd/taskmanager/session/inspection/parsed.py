"""Makes a plain tree of what Spark's parser makes of a SELECT, for `query_check`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from minflinkd.taskmanager.session.inspection.query_check import LONGEST_QUERY, MOST_NODES, Node, StateQueryRefused
from minflinkd.taskmanager.session.spark.failures import spark_message

_PLAN = "org.apache.spark.sql.catalyst.plans.logical.LogicalPlan"
_WITHOUT_PATTERN = "%" * 9  # refused: a pattern that is computed could be anything


def parse(spark: SparkSession, text: str) -> tuple[Any, Node]:
    """Return Spark's plan of the text, not analysed, and the same as a plain tree. Raises StateQueryRefused."""
    if len(text) > LONGEST_QUERY:
        raise StateQueryRefused(f"the query has {len(text):,} characters", hint=f"at most {LONGEST_QUERY:,}")
    try:
        plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(text)
    except PySparkException as error:
        raise StateQueryRefused(f"Spark cannot parse the query: {_first_lines(spark_message(error))}") from error
    except Py4JJavaError as error:
        message = str(error.java_exception.getMessage())
        raise StateQueryRefused(f"Spark cannot parse the query: {_first_lines(message)}") from error
    return plan, _Walk(spark.sparkContext._gateway).node(plan)


class _Walk:
    """Counts the nodes, so that a query that is too long is not walked to its end."""

    def __init__(self, gateway: Any) -> None:
        self._gateway = gateway
        self._seen = 0

    def node(self, of: Any) -> Node:
        self._seen += 1
        if self._seen > MOST_NODES:
            raise StateQueryRefused("the query is too long", hint=f"at most {MOST_NODES} operations and values")
        kind = str(of.getClass().getSimpleName()).removesuffix("$")
        below = tuple(map(self.node, self._below(of, kind)))
        match kind:
            case "UnresolvedRelation":
                name = str(of.multipartIdentifier().mkString("."))
                odd = "options of a table" if not of.options().isEmpty() or of.isStreaming() else ""
                return Node(kind, name, below, odd=odd)
            case "UnresolvedFunction":
                return Node(kind, str(of.nameParts().mkString(".")), below, odd=_odd_function(of))
            case "UnresolvedGenerator":
                return Node(kind, str(of.name().unquotedString()), below)
            case "UnresolvedWith":
                names = tuple(str(each._1()) for each in _items(of.cteRelations()))
                return Node(kind, "", below, names, "WITH RECURSIVE" if of.allowRecursion() else "")
            case "Like":
                return Node(kind, _pattern(of), below)
        return Node(kind, "", below)

    def _below(self, of: Any, kind: str) -> Iterator[Any]:
        """Yield everything that a node holds. Kinds that hold more than that are not allowed in a query."""
        yield from _items(of.children())
        if is_instance_of(self._gateway, of, _PLAN):
            yield from _items(of.expressions())
            if kind == "UnresolvedWith":
                for each in _items(of.cteRelations()):
                    yield each._2()
        elif kind == "ScalarSubquery":
            yield of.plan()


def _items(sequence: Any) -> Iterator[Any]:
    iterator = sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _odd_function(of: Any) -> str:
    if of.isInternal():
        return "an internal function"
    return "" if of.orderingWithinGroup().isEmpty() else "WITHIN GROUP"


def _pattern(of: Any) -> str:
    right = of.right()
    if str(right.getClass().getSimpleName()) != "Literal":
        return _WITHOUT_PATTERN
    return str(right.value())


def _first_lines(message: str) -> str:
    return " ".join(line.strip() for line in message.splitlines()[:4] if line.strip())[:500]
