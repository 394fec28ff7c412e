"""What the state of operators means, as read from Spark's own description of a plan."""

from __future__ import annotations

import json
from typing import Any

from minflinkd.rpc.snapshot import Meant
from minflinkd.taskmanager.session.state.meaning import meanings

Tree = list[dict[str, Any]]
_KEYWORDS = "org.apache.spark.sql.catalyst"


def part(name: str, /, *children: Tree, **fields: Any) -> Tree:
    """A node or an expression, with everything below it, as Spark lists them."""
    first = {"class": f"{_KEYWORDS}.{name}", "num-children": len(children), **fields}
    return [first, *(entry for child in children for entry in child)]


def column(name: str, number: int) -> Tree:
    return part("AttributeReference", name=name, exprId={"id": number})


def alias(name: str, number: int, of: Tree) -> Tree:
    return part("Alias", of, name=name, exprId={"id": number})


def literal(value: int) -> Tree:
    return part("Literal", value=str(value), dataType="integer")


def aggregate(function: str, *arguments: Tree, **fields: Any) -> Tree:
    return part("AggregateExpression", part(function, *arguments, **fields), isDistinct=False)


SOURCE = part("StreamingRelationV2", output=[column("k", 1), column("v", 2)])


def counted(below: Tree, keys: list[Tree], results: list[Tree]) -> tuple[Meant, ...]:
    return meanings(json.dumps(part("Aggregate", below, groupingExpressions=keys, aggregateExpressions=results)))[0]


def test_a_name_that_a_projection_gives_does_not_matter() -> None:
    """A column is identified by what it is computed from, down to the source (C25)."""
    renamed = part(
        "Project", SOURCE, projectList=[alias("key", 11, column("k", 1)), alias("amount", 12, column("v", 2))]
    )
    one = counted(SOURCE, [column("k", 1)], [alias("n", 20, aggregate("Sum", column("v", 2)))])
    other = counted(renamed, [column("key", 11)], [alias("m", 30, aggregate("Sum", column("amount", 12)))])
    assert [meant.exact for meant in one] == [meant.exact for meant in other] == ["k", "sum(v)"]
    assert [meant.text for meant in other] == ["key", "sum(amount)"]


def test_a_literal_counts_in_a_key_and_not_in_a_projection_below_it() -> None:
    """A literal in a projection may change; a literal in a key may not (C25, H2)."""

    def key(in_projection: int, in_key: int) -> Meant:
        projected = alias("p", 11, part("Remainder", column("v", 2), literal(in_projection)))
        below = part("Project", SOURCE, projectList=[projected])
        (found,) = counted(below, [part("Add", column("p", 11), literal(in_key))], [])
        return found

    assert key(10, 1).form == key(20, 1).form == "((v % ?) + 1)"
    assert key(10, 1).form != key(10, 2).form


def test_an_aggregate_is_its_function_and_the_columns_that_it_is_computed_of() -> None:
    """How it is computed from them may change (C25)."""
    doubled = aggregate("Sum", part("Multiply", column("v", 2), literal(2)))
    (meant,) = counted(SOURCE, [], [alias("n", 20, doubled)])
    assert (meant.text, meant.form) == ("sum((v * 2))", "sum(v)")


def test_a_part_of_a_column_is_a_column_of_its_own() -> None:
    """To Spark, everything in a Kafka message is one column (C25)."""

    def form(name: str) -> str:
        parsed = alias("data", 11, part("JsonToStructs", column("v", 2)))
        field = part("GetStructField", column("data", 11), name=name, ordinal=0)
        return counted(part("Project", SOURCE, projectList=[parsed]), [], [aggregate("Sum", field)])[0].form

    assert form("price") == "sum(v.price)"
    assert form("price") != form("pieces")


def test_statistics_that_spark_computes_of_the_same_state_mean_the_same() -> None:
    """Standard deviation and variance, for example, are computed from the same state (C25)."""
    forms = {counted(SOURCE, [], [aggregate(name, column("v", 2))])[0].form for name in ("StddevSamp", "VariancePop")}
    assert forms == {"variance(v)"}


def test_an_aggregate_that_is_written_twice_is_one() -> None:
    """Spark keeps it once (C25)."""
    total = aggregate("Sum", column("v", 2))
    assert len(counted(SOURCE, [], [alias("a", 20, total), alias("b", 21, part("Divide", total, total))])) == 1


def test_what_is_written_does_not_grow_with_the_projections() -> None:
    """The test reads one column twice in each of a hundred projections (C25)."""
    below, last = SOURCE, column("v", 2)
    for number in range(100, 200):
        below = part("Project", below, projectList=[alias(f"c{number}", number, part("Add", last, last))])
        last = column(f"c{number}", number)
    (meant,) = counted(below, [last], [])
    assert len(meant.exact) < 500


def test_of_a_join_only_the_columns_that_have_to_be_equal_say_what_its_state_means() -> None:
    """It does not matter which of the two is written first (C25)."""
    other = part("StreamingRelationV2", output=[column("k", 5), column("w", 6)])
    later = part("GreaterThan", column("v", 2), column("w", 6))
    condition = part("And", part("EqualTo", column("k", 5), column("k", 1)), later)
    (meant,) = meanings(json.dumps(part("Join", SOURCE, other, condition=condition)))[0]
    assert meant.exact == "k = k"
