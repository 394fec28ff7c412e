"""What a shape reads: files of seeded rows in the order of time, so that lateness never depends on chance.

File i of every source holds minute i, give or take the jitter. The jitter is less than half of the watermark's delay,
so no row is late however the files fall into micro-batches. Rows that are meant to be late are a day late, and come
long after the watermark was set. Rows with the same number have the same id in every source, and most of them the same
time.
"""

from __future__ import annotations

import csv
import io
import json
import os
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.servers.kafka import Tansu
from tests.shapes.rows import EPOCH, SCHEMA, SECOND, Context, Operator, Row, function
from tests.shapes.stateless import WEIGHTS

JITTER = 5  # seconds
DELAYS = (15, 30, 120)
DAY = 86_400 * SECOND
PER_FILE = 1000  # ids
MADE = ("python", "kafka", "rate")  # a function of the job makes these sources
RATE_BATCHES = 4  # at most: a bounded job reads one batch, and one more each time that it starts late or again
LATE_FROM = 2  # Spark drops by the watermark of the micro-batch before, so not yet in the second one


@dataclass(frozen=True)
class Source(Operator):
    """`delay` is in seconds; 0 is no watermark. `repeats`: of ten rows, so many come again in the same or next file.

    `late`: files bring rows that are a day late.
    """

    seed: int
    format: str  # json, parquet, csv; python: json by a function; kafka; rate: rate-micro-batch, a file is a batch
    files: int
    rows_per_file: int
    per_trigger: int
    delay: int
    repeats: int = 0
    late: bool = False

    @property
    def name(self) -> str:
        return f"Source {self.format}" + (" empty" if not self.files else " late" if self.late else "")

    def keeps_time(self) -> bool:
        return self.delay > 0

    def file(self, number: int) -> list[Row]:
        """Return the rows of a file. `number` may exceed `files`, for a source that goes on."""
        if not self.files:
            return []
        if self.format == "rate":
            first, ts = number * self.rows_per_file, (EPOCH + number) * SECOND
            return [Row(n, f"k{n % 4}", ts, n % 90) for n in range(first, first + self.rows_per_file)]
        rows = self._fresh(number)
        rng = random.Random(f"{self.seed}-{number}-again")
        earliest = (EPOCH + number * 60 + JITTER + 1 - self.delay) * SECOND  # rows before it may be late
        before = self._fresh(number - 1) if number else []
        again = [*rows, *(row for row in before if row.ts >= earliest or not self.delay)]
        rows += rng.sample(again, len(rows) * self.repeats // 10)
        if self.late and number >= LATE_FROM:
            rows += [r._replace(ts=r.ts - DAY, v=77) for r in rows[:2]]
        rng.shuffle(rows)
        return rows

    def _fresh(self, number: int) -> list[Row]:
        rng = random.Random(f"{self.seed}-{number}")
        found = []
        for n in range(self.rows_per_file):
            common = random.Random(f"common-{number}-{n}")
            ts = (EPOCH + number * 60) * 1000 + common.randrange(60_000)
            if rng.random() < 0.4:
                ts += rng.randrange(-JITTER * 1000, JITTER * 1000)
            found.append(Row(number * PER_FILE + n, f"k{common.randrange(4)}", ts * 1000, rng.randrange(100)))
        return found

    def vertex(self, context: Context) -> dict[str, Any]:
        path, options = f"${{input}}/{context.id}", {"maxFilesPerTrigger": self.per_trigger}
        if self.format in MADE:
            found: dict[str, Any] = {"source": {"python": f"shape:{function(context.id)}"}}
        else:
            found = {"source": {"format": self.format, "path": path, "schema": SCHEMA, "options": options}}
        if self.delay:
            found["watermark"] = {"column": "ts", "delay": f"{self.delay} seconds"}
        return found

    def python(self, context: Context) -> str | None:
        if self.format == "kafka":
            return f"""\
    options = {{
        "kafka.bootstrap.servers": params["kafka"], "subscribe": params["topics"] + "{context.id}",
        "startingOffsets": "earliest", "maxOffsetsPerTrigger": {self.per_trigger * self.rows_per_file},
    }}
    read = spark.readStream.format("kafka").options(**options).load()
    return read.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("row")).select("row.*")"""
        if self.format == "rate":
            return f"""\
    options = {{"rowsPerBatch": {self.rows_per_file}, "numPartitions": 1, "startTimestamp": {EPOCH * 1000}}}
    read = spark.readStream.format("rate-micro-batch").options(**options).load()
    return read.selectExpr("value AS id", "concat('k', value % 4) AS k", "timestamp AS ts", "value % 90 AS v")"""
        if self.format != "python":
            return None
        return f"""\
    path = params["input"] + "/{context.id}"
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", {self.per_trigger}).json(path)"""


def write_file(directory: Path, source: Source, number: int) -> None:
    """Write a file atomically, with a later time than the one before it."""
    suffix = "json" if source.format == "python" else source.format
    staged = directory / f"_{number:05d}.{suffix}"
    staged.write_bytes(_encoded(suffix, source.file(number)))
    os.utime(staged, (EPOCH + number, EPOCH + number))
    staged.rename(directory / f"{number:05d}.{suffix}")


def produce(source: Source, number: int, topic: str, broker: Tansu) -> None:
    """Produce the rows of a file into a topic."""
    for row in source.file(number):
        broker.produce(topic, json.dumps({"value": _texts(row)}))


def write_table(path: Path) -> None:
    """Write the static table of `StaticJoin`."""
    path.mkdir(parents=True)
    (path / "table.json").write_text("".join(json.dumps({"k": k, "w": w}) + "\n" for k, w in WEIGHTS.items()))


def _encoded(suffix: str, rows: list[Row]) -> bytes:
    if suffix == "parquet":
        fields = [("id", pa.int64()), ("k", pa.string()), ("ts", pa.timestamp("us", tz="UTC")), ("v", pa.int64())]
        columns = [[row[i] for row in rows] for i in range(4)]
        arrays = [pa.array(column, type=kind) for column, (_, kind) in zip(columns, fields, strict=True)]
        buffer = io.BytesIO()
        pq.write_table(pa.Table.from_arrays(arrays, names=[name for name, _ in fields]), buffer)
        return buffer.getvalue()
    values = [_texts(row) for row in rows]
    if suffix == "json":
        return "".join(json.dumps(value) + "\n" for value in values).encode()
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(value.values() for value in values)
    return text.getvalue().encode()


def _texts(row: Row) -> dict[str, Any]:
    return {"id": row.id, "k": row.k, "ts": _iso(row.ts), "v": row.v}


def _iso(ts: int) -> str:
    return datetime.fromtimestamp(ts / SECOND, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
