"""Which SELECTs over state are run. Pure: it judges the tree that Spark's parser has made of the text (E19c).

The session that runs the query also runs jobs, as the user of the TaskManager. So a query must not reach files, tables,
Java or the environment, and must neither fill the memory nor be impossible to stop. What is not on a list here is
refused, whatever later versions of Spark add.

- It reads one view. Joins are refused: nested ones would run on for long without looking whether they are cancelled.
- Functions that make large values of small ones are missing: `repeat`, `concat`, `array`, `transform`, `collect_list`
  and the like. Nested a few times, they would end the session with OutOfMemoryError.
- So are regular expressions, because some never end. LIKE is one of those, but for patterns with few `%`.
- Windows with a name (`WINDOW w AS ...`) are refused, since Spark's tree does not show what is in them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from minflinkd.runtime.errors import Consequence, MinflinkError

VIEW = "state"
LONGEST_QUERY = 4000  # characters
MOST_NODES = 400
MOST_REFERENCES = 4  # to the view, and to queries that WITH names: each may double the rows
MOST_WILDCARDS = 3

_PLANS = frozenset(
    {
        *("Project", "Filter", "Aggregate", "Sort", "Distinct", "GlobalLimit", "LocalLimit", "Offset", "Union"),
        *("Intersect", "Except", "SubqueryAlias", "UnresolvedSubqueryColumnAliases", "UnresolvedHaving"),
        *("UnresolvedRelation", "UnresolvedWith", "OneRowRelation", "Generate"),
    }
)
_EXPRESSIONS = frozenset(
    {
        *("UnresolvedAttribute", "UnresolvedStar", "UnresolvedFunction", "UnresolvedAlias", "Alias", "Literal"),
        *("UnresolvedExtractValue", "UnresolvedGenerator", "UnresolvedOrdinal", "Cast", "SortOrder", "MultiAlias"),
        *("EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual"),
        *("And", "Or", "Not", "In", "IsNull", "IsNotNull", "Between", "Like", "CaseWhen", "ScalarSubquery"),
        *("Add", "Subtract", "Multiply", "Divide", "IntegralDivide", "Remainder", "UnaryMinus", "UnaryPositive"),
        *("WindowExpression", "WindowSpecDefinition", "SpecifiedWindowFrame", "UnspecifiedFrame"),
        *("CurrentRow", "UnboundedPreceding", "UnboundedFollowing"),
    }
)
FUNCTIONS = frozenset(
    {
        # aggregates
        *("count", "count_if", "sum", "min", "max", "avg", "mean", "min_by", "max_by", "first", "last", "any_value"),
        *("stddev", "stddev_pop", "stddev_samp", "variance", "var_pop", "var_samp", "corr", "bool_and", "bool_or"),
        *("approx_count_distinct", "approx_percentile", "percentile_approx", "every", "some", "grouping"),
        # windows over rows
        *("row_number", "rank", "dense_rank", "percent_rank", "ntile", "lag", "lead", "cume_dist"),
        # conditions
        *("if", "ifnull", "nvl", "nvl2", "nullif", "coalesce", "greatest", "least", "isnull", "isnotnull", "isnan"),
        # numbers
        *("abs", "ceil", "ceiling", "floor", "round", "bround", "sign", "sqrt", "pow", "power", "exp", "ln", "log"),
        *("log2", "log10", "mod", "pmod", "try_add", "try_divide", "try_multiply", "try_subtract"),
        # texts
        *("length", "len", "char_length", "octet_length", "bit_length", "lower", "upper", "trim", "ltrim", "rtrim"),
        *("substring", "substr", "left", "right", "instr", "locate", "position", "contains", "startswith", "endswith"),
        *("ascii", "reverse", "get_json_object", "try_cast", "md5", "sha2", "crc32", "hash", "xxhash64"),
        # times
        *("date_trunc", "trunc", "date_format", "to_date", "to_timestamp", "try_to_timestamp", "from_unixtime"),
        *("unix_timestamp", "unix_millis", "unix_seconds", "unix_micros", "timestamp_millis", "timestamp_seconds"),
        *("timestamp_micros", "year", "month", "day", "dayofmonth", "dayofweek", "weekday", "hour", "minute"),
        *("second", "extract", "date_part", "datediff", "date_diff", "timestampdiff", "date_add", "date_sub"),
        *("current_timestamp", "now", "current_date"),
        # arrays, maps and structs
        *("size", "cardinality", "element_at", "try_element_at", "get", "array_contains", "array_min", "array_max"),
        *("array_position", "map_keys", "map_values", "map_contains_key", "slice", "explode", "explode_outer"),
        *("posexplode", "posexplode_outer", "typeof"),
    }
)
_GENERATORS = frozenset({"explode", "explode_outer", "posexplode", "posexplode_outer"})


class StateQueryRefused(MinflinkError):
    """A SELECT over state that is not run: it is none, reads something else, or is not one of those known to end."""

    code = "state-query-refused"
    consequence = Consequence.REFUSED


@dataclass(frozen=True)
class Node:
    """One node of the parsed query.

    `kind`: Spark's simple class name. `name`: of a function or relation, its parts joined by dots; the pattern of LIKE;
    the name of a query in WITH. `odd`: what it carries besides that is not allowed, in words.
    """

    kind: str
    name: str = ""
    below: tuple[Node, ...] = ()
    names: tuple[str, ...] = ()  # that WITH gives
    odd: str = ""


def check(root: Node) -> None:
    """Raises StateQueryRefused unless the query only reads the view, and can be run beside jobs."""
    nodes = list(_all(root))
    if len(nodes) > MOST_NODES:
        raise StateQueryRefused("the query is too long", hint=f"at most {MOST_NODES} operations, columns and values")
    named = {name.lower() for node in nodes for name in node.names} | {VIEW}
    references = generators = 0
    for node in nodes:
        _check(node, named)
        references += node.kind == "UnresolvedRelation"
        generators += node.kind in ("UnresolvedFunction", "UnresolvedGenerator") and node.name.lower() in _GENERATORS
    if references > MOST_REFERENCES:
        raise StateQueryRefused(
            f"the query reads {VIEW} and its own subqueries {references} times", hint=f"at most {MOST_REFERENCES}"
        )
    if generators > 1:
        raise StateQueryRefused("the query has more than one explode", hint="one can be in a query")


def _all(node: Node) -> Iterator[Node]:
    waiting = [node]
    while waiting:
        yield (node := waiting.pop())
        waiting.extend(node.below)


def _check(node: Node, named: set[str]) -> None:
    if node.kind not in _PLANS | _EXPRESSIONS:
        raise StateQueryRefused(
            f"the query has {_word(node.kind)}, which is not allowed", hint="docs/state.md lists what a query may have"
        )
    if node.odd:
        raise StateQueryRefused(f"the query has {node.odd}, which is not allowed")
    if node.kind == "UnresolvedRelation" and node.name.lower() not in named:
        raise StateQueryRefused(f"the query reads {node.name[:200]}", hint=f"FROM {VIEW}: nothing else can be read")
    if node.kind in ("UnresolvedFunction", "UnresolvedGenerator") and node.name.lower() not in FUNCTIONS:
        raise StateQueryRefused(
            f"the function {node.name[:200]} is not allowed here", hint="docs/state.md lists those that are"
        )
    if node.kind == "Like" and node.name.count("%") > MOST_WILDCARDS:
        raise StateQueryRefused("a pattern of LIKE has too many %", hint=f"at most {MOST_WILDCARDS}")


def _word(kind: str) -> str:
    return kind.removeprefix("Unresolved") or kind
