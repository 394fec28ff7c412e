"""Which SELECTs over state are run, from the tree that Spark's parser makes of them."""

from __future__ import annotations

import pytest

from minflinkd.taskmanager.session.inspection.query_check import (
    FUNCTIONS,
    MOST_NODES,
    MOST_REFERENCES,
    Node,
    StateQueryRefused,
    check,
)

STATE = Node("UnresolvedRelation", "state")
LITERAL = Node("Literal")


def function(name: str, *arguments: Node, odd: str = "") -> Node:
    return Node("UnresolvedFunction", name, arguments, odd=odd)


def select(*columns: Node, source: Node = STATE) -> Node:
    return Node("Project", "", (source, *columns))


def test_columns_of_the_view_may_be_selected() -> None:
    """The view, its columns, and the functions on the list (E19c)."""
    column = Node("UnresolvedAttribute")
    check(select(Node("Alias", "", (function("SUM", column),)), Node("Cast", "", (column,))))
    with_ = Node("UnresolvedWith", "", (select(source=Node("UnresolvedRelation", "T")), select(column)), ("t",))
    check(with_)


@pytest.mark.parametrize(
    ("query", "why"),
    [
        (select(source=Node("UnresolvedRelation", "parquet./etc/x")), "reads parquet./etc/x"),
        (select(source=Node("UnresolvedRelation", "state", odd="options of a table")), "options of a table"),
        (select(source=Node("UnresolvedTableValuedFunction")), "TableValuedFunction"),
        (select(source=Node("Join", "", (STATE, STATE))), "Join"),
        (select(function("reflect", LITERAL)), "function reflect"),
        (select(function("concat", LITERAL)), "function concat"),
        (select(function("system.builtin.sum", LITERAL)), "function system.builtin.sum"),
        (select(function("sum", LITERAL, odd="an internal function")), "an internal function"),
        (select(Node("Alias", "", (function("sum", function("java_method")),))), "function java_method"),
        (select(Node("RLike", "", (LITERAL, LITERAL))), "RLike"),
        (select(Node("Like", "%a%b%c%d", (LITERAL, LITERAL))), "too many %"),
        (Node("CreateTableAsSelect", "", (select(),)), "CreateTableAsSelect"),
        (Node("UnresolvedWith", "", (select(),), ("t",), "WITH RECURSIVE"), "WITH RECURSIVE"),
        (select(function("explode", LITERAL), function("explode_outer", LITERAL)), "more than one explode"),
    ],
)
def test_everything_else_is_refused(query: Node, why: str) -> None:
    """What is not on a list is refused, wherever it is in the query, and the refusal names it (E19c)."""
    with pytest.raises(StateQueryRefused, match=why):
        check(query)


def test_a_query_is_bounded() -> None:
    """Neither its length nor how often it doubles the rows is up to the user (E19c)."""
    with pytest.raises(StateQueryRefused, match="too long"):
        check(select(*[LITERAL] * MOST_NODES))
    check(Node("Union", "", (STATE,) * MOST_REFERENCES))
    with pytest.raises(StateQueryRefused, match="5 times"):
        check(Node("Union", "", (STATE,) * (MOST_REFERENCES + 1)))


def test_no_function_makes_large_values_of_small_ones() -> None:
    """Nested a few times, they would fill the memory of a session that runs jobs, too (E19c)."""
    growing = {"repeat", "concat", "concat_ws", "space", "lpad", "rpad", "replace", "translate", "sequence", "array"}
    growing |= {"array_repeat", "struct", "named_struct", "map", "transform", "collect_list", "collect_set", "hex"}
    growing |= {"array_agg", "listagg", "string_agg", "to_json", "base64", "format_string", "printf", "flatten"}
    running = {"reflect", "java_method", "try_reflect", "rlike", "regexp", "regexp_replace", "regexp_extract", "split"}
    reaching = {"input_file_name", "current_user", "from_avro", "from_protobuf", "read_files", "range", "window"}
    assert not FUNCTIONS & (growing | running | reaching)
