"""What the state of each stateful operator means: its keys, and what is computed for each key (C25). Pure.

Spark compares only the types of state: it would go on with a sum as if it were a maximum. So each operator's keys and
aggregates are read from the analysed plan. Spark writes the plan as JSON: a list of nodes, parents first, with
expressions in the same form.

Each key and aggregate is written in three ways. `text` is close to what the user wrote. In `exact` each column is
replaced by the expression that a projection below computes it from, down to the columns of sources. So the names that
projections give do not matter. `form` is what has to stay the same. It leaves out what a new version may change:

    of a key         literals of the projections below, and the lengths of windows: a window's value has its own bounds
    of an aggregate  all but its function and the columns that it is computed from: `sum(v * 2)` has the form `sum(v)`

Filters, and join conditions other than equalities, do not say what state means, and are left out.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from minflinkd.rpc.snapshot import Meant, Role

_OPERATORS = {
    "Add": "+",
    "Subtract": "-",
    "Multiply": "*",
    "Divide": "/",
    "Remainder": "%",
    "EqualTo": "=",
    "EqualNullSafe": "<=>",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "And": "AND",
    "Or": "OR",
}
# These functions keep the same state, and compute different results from it.
_SAME_STATE = dict.fromkeys(("stddev_pop", "stddev_samp", "variance_pop", "variance_samp"), "variance")
_NOT_TOLD = {"class", "dataType", "timeZoneId", "zoneId", "evalMode", "evalContext", "name"}  # fields left out
_SETTINGS = re.compile(r"ansi|failOn|nullOn|deterministic|legacy", re.IGNORECASE)  # session settings, or irrelevant
_LONGEST = 400  # characters; a longer text is cut, and ends in its digest
_TAKING = {"GetStructField", "GetJsonObject", "GetMapValue", "ElementAt", "GetArrayItem"}  # take a part of a column
_AGGREGATE = "AggregateExpression"
_FLAT = {"SubqueryAlias", "View", "Filter", "EventTimeWatermark", "WithWindowDefinition", "ResolvedHint"}

Json = dict[str, Any]


@dataclass
class _Expression:
    fields: Json
    children: list[_Expression] = field(default_factory=list)

    @property
    def name(self) -> str:
        return str(self.fields["class"]).rpartition(".")[2]

    @property
    def id(self) -> str:
        number = self.fields.get("exprId") or {}
        return f"{number.get('id')}" if number else ""

    def below(self) -> Iterator[_Expression]:
        yield self
        for child in self.children:
            yield from child.below()


@dataclass
class _Node:
    fields: Json
    children: list[_Node] = field(default_factory=list)

    @property
    def name(self) -> str:
        return str(self.fields["class"]).rpartition(".")[2]

    def below(self) -> Iterator[_Node]:
        yield self
        for child in self.children:
            yield from child.below()

    def expressions(self, key: str) -> list[_Expression]:
        return [_expression(written) for written in self.fields.get(key) or []]


def meanings(plan: str) -> dict[int, tuple[Meant, ...]]:
    """Return the meanings by the place of a node in the plan, counted from 0, parents first. `plan`: as JSON.

    Nodes without a meaning are left out. Raises ValueError, KeyError, TypeError, IndexError, AttributeError or
    RecursionError if Spark writes its plans in another way.
    """
    root = _tree(json.loads(plan), _Node, lambda node: dict(node))
    reading = _Reading(root)
    found = {place: tuple(reading.of(node)) for place, node in enumerate(root.below())}
    return {place: meant for place, meant in found.items() if meant}


def _once(found: Iterable[_Expression]) -> list[_Expression]:
    """Drop repeated expressions over the same columns, as Spark does; a column computed twice is two columns to it."""
    same: dict[str, _Expression] = {}
    for tree in found:
        same.setdefault(_written(tree, lambda column: f"{column.fields['name']}#{column.id}", literals=True), tree)
    return list(same.values())


def _tree(written: list[Json], make: Any, fields: Callable[[Json], Json]) -> Any:
    rest = iter(written)

    def one() -> Any:
        node = make(fields(next(rest)))
        node.children = [one() for _ in range(int(node.fields["num-children"]))]
        return node

    return one()


def _expression(written: list[Json]) -> _Expression:
    found: _Expression = _tree(written, _Expression, lambda node: node)
    return found


def _all_expressions(value: Any) -> Iterator[_Expression]:
    """Yield all expressions in the value of a node's field, whatever its form."""
    if isinstance(value, list):
        if value and isinstance(value[0], dict) and "class" in value[0] and "num-children" in value[0]:
            yield _expression(value)
        else:
            for entry in value:
                yield from _all_expressions(entry)


