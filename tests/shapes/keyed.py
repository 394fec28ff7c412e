"""State that user code keeps by key: applyInPandasWithState, and transformWithState by pandas frames and by rows.

The order of a key's rows is not determined, so nothing that is computed here depends on it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tests.shapes.rows import EPOCH, SECOND, Context, Operator, Row

BUCKET = 60  # seconds


@dataclass(frozen=True)
class Numbered(Operator):
    """A row for each row of a key: the first has number 1, the next 2, and so on; without event time."""

    stateful: ClassVar[bool] = True
    last_stateful: ClassVar[bool] = True
    api: str  # applyInPandasWithState, transformWithStateInPandas, transformWithState
    state: str  # of transformWithState: value, list, map

    @property
    def name(self) -> str:
        return f"Numbered {self.api}"

    def keeps_time(self) -> bool:
        return False

    def python(self, context: Context) -> str:
        given = f"inputs[{context.inputs[0]!r}].groupBy('k')"
        if self.api == "applyInPandasWithState":
            return f"""\
    def numbered(key, frames, state):
        (n,) = state.get if state.exists else (0,)
        for frame in frames:
            numbers = list(range(n + 1, n + 1 + len(frame)))
            n += len(frame)
            yield pd.DataFrame({{"id": numbers, "k": key[0], "ts": pd.Timestamp({EPOCH}, unit="s"), "v": numbers}})
        state.update((n,))
    return {given}.applyInPandasWithState(numbered, SCHEMA, "n BIGINT", "append", "NoTimeout")"""
        return f"""\
    return {given}.{self.api}(
        Numbered{self.state.capitalize()}{"Frames" if self.api.endswith("InPandas") else "Rows"}(),
        outputStructType=SCHEMA, outputMode="append", timeMode="none",
    )"""

    def rows(self, *inputs: Sequence[Row]) -> list[Row]:
        counts = Counter(r.k for r in inputs[0])
        return [Row(n, k, EPOCH * SECOND, n) for k, count in counts.items() for n in range(1, count + 1)]


@dataclass(frozen=True)
class Buckets(Operator):
    """Count and sum of each key and minute, emitted by a timeout or a timer when the minute is over."""

    stateful: ClassVar[bool] = True
    last_stateful: ClassVar[bool] = True
    needs_time: ClassVar[bool] = True
    api: str  # applyInPandasWithState, transformWithStateInPandas, transformWithState

    @property
    def name(self) -> str:
        return f"Buckets {self.api}"

    def keeps_time(self) -> bool:
        return False

    def python(self, context: Context) -> str:
        bucket = f'F.expr("cast(unix_seconds(ts) div {BUCKET} * {BUCKET} + {BUCKET} AS BIGINT)")'
        given = f"inputs[{context.inputs[0]!r}].withColumn('bucket', {bucket}).groupBy('k', 'bucket')"
        if self.api == "applyInPandasWithState":
            return f"""\
    def buckets(key, frames, state):
        if state.hasTimedOut:
            n, total = state.get
            state.remove()
            yield pd.DataFrame({{"id": [n], "k": key[0], "ts": pd.Timestamp(key[1], unit="s"), "v": [total]}})
            return
        n, total = state.get if state.exists else (0, 0)
        for frame in frames:
            n, total = n + len(frame), total + int(frame.v.sum())
        state.update((n, total))
        state.setTimeoutTimestamp(int(key[1]) * 1000)
    grouped = {given}
    return grouped.applyInPandasWithState(buckets, SCHEMA, "n BIGINT, total BIGINT", "append", "EventTimeTimeout")"""
        return f"""\
    return {given}.{self.api}(
        Buckets{"Frames" if self.api.endswith("InPandas") else "Rows"}(),
        outputStructType=SCHEMA, outputMode="append", timeMode="eventTime",
    )"""

    def rows(self, *inputs: Sequence[Row]) -> list[Row]:
        groups: dict[tuple[str, int], list[int]] = defaultdict(list)
        for r in inputs[0]:
            groups[r.k, r.ts // SECOND // BUCKET * BUCKET + BUCKET].append(r.v)
        return [Row(len(vs), k, end * SECOND, sum(vs)) for (k, end), vs in groups.items()]


@dataclass(frozen=True)
class Totals(Operator):
    """An aggregate that changes with every row. A sink sees each change; only the last one is compared.

    Half of them, by the name of their input, take the largest of texts, for which Spark sorts instead of hashing.
    """

    stateful: ClassVar[bool] = True
    last_stateful: ClassVar[bool] = True

    def keeps_time(self) -> bool:
        return False

    def sql(self, context: Context) -> str:
        sorts = len(context.inputs[0]) % 2
        nothing = " + length(max(concat(k, ''))) - length(k)" if sorts else ""
        return f"""
            SELECT count(*) AS id, k, timestamp_seconds({EPOCH}) AS ts, count(*) * 2{nothing} AS v
            FROM {context.inputs[0]} GROUP BY k
        """

    def rows(self, *inputs: Sequence[Row]) -> list[Row]:
        return [Row(n, k, EPOCH * SECOND, n * 2) for k, n in Counter(r.k for r in inputs[0]).items()]


HEADER = f"""\
import json
import os
import uuid
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.functions import pandas_udf
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

