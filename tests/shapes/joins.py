"""Joins of two streams."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tests.shapes.rows import SECOND, Context, Operator, Row

UNMATCHED = -7  # what a left join adds to the value of a row without a match


@dataclass(frozen=True)
class Join(Operator):
    """A join. `kind`: inner, left, semi. `on`: `id` or `k`, besides the time.

    `range`: seconds before and after; 0 is the same instant. `swapped`: an inner join has its second input first in
    FROM.
    """

    inputs: ClassVar[int] = 2
    stateful: ClassVar[bool] = True
    needs_time: ClassVar[bool] = True
    kind: str
    on: str
    range: int
    swapped: bool
    in_python: bool

    @property
    def name(self) -> str:
        return f"Join {self.kind}{' range' if self.range else ''}"

    @property
    def last_stateful(self) -> bool:  # type: ignore[override]
        return self.range > 0

    def sql(self, context: Context) -> str | None:
        if self.in_python:
            return None
        a, b = context.inputs
        condition = " AND ".join(self._conditions("a", "b"))
        if self.kind == "semi":
            return f"SELECT a.id, a.k, a.ts, a.v FROM {a} a LEFT SEMI JOIN {b} b ON {condition}"
        chosen = f"SELECT a.id, a.k, a.ts, a.v + coalesce(b.v, {UNMATCHED}) AS v FROM"
        if self.kind == "left":
            tables = f"{b} b RIGHT JOIN {a} a" if self.swapped else f"{a} a LEFT JOIN {b} b"
            return f"{chosen} {tables} ON {condition}"
        if self.swapped:
            return f"{chosen} {b} b JOIN {a} a ON {condition}"
        return f"{chosen} {a} a JOIN {b} b ON {condition}"

    def python(self, context: Context) -> str:
        a, b = (f"inputs[{given!r}]" for given in context.inputs)
        condition = " AND ".join(self._conditions("a", "b"))
        swapped = self.swapped and self.kind != "semi"  # there is no semi join from the right
        sides = ("right", "left") if swapped else ("left", "right")
        how = {"inner": "inner", "left": "right" if swapped else "left", "semi": "left_semi"}[self.kind]
        v = "'a.v'" if self.kind == "semi" else f"F.expr('a.v + coalesce(b.v, {UNMATCHED})').alias('v')"
        return f"""\
    left, right = {a}.alias("a"), {b}.alias("b")
    joined = {sides[0]}.join({sides[1]}, F.expr({condition!r}), {how!r})
    return joined.select("a.id", "a.k", "a.ts", {v})"""

    def _conditions(self, a: str, b: str) -> list[str]:
        keys = [f"{a}.{self.on} = {b}.{self.on}"] if self.on else []
        if not self.range:
            return [*keys, f"{a}.ts = {b}.ts"]
        step = f"INTERVAL {self.range} SECONDS"
        return [*keys, f"{b}.ts >= {a}.ts - {step}", f"{b}.ts <= {a}.ts + {step}"]

    def rows(self, *inputs: Sequence[Row]) -> list[Row]:
        found: list[Row] = []
        for a, matches in self._matched(*inputs):
            if self.kind == "semi":
                found += [a] if matches else []
            else:
                found += [a._replace(v=a.v + b.v) for b in matches]
                if self.kind == "left" and not matches:
                    found.append(a._replace(v=a.v + UNMATCHED))
        return found

    def unmatched(self, *inputs: Sequence[Row]) -> list[Row]:
        """Return the rows of the first input that match none of the second."""
        return [a for a, matches in self._matched(*inputs) if not matches]

    def _matched(self, *inputs: Sequence[Row]) -> Iterator[tuple[Row, list[Row]]]:
        left, right = inputs
        by_key: dict[object, list[Row]] = defaultdict(list)
        for r in right:
            by_key[getattr(r, self.on) if self.on else None].append(r)
        for a in left:
            near = by_key.get(getattr(a, self.on) if self.on else None, ())
            yield a, [b for b in near if abs(b.ts - a.ts) <= self.range * SECOND]