class _Reading:
    def __init__(self, root: _Node) -> None:
        self._definitions: dict[str, _Expression] = {}
        self._forms: dict[tuple[str, str], str] = {}
        self._columns: dict[str, frozenset[str]] = {}
        self._open: set[str] = set()
        for node in root.below():
            self._define(node)

    def _define(self, node: _Node) -> None:
        for value in node.fields.values():
            for tree in _all_expressions(value):
                for part in tree.below():
                    if part.name == "Alias":
                        self._definitions[part.id] = part.children[0]
        if node.name == "Generate" and isinstance(node.fields.get("generator"), list):
            generator = _expression(node.fields["generator"])
            for column in node.expressions("generatorOutput"):
                self._definitions.setdefault(column.id, generator)
        if node.name == "Expand" and node.fields.get("projections"):
            columns, first = node.expressions("output"), node.fields["projections"][0]
            for column, written in zip(columns, first, strict=False):
                given = _expression(written)
                if given.id != column.id:
                    self._definitions.setdefault(column.id, given)

    # --- operators -----------------------------------------------------------------------------------------------

    def of(self, node: _Node) -> list[Meant]:
        name = node.name
        if name == "Aggregate":
            keys = _once(key for key in node.expressions("groupingExpressions") if self._of_columns(key))
            return [*map(self._key, keys), *self._aggregates(node)]
        if name.startswith("Deduplicate"):
            return [self._key(key) for key in node.expressions("keys")]
        if name == "Distinct":
            return [self._key(column) for column in _output(node.children[0])]
        if name.startswith("FlatMapGroups"):
            return [self._key(key) for key in node.expressions("groupingAttributes")]
        if name.startswith("TransformWithState"):
            return [self._key(key) for key in _output(node.children[0])[: int(node.fields["groupingAttributesLen"])]]
        return self._sides(node) if name == "Join" else []

    def _key(self, key: _Expression) -> Meant:
        key = key.children[0] if key.name == "Alias" else key
        return Meant(role=Role.KEY, text=_short(_text(key)), exact=self._exact(key), form=self._form(key))

    def _aggregates(self, node: _Node) -> Iterator[Meant]:
        trees = node.expressions("aggregateExpressions")
        for part in _once(part for tree in trees for part in tree.below() if part.name == _AGGREGATE):
            form = _short(self._aggregate_form(part))
            yield Meant(role=Role.AGGREGATE, text=_short(_text(part)), exact=self._exact(part), form=form)

    def _aggregate_form(self, part: _Expression) -> str:
        function = part.children[0]
        name = _function(function)
        columns: set[str] = set().union(*map(self._of_columns, function.children))
        distinct = "DISTINCT " if part.fields.get("isDistinct") else ""
        return f"{_SAME_STATE.get(name, name)}({distinct}{', '.join([*sorted(columns), *_told(function)])})"

    def _sides(self, node: _Node) -> list[Meant]:
        """Return the equalities of a join's condition in their order: Spark finds rows by their columns' values."""
        if not node.fields.get("condition"):
            return []
        left, right = (_ids(child) for child in node.children)
        found = []
        for equality in _conjuncts(_expression(node.fields["condition"])):
            if not equality.name.startswith("Equal"):
                continue
            one, other = equality.children
            if _reads(one) <= right and _reads(other) <= left:
                one, other = other, one
            if _reads(one) <= left and _reads(other) <= right and _reads(one) and _reads(other):
                ways = (_text, self._exact, self._form)
                text, exact, form = (_short(f"{way(one)} = {way(other)}") for way in ways)
                found.append(Meant(role=Role.KEY, text=text, exact=exact, form=form))
        return found

    # --- expressions ---------------------------------------------------------------------------------------------

    def _exact(self, tree: _Expression) -> str:
        return _short(_written(tree, lambda column: self._resolved(column, "exact"), literals=True))

    def _form(self, tree: _Expression, *, literals: bool = True) -> str:
        return _short(_written(tree, lambda column: self._resolved(column, "form"), literals=literals))

    def _resolved(self, column: _Expression, way: str) -> str:
        key = (column.id, way)
        if (known := self._forms.get(key)) is not None:
            return known
        definition = self._definitions.get(column.id)
        if definition is None or column.id in self._open:  # a source's column, or one that is in its own definition
            return str(column.fields["name"])
        self._open.add(column.id)
        try:
            if way == "exact":
                told = self._exact(definition)
            elif _is_window(definition):
                told = f"{_window(column)}({', '.join(sorted(self._of_columns(definition)))})"
            else:
                told = self._form(definition, literals=False)
        finally:
            self._open.discard(column.id)
        self._forms[key] = told
        return told

    def _of_columns(self, tree: _Expression) -> frozenset[str]:
        """Return the source columns that it is computed from. The result of an aggregate below counts as a column."""
        if tree.name == _AGGREGATE:
            return frozenset([self._aggregate_form(tree)])
        if tree.name == "AttributeReference":
            if tree.id not in self._columns:
                self._columns[tree.id] = frozenset([str(tree.fields["name"])])  # first, in case its definition has it
                if (definition := self._definitions.get(tree.id)) is not None:
                    self._columns[tree.id] = self._of_columns(definition)
            return self._columns[tree.id]
        if tree.name in _TAKING:
            return frozenset(f"{column}.{_taken(tree)}" for column in self._of_columns(tree.children[0]))
        return frozenset[str]().union(*map(self._of_columns, tree.children))