SCHEMA = "id BIGINT, k STRING, ts TIMESTAMP, v BIGINT"
EPOCH = {EPOCH}
"""

NUMBERED = """
class _Value:
    def init(self, handle):
        self.count = handle.getValueState("count", "n BIGINT")

    def more(self, rows):
        n = self.count.get()[0] if self.count.exists() else 0
        self.count.update((n + rows,))
        return range(n + 1, n + 1 + rows)

    def close(self):
        pass


class _List(_Value):
    def init(self, handle):
        self.seen = handle.getListState("seen", "n BIGINT")

    def more(self, rows):
        n = sum(item[0] for item in self.seen.get())
        self.seen.appendValue((rows,))
        return range(n + 1, n + 1 + rows)


class _Map(_Value):
    def init(self, handle):
        self.parts = handle.getMapState("parts", "part STRING", "n BIGINT")

    def more(self, rows):
        n = self.parts.getValue(("all",))[0] if self.parts.containsKey(("all",)) else 0
        self.parts.updateValue(("all",), (n + rows,))
        return range(n + 1, n + 1 + rows)


class _Frames:
    def handleInputRows(self, key, rows, timerValues):
        numbers = list(self.more(sum(len(frame) for frame in rows)))
        yield pd.DataFrame({"id": numbers, "k": key[0], "ts": pd.Timestamp(EPOCH, unit="s"), "v": numbers})


class _Rows:
    def handleInputRows(self, key, rows, timerValues):
        for n in self.more(sum(1 for _ in rows)):
            yield Row(id=n, k=key[0], ts=pd.Timestamp(EPOCH, unit="s", tz="UTC").to_pydatetime(), v=n)


class NumberedValueFrames(_Frames, _Value, StatefulProcessor): pass
class NumberedListFrames(_Frames, _List, StatefulProcessor): pass
class NumberedMapFrames(_Frames, _Map, StatefulProcessor): pass
class NumberedValueRows(_Rows, _Value, StatefulProcessor): pass
class NumberedListRows(_Rows, _List, StatefulProcessor): pass
class NumberedMapRows(_Rows, _Map, StatefulProcessor): pass
"""

BUCKETS = """
class _Buckets:
    def init(self, handle):
        self.handle = handle
        self.sums = handle.getValueState("sums", "n BIGINT, total BIGINT")

    def add(self, key, n, total):
        before = self.sums.get() if self.sums.exists() else (0, 0)
        if not self.sums.exists():
            self.handle.registerTimer(int(key[1]) * 1000)
        self.sums.update((before[0] + n, before[1] + total))

    def close(self):
        pass


class BucketsFrames(_Buckets, StatefulProcessor):
    def handleInputRows(self, key, rows, timerValues):
        frames = list(rows)
        self.add(key, sum(len(frame) for frame in frames), int(sum(frame.v.sum() for frame in frames)))
        return iter(())  # a frame without rows has columns of floats, which Arrow casts to no timestamp

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        n, total = self.sums.get()
        self.sums.clear()
        yield pd.DataFrame({"id": [n], "k": key[0], "ts": pd.Timestamp(key[1], unit="s"), "v": [total]})


class BucketsRows(_Buckets, StatefulProcessor):
    def handleInputRows(self, key, rows, timerValues):
        found = list(rows)
        self.add(key, len(found), sum(row.v for row in found))
        return iter(())

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        n, total = self.sums.get()
        self.sums.clear()
        yield Row(id=n, k=key[0], ts=pd.Timestamp(key[1], unit="s", tz="UTC").to_pydatetime(), v=total)
"""
