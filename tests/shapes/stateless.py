"""Vertices without state: projections, filters, explode, unions, functions in Python workers, joins with a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tests.shapes.rows import Context, Operator, Row, pmod

NEUTRAL = 10**15  # no value is as large
WEIGHTS = {"k0": 1000, "k1": 2000}  # the static table: it has two of the keys


@dataclass(frozen=True)
class Project(Operator):
    factor: int
    summand: int

    def sql(self, context: Context) -> str:
        return f"SELECT id, k, ts, v * {self.factor} + {self.summand} AS v FROM {context.inputs[0]}"

    def rows(self, *inputs: Sequence[Row]) -> list[Row]:
        return [r._replace(v=r.v * self.factor + self.summand) for r in inputs[0]]


@dataclass(frozen=True)
class Rekey(Operator):
    """Another key, made of two columns."""

    parts: int

    def sql(self, context: Context) -> str:
        return f"""
            WITH keyed AS (
                SELECT id, concat(upper(k), '-', pmod(id, {self.parts})) AS k, ts, v FROM {context.inputs[0]}
            )
            SELECT id, lower(k) AS k, ts, CASE WHEN v > 50 THEN v ELSE v + 1 END AS v FROM keyed
        """

    def rows(self, *inputs: Sequence[Row]) -> list[Row]:
        return [
            r._replace(k=f"{r.k}-{pmod(r.id, self.parts)}".lower(), v=r.v if r.v > 50 else r.v + 1) for r in inputs[0]
        ]


@dataclass(frozen=True)
class Filter(Operator):
    """A filter. Its second literal differs between versions of a job, but drops nothing in any of them."""

    divisor: int
    rest: int

    def sql(self, context: Context) -> str:
        return f"SELECT * FROM {context.inputs[0]} WHERE {self._kept(context)}"

    def _kept(self, context: Context) -> str:
        return f"pmod(v, {self.divisor}) <> {self.rest} AND v < {NEUTRAL + context.version}"

    def rows(self, *inputs: Sequence[Row]) -> list[Row]:
        return [r for r in inputs[0] if pmod(r.v, self.divisor) != self.rest]


@dataclass(frozen=True)
class Rejecting(Filter):
    """A filter whose other rows are bad records, which go to a sink of their own. `sink`: its format."""

    sink: str = "json"

    def sql(self, context: Context) -> str:
        return f"SELECT *, IF({self._kept(context)}, NULL, 'rejected') AS _error FROM {context.inputs[0]}"

    def vertex(self, context: Context) -> dict[str, Any]:
        return super().vertex(context) | {"on-bad-record": {"to": bad_records(context.id)}}

    def rejected(self, rows: Sequence[Row]) -> list[Row]:
        return [r for r in rows if pmod(r.v, self.divisor) == self.rest]


def bad_records(vertex: str) -> str:
    """Return the sink of a vertex's bad records."""
    return f"bad_of_{vertex}"


@dataclass(frozen=True)
class Explode(Operator):
    """Each row up to `most` times."""

    most: int
    lateral: bool

    def sql(self, context: Context) -> str:
        series, given = f"sequence(0, pmod(v, {self.most}))", context.inputs[0]
        if self.lateral:
            return f"SELECT id, k, ts, v * 10 + e AS v FROM {given} LATERAL VIEW explode({series}) t AS e"
        return f"SELECT id, k, ts, v * 10 + e AS v FROM (SELECT *, explode({series}) AS e FROM {given})"

    def rows(self, *inputs: Sequence[Row]) -> list[Row]:
        return [r._replace(v=r.v * 10 + e) for r in inputs[0] for e in range(pmod(r.v, self.most) + 1)]


@dataclass(frozen=True)
class Union(Operator):
    inputs: ClassVar[int] = 2
    in_python: bool

    def sql(self, context: Context) -> str | None:
        if self.in_python:
            return None
        return " UNION ALL ".join(f"SELECT id, k, ts, v FROM {given}" for given in context.inputs)

    def python(self, context: Context) -> str:
        first, *others = (f"inputs[{given!r}]" for given in context.inputs)
        return "    return " + first + "".join(f".unionByName({other})" for other in others)

    def rows(self, *inputs: Sequence[Row]) -> list[Row]:
        return [r for given in inputs for r in given]


