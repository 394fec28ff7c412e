"""Asks Spark for what people want to know of state: totals, the largest keys, rows, the result of a SELECT, growth.

All answers are bounded, in rows and in bytes. What a user is told to be the size of a row is what `sizes` says.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from minflinkd.rpc import messages as m
from minflinkd.taskmanager.session.inspection.stores import BYTES, KEY, PARTITION, VALUE

LONGEST_TEXT = 16 * 1024  # characters of a key or a value
LONGEST_KEY = 2 * 1024  # characters of a key that is listed with its totals
MOST_BYTES = 2 * 1024**2  # of all rows of an answer
_JSON = {"ignoreNullFields": "false"}


def rows(frame: DataFrame, limit: int) -> tuple[tuple[m.StateRow, ...], bool]:
    """Return the first rows, and whether there are more than are returned."""
    key, value = fn.to_json(KEY, _JSON), fn.to_json(VALUE, _JSON)
    asked = frame.select(PARTITION, BYTES, *_cut(key, "k"), *_cut(value, "v")).limit(limit + 1).collect()
    found: list[m.StateRow] = []
    size = 0
    for row in asked[:limit]:
        cut = row.k is None or row.v is None
        shown = m.StateRow(
            partition=int(row.partition_id),
            key=row.k or "",
            value=row.v or "",
            bytes=int(row.bytes),
            cut=cut,
        )
        size += len(shown.key) + len(shown.value)
        if size > MOST_BYTES and found:
            break
        found.append(shown)
    return tuple(found), len(asked) > len(found)


def _cut(json: Column, name: str) -> list[Column]:
    """A text that is too long is not sent at all: half of a JSON object is none."""
    return [fn.when(fn.length(json) <= LONGEST_TEXT, json).alias(name)]


def totals(frame: DataFrame, partitions: int, largest: int) -> m.StoreTotals:
    """Return the totals by partition and the largest keys."""
    keys = _by_key(frame).persist(StorageLevel.DISK_ONLY)
    try:
        counted = keys.groupBy(PARTITION).agg(fn.sum("n"), fn.sum("size"), fn.count("*")).collect()
        top = keys.orderBy(fn.desc("size"), fn.desc("n"), "json").limit(largest).collect() if largest else []
    finally:
        keys.unpersist()
    by_partition = {int(row[0]): (int(row[1]), int(row[2])) for row in counted}
    shown = []
    for number in range(max([partitions, *(each + 1 for each in by_partition)])):
        n, size = by_partition.get(number, (0, 0))
        shown.append(m.PartitionTotals(partition=number, rows=n, bytes=size))
    return m.StoreTotals(
        rows=sum(each.rows for each in shown),
        bytes=sum(each.bytes for each in shown),
        keys=sum(int(row[3]) for row in counted),
        partitions=tuple(shown),
        largest=tuple(
            m.LargeKey(key=_listed(row.json), rows=int(row.n), bytes=int(row["size"]), partition=int(row.partition_id))
            for row in top
        ),
    )


def _by_key(frame: DataFrame) -> DataFrame:
    json = fn.to_json(KEY, _JSON).alias("json")
    keyed = frame.select(PARTITION, json, BYTES)
    return keyed.groupBy(PARTITION, "json").agg(fn.count("*").alias("n"), fn.sum(BYTES).alias("size"))


def growth(before: DataFrame, after: DataFrame, largest: int) -> tuple[int, int, int, tuple[m.GrownKey, ...]]:
    """Return how many keys were added, removed and changed, and those that grew the most."""
    zero = fn.lit(0).cast("long")

    def sided(frame: DataFrame, first: bool) -> DataFrame:
        n, size = fn.lit(1).cast("long"), fn.col(BYTES)
        sides = [n if first else zero, zero if first else n, size if first else zero, zero if first else size]
        names = ("n0", "n1", "s0", "s1")
        json = fn.to_json(KEY, _JSON).alias("json")
        return frame.select(json, *(side.alias(name) for side, name in zip(sides, names, strict=True)))

    both = sided(before, True).unionAll(sided(after, False)).coalesce(1)
    keys = (
        both.groupBy("json")
        .agg(*(fn.sum(name).alias(name) for name in ("n0", "n1", "s0", "s1")))
        .persist(StorageLevel.DISK_ONLY)
    )
    try:
        added, removed = (fn.col("n0") == 0), (fn.col("n1") == 0)
        differs = (fn.col("n0") != fn.col("n1")) | (fn.col("s0") != fn.col("s1"))
        counted = keys.agg(
            fn.count_if(added), fn.count_if(removed), fn.count_if(differs & ~added & ~removed)
        ).collect()[0]
        grew = fn.col("s1") - fn.col("s0")
        top = keys.where(grew > 0).orderBy(fn.desc(grew), "json").limit(largest).collect() if largest else []
    finally:
        keys.unpersist()
    grown = tuple(
        m.GrownKey(
            key=_listed(row.json),
            rows_before=int(row.n0),
            rows_after=int(row.n1),
            bytes_before=int(row.s0),
            bytes_after=int(row.s1),
        )
        for row in top
    )
    return int(counted[0]), int(counted[1]), int(counted[2]), grown


def _listed(json: str) -> str:
    """A key for a list. A long one is shown as a JSON text that is cut, not as an object."""
    return json if len(json) <= LONGEST_KEY else msgspec.json.encode(json[:LONGEST_KEY] + "...").decode()


def result(frame: DataFrame, limit: int) -> tuple[m.StateResult, bool]:
    """Return the first rows of a SELECT, each as a JSON array, and whether there are more."""
    plain = [f"c{number}" for number in range(len(frame.columns))]
    json = fn.to_json(fn.struct(*(fn.col(name) for name in plain)), _JSON)
    asked = frame.toDF(*plain).select(*_cut(json, "row")).limit(limit + 1).collect()
    kept: list[str] = []
    size = 0
    for row in asked[:limit]:
        text = _array(row["row"], plain)
        size += len(text)
        if size > MOST_BYTES and kept:
            break
        kept.append(text)
    types = tuple(field.dataType.simpleString() for field in frame.schema.fields)
    return m.StateResult(columns=tuple(frame.columns), types=types, rows=tuple(kept)), len(asked) > len(kept)


def _array(json: str | None, names: Iterable[str]) -> str:
    """Make an array of the values. A row that is too long is an array of nulls."""
    values: dict[str, Any] = {} if json is None else msgspec.json.decode(json, type=dict[str, msgspec.Raw])
    return "[" + ",".join(bytes(values[name]).decode() if name in values else "null" for name in names) + "]"