def _output(node: _Node) -> list[_Expression]:
    """Return the columns of a node, if it names them; otherwise none."""
    while node.name in _FLAT and node.children:
        node = node.children[0]
    key = {"Project": "projectList", "Aggregate": "aggregateExpressions"}.get(node.name, "output")
    return node.expressions(key) if not node.children or key != "output" else []


def _taken(tree: _Expression) -> str:
    return _text(tree.children[1]) if len(tree.children) > 1 else str(tree.fields.get("name"))


def _ids(node: _Node) -> set[str]:
    """Return the ids of all columns in a node and below it."""
    trees = (tree for part in node.below() for value in part.fields.values() for tree in _all_expressions(value))
    return {part.id for tree in trees for part in tree.below() if part.id}


def _reads(tree: _Expression) -> set[str]:
    return {part.id for part in tree.below() if part.name == "AttributeReference"}


def _conjuncts(tree: _Expression) -> Iterator[_Expression]:
    if tree.name == "And":
        for child in tree.children:
            yield from _conjuncts(child)
    else:
        yield tree


def _is_window(definition: _Expression) -> bool:
    if definition.name != "CreateNamedStruct":
        return False
    return any(part.name == "PreciseTimestampConversion" for part in definition.below())


def _window(column: _Expression) -> str:
    return "session_window" if str(column.fields["name"]).startswith("session") else "window"


def _text(tree: _Expression) -> str:
    return _written(tree, lambda column: str(column.fields["name"]), literals=True)


def _written(tree: _Expression, column: Callable[[_Expression], str], *, literals: bool) -> str:
    name = tree.name
    if name == "AttributeReference":
        return column(tree)
    if name == "Literal":
        return _literal(tree) if literals else "?"
    parts = [_written(child, column, literals=literals) for child in tree.children]
    if name == "Alias":
        return parts[0]
    if name == _AGGREGATE:
        return parts[0] + (f" FILTER (WHERE {parts[1]})" if len(parts) > 1 else "")
    if name == "Cast":
        return f"CAST({parts[0]} AS {_type(tree.fields['dataType'])})"
    if name == "GetStructField":
        return f"{parts[0]}.{tree.fields.get('name') or tree.fields.get('ordinal')}"
    if name == "Count" and parts in (["1"], ["?"]):
        return "count(*)"
    if len(parts) == 2 and name in _OPERATORS:
        return f"({parts[0]} {_OPERATORS[name]} {parts[1]})"
    return f"{_function(tree)}({', '.join([*parts, *_told(tree)])})"


def _function(tree: _Expression) -> str:
    if tree.name == "PythonUDF":
        return str(tree.fields.get("name"))
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", tree.name).lower()


def _told(tree: _Expression) -> list[str]:
    """Return what an expression has besides children, such as `ignoreNulls`; without false values and settings."""
    return [
        f"{key}: {value}" if isinstance(value, str) else key
        for key, value in sorted(tree.fields.items())
        if key not in _NOT_TOLD and not _SETTINGS.search(key) and (value is True or isinstance(value, str))
    ]


def _literal(tree: _Expression) -> str:
    value = tree.fields.get("value")
    return f"'{value}'" if tree.fields.get("dataType") == "string" else str(value)


def _type(written: Any) -> str:
    return written.upper() if isinstance(written, str) else json.dumps(written, sort_keys=True)


def _short(text: str) -> str:
    """Limit the length: when stacked projections read a column many times each, the text would grow exponentially."""
    if len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST - 70]}...{hashlib.sha256(text.encode()).hexdigest()[:16]}"
