"""The job of the fault tests: a windowed aggregate with a watermark over files that come in the order of time."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.dataset

from tests import plain_spark
from tests.cluster import write_job
from tests.files import files_below

SQL = """
SELECT window(time, '1 minute').start AS minute, k, count(*) AS n, sum(v) AS total
FROM clean GROUP BY window(time, '1 minute'), k
"""
EPOCH = 1_700_000_040  # seconds since 1970, a full minute


@dataclass(frozen=True)
class WindowsJob:
    """A job with `files` event files, one for each micro-batch. File i holds minute i, so no row is ever late.

    `pace` is the time from one micro-batch to the next, for a job that must outlast what a test does to it.
    """

    base: Path
    files: int = 45
    pace: str = ""
    rows: int = 100
    artifact: str = "def clean(inputs, params):\n    return inputs['events'].where('v >= 0')\n"

    @property
    def events(self) -> Path:
        return self.base / "events"

    def write_events(self, first: int = 0, count: int | None = None) -> None:
        """Write the event files in the order in which Spark has to read them, each of them atomically."""
        self.events.mkdir(parents=True, exist_ok=True)
        for i in range(first, first + (self.files if count is None else count)):
            rng = random.Random(i)
            lines = [
                json.dumps({"k": f"k{rng.randrange(7)}", "time": _iso(i, rng), "v": rng.randrange(-5, 100)})
                for _ in range(self.rows)
            ]
            staged = self.events / f"_{i:05d}.json"
            staged.write_text("\n".join(lines) + "\n")
            os.utime(staged, (EPOCH + i, EPOCH + i))
            staged.rename(self.events / f"{i:05d}.json")

    def write(self, name: str, **changes: Any) -> Path:
        """Write the job file, with top-level keys replaced. The job's result goes to `base/<name>`."""
        directory = self.base / f"{name}-job"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "windows.py").write_text(self.artifact)
        document = {
            "name": name,
            "mode": "batch",
            "parallelism": 2,
            "params": {"input": str(self.events), "output": str(self.base / name)},
            "checkpointing": {"interval": "1 s"},
            "artifacts": ["windows.py"],
            "vertices": {
                "events": {
                    "source": {
                        "format": "json",
                        "path": "${input}",
                        "schema": "k STRING, time TIMESTAMP, v BIGINT",
                        "options": {"maxFilesPerTrigger": 1},
                    },
                    "watermark": {"column": "time", "delay": "1 minute"},
                },
                "clean": {"inputs": ["events"], "python": "windows:clean"},
                "minutes": {"inputs": ["clean"], "sql": SQL},
                "out": {"inputs": ["minutes"], "sink": {"format": "parquet", "path": "${output}"}},
            },
        }
        pace = {"trigger-interval": self.pace} if self.pace else {}
        return write_job(directory / "job.yaml", document | pace | changes)

    def expected(self) -> list[tuple[Any, ...]]:
        """Return the result for the event files that exist, counted in Python."""
        counted: Counter[tuple[int, str]] = Counter()
        totals: Counter[tuple[int, str]] = Counter()
        for file in self.events.glob("[0-9]*"):
            for event in map(json.loads, file.read_text().splitlines()):
                if event["v"] >= 0:
                    minute = int(datetime.fromisoformat(event["time"]).timestamp()) // 60 * 60
                    counted[minute, event["k"]] += 1
                    totals[minute, event["k"]] += event["v"]
        return sorted((*key, n, totals[key]) for key, n in counted.items())

    def batch(self) -> list[tuple[Any, ...]]:
        """Return the result of the same query by plain Spark over the same files, in a process of its own."""
        command = [sys.executable, __file__, str(self.events), SQL]
        done = subprocess.run(
            command, env=plain_spark.environ(), capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return sorted(tuple(row) for row in json.loads(done.stdout.splitlines()[-1]))


def result(directory: Path) -> list[tuple[Any, ...]]:
    """Return what any reader of the directory sees, each row as often as it occurs."""
    table = pyarrow.dataset.dataset(directory, format="parquet").to_table(columns=["minute", "k", "n", "total"])
    rows = table.to_pylist()
    return sorted((int(r["minute"].timestamp()), r["k"], r["n"], r["total"]) for r in rows)


def leftovers(directory: Path) -> list[str]:
    """Return the staged and temporary files that are still there."""
    found = [p for p in files_below(directory) if not p.name.startswith("part-")]
    return [str(p.relative_to(directory)) for p in found if "manifests" not in p.parts]


def _iso(minute: int, rng: random.Random) -> str:
    seconds = minute * 60 + rng.randrange(60)
    hour, rest = divmod(22 * 3600 + 14 * 60 + seconds, 3600)  # EPOCH is 22:14:00 on 2023-11-14, UTC
    return f"2023-11-{14 + hour // 24:02}T{hour % 24:02}:{rest // 60:02}:{rest % 60:02}Z"


def _batch(events: str, sql: str) -> None:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.log.level": "ERROR",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    rows = spark.read.schema("k STRING, time TIMESTAMP, v BIGINT").json(events).where("v >= 0")
    rows.createOrReplaceTempView("clean")
    found = spark.sql(f"SELECT unix_timestamp(minute) AS minute, k, n, total FROM ({sql})").collect()
    print(json.dumps([list(row) for row in found]))


if __name__ == "__main__":
    _batch(*sys.argv[1:])