@dataclass(frozen=True)
class Doubled(Operator):
    """One vertex, read twice in one query."""

    factor: int

    def sql(self, context: Context) -> str:
        (given,) = context.inputs
        return f"SELECT * FROM {given} UNION ALL SELECT id, k, ts, v * {self.factor} AS v FROM {given} WHERE v > 30"

    def rows(self, *inputs: Sequence[Row]) -> list[Row]:
        return [*inputs[0], *(r._replace(v=r.v * self.factor) for r in inputs[0] if r.v > 30)]


@dataclass(frozen=True)
class Function(Operator):
    """A pandas or an Arrow function of one column."""

    kind: str  # pandas, arrow
    summand: int

    @property
    def name(self) -> str:
        return f"Function {self.kind}"

    def python(self, context: Context) -> str:
        if self.kind == "pandas":
            body = f"    def added(v: pd.Series) -> pd.Series:\n        return v + {self.summand}\n"
            call = "pandas_udf(added, 'bigint')"
        else:
            body = f"    def added(v: pa.Array) -> pa.Array:\n        return pc.add(v, {self.summand})\n"
            call = "arrow_udf(added, 'bigint')"
        return f"{body}    return inputs[{context.inputs[0]!r}].withColumn('v', {call}('v'))"

    def rows(self, *inputs: Sequence[Row]) -> list[Row]:
        return [r._replace(v=r.v + self.summand) for r in inputs[0]]


@dataclass(frozen=True)
class MapInto(Operator):
    """Whole batches go through Python. The output has no event time."""

    kind: str  # pandas, arrow
    divisor: int

    @property
    def name(self) -> str:
        return f"MapInto {self.kind}"

    def keeps_time(self) -> bool:
        return False

    def python(self, context: Context) -> str:
        given = f"inputs[{context.inputs[0]!r}]"
        if self.kind == "pandas":
            kept = f"frame[frame.v % {self.divisor} != 0]"
            call = f"{given}.mapInPandas(kept, {given}.schema)"
        else:
            kept = f"frame.filter(pa.array([v.as_py() % {self.divisor} != 0 for v in frame.column('v')], pa.bool_()))"
            call = f"{given}.mapInArrow(kept, {given}.schema)"
        return f"    def kept(frames):\n        for frame in frames:\n            yield {kept}\n    return {call}"

    def rows(self, *inputs: Sequence[Row]) -> list[Row]:
        return [r for r in inputs[0] if r.v % self.divisor]


@dataclass(frozen=True)
class StaticJoin(Operator):
    """A join with a table that is not a stream, on either side of the join."""

    kind: str  # inner, left, table-first
    in_python: bool

    @property
    def name(self) -> str:
        return f"StaticJoin {self.kind}"

    def sql(self, context: Context) -> str | None:
        if self.in_python:
            return None
        (given,) = context.inputs
        table = "(SELECT k AS word, w FROM json.`${table}`)"
        chosen = "SELECT a.id, a.k, a.ts, a.v + coalesce(b.w, 0) AS v FROM"
        if self.kind == "table-first":
            return f"{chosen} {table} b JOIN {given} a ON a.k = b.word"
        return f"{chosen} {given} a {self.kind.upper()} JOIN {table} b ON a.k = b.word"

    def python(self, context: Context) -> str:
        how = "left" if self.kind == "left" else "inner"
        sides = ("table", "rows") if self.kind == "table-first" else ("rows", "table")
        return f"""\
    rows = inputs[{context.inputs[0]!r}]
    table = rows.sparkSession.read.json(params["table"]).withColumnRenamed("k", "word")
    joined = {sides[0]}.join({sides[1]}, rows.k == table.word, {how!r})
    return joined.select(rows.id, rows.k, rows.ts, (rows.v + F.coalesce(table.w, F.lit(0))).alias("v"))"""

    def rows(self, *inputs: Sequence[Row]) -> list[Row]:
        kept = (r for r in inputs[0] if r.k in WEIGHTS or self.kind == "left")
        return [r._replace(v=r.v + WEIGHTS.get(r.k, 0)) for r in kept]


@dataclass(frozen=True)
class Tripping(Operator):
    """A function that raises once in the life of the job, at a row of a later file."""

    at: int  # id

    def python(self, context: Context) -> str:
        return f"""\
    marker = params["marker"]

    def tripping(v: pd.Series, id: pd.Series) -> pd.Series:
        if (id >= {self.at}).any() and not os.path.exists(marker):
            open(marker, "w").close()
            raise RuntimeError("raised once, on purpose")
        return v
    return inputs[{context.inputs[0]!r}].withColumn("v", pandas_udf(tripping, "bigint")("v", "id"))"""

    def rows(self, *inputs: Sequence[Row]) -> list[Row]:
        return list(inputs[0])
