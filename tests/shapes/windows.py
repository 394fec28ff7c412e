"""Aggregates by event time, and deduplication."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tests.shapes.rows import SECOND, Context, Operator, Row


@dataclass(frozen=True)
class Window(Operator):
    """Count and sum of each window, with the window's last microsecond as event time. `slide` 0 is tumbling."""

    stateful: ClassVar[bool] = True
    needs_time: ClassVar[bool] = True
    size: int  # seconds
    slide: int
    by_key: bool
    least: int  # a window with fewer rows is dropped
    in_python: bool

    @property
    def name(self) -> str:
        return "Window sliding" if self.slide else "Window tumbling"

    def sql(self, context: Context) -> str | None:
        if self.in_python:
            return None
        key = "k" if self.by_key else "'all'"
        having = f"HAVING count(*) >= {self.least}" if self.least > 1 else ""
        return f"""
            SELECT n AS id, k, window_time(w) AS ts, v FROM (
                SELECT window(ts, {self._lengths}) AS w, {key} AS k, count(*) AS n, sum(v) AS v
                FROM {context.inputs[0]} GROUP BY 1, 2 {having}
            )
        """

    def python(self, context: Context) -> str:
        key = ', "k"' if self.by_key else ""
        kept = f'.where("n >= {self.least}")' if self.least > 1 else ""
        return f"""\
    grouped = inputs[{context.inputs[0]!r}].groupBy(F.window("ts", {self._lengths}){key})
    counted = grouped.agg(F.count("*").alias("n"), F.sum("v").alias("v")){kept}
    key = F.col("k") if {self.by_key} else F.lit("all").alias("k")
    return counted.select(F.col("n").alias("id"), key, F.window_time("window").alias("ts"), "v")"""

    @property
    def _lengths(self) -> str:
        slide = f", '{self.slide} seconds'" if self.slide else ""
        return f"'{self.size} seconds'{slide}"

    def rows(self, *inputs: Sequence[Row]) -> list[Row]:
        size, slide = self.size * SECOND, (self.slide or self.size) * SECOND
        groups: dict[tuple[int, str], list[int]] = defaultdict(list)
        for r in inputs[0]:
            start = r.ts - r.ts % slide
            while start > r.ts - size:
                groups[start + size - 1, r.k if self.by_key else "all"].append(r.v)
                start -= slide
        return [Row(len(vs), k, ts, sum(vs)) for (ts, k), vs in groups.items() if len(vs) >= self.least]


@dataclass(frozen=True)
class Session(Operator):
    """A session window whose real gap is half a second longer than `gap`.

    To a batch, two rows exactly one gap apart are one session. In a stream they are two, if the watermark reaches the
    end of the first session before the second row is read. The extra half second avoids rows exactly a gap apart.
    """

    stateful: ClassVar[bool] = True
    needs_time: ClassVar[bool] = True
    gap: int  # seconds

    def sql(self, context: Context) -> str:
        return f"""
            SELECT n AS id, k, window_time(w) AS ts, v FROM (
                SELECT session_window(ts, '{self.gap} seconds 500 milliseconds') AS w, k, count(*) AS n, sum(v) AS v
                FROM {context.inputs[0]} GROUP BY 1, 2
            )
        """

    def rows(self, *inputs: Sequence[Row]) -> list[Row]:
        found: list[Row] = []
        for k in sorted({r.k for r in inputs[0]}):
            session: list[Row] = []
            for r in sorted((r for r in inputs[0] if r.k == k), key=lambda r: r.ts):
                if session and r.ts > session[-1].ts + self._length:
                    found.append(self._closed(session))
                    session = []
                session.append(r)
            found.append(self._closed(session))
        return found

    @property
    def _length(self) -> int:
        return self.gap * SECOND + SECOND // 2

    def _closed(self, session: list[Row]) -> Row:
        end = session[-1].ts + self._length
        return Row(len(session), session[0].k, end - 1, sum(r.v for r in session))


@dataclass(frozen=True)
class Greatest(Operator):
    """The greatest count and sum of each instant; after a window, of each window, as in Nexmark's query 5."""

    stateful: ClassVar[bool] = True
    needs_time: ClassVar[bool] = True

    def sql(self, context: Context) -> str:
        return f"SELECT max(id) AS id, 'top' AS k, ts, max(v) AS v FROM {context.inputs[0]} GROUP BY ts"

    def rows(self, *inputs: Sequence[Row]) -> list[Row]:
        groups = _by_time(inputs[0])
        return [Row(max(r.id for r in rs), "top", ts, max(r.v for r in rs)) for ts, rs in groups.items()]


@dataclass(frozen=True)
class Deduplicate(Operator):
    """Deduplication by all columns, so that the result does not show which of the duplicates is kept."""

    stateful: ClassVar[bool] = True
    needs_time: ClassVar[bool] = True
    kind: str  # duplicates, within, distinct

    @property
    def name(self) -> str:
        return f"Deduplicate {self.kind}"

    def sql(self, context: Context) -> str | None:
        return f"SELECT DISTINCT id, k, ts, v FROM {context.inputs[0]}" if self.kind == "distinct" else None

    def python(self, context: Context) -> str:
        method = "dropDuplicates" if self.kind == "duplicates" else "dropDuplicatesWithinWatermark"
        return f"    return inputs[{context.inputs[0]!r}].{method}(['id', 'k', 'ts', 'v'])"

    def rows(self, *inputs: Sequence[Row]) -> list[Row]:
        return sorted(set(inputs[0]))


def _by_time(rows: Iterable[Row]) -> dict[int, list[Row]]:
    groups: dict[int, list[Row]] = defaultdict(list)
    for r in rows:
        groups[r.ts].append(r)
    return groups
