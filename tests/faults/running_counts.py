"""A job that keeps state in `transformWithState`, by rows and by pandas frames: running counts and totals of keys.

Each event gives a row from each of the two, with the count and total of its key so far. If state is lost, older, or of
another attempt, every later row shows it. The input grows by a file each time that a test feeds it.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.dataset

from tests.cluster import Cluster, write_job
from tests.exactly_once.inputs import write_files
from tests.waiting import until
from tests.windows_job import leftovers

KEYS = 5
ROWS = 20  # in a file
HOPELESS = 5  # failures in a row
APIS = ("rows", "frames")
CODE = """
import os

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

WEIGHT = {weight}
ROWS = "id BIGINT, k STRING, n BIGINT, total BIGINT"


class Counting(StatefulProcessor):
    def __init__(self, failing):
        self.failing = failing

    def init(self, handle):
        self.sum = handle.getValueState("sum", "n BIGINT, total BIGINT")

    def counted(self, rows):
        if os.path.exists(self.failing):
            os.remove(self.failing)
            raise ValueError("raised once")
        n, total = self.sum.get() or (0, 0)
        for id, v in sorted(rows):
            n, total = n + 1, total + WEIGHT * v
            yield id, n, total
        self.sum.update((n, total))

    def close(self):
        pass


class ByRow(Counting):
    def handleInputRows(self, key, rows, timerValues):
        for id, n, total in self.counted([(row.id, row.v) for row in rows]):
            yield Row(id=id, k=key[0], n=n, total=total)


class ByFrame(Counting):
    def handleInputRows(self, key, rows, timerValues):
        found = self.counted([pair for frame in rows for pair in zip(frame["id"].tolist(), frame["v"].tolist())])
        yield pd.DataFrame([(id, key[0], n, total) for id, n, total in found], columns=["id", "k", "n", "total"])


def rows(inputs, params):
    keys, counting = inputs["events"].groupBy("k"), ByRow(params["failing"] + "/rows")
    return keys.transformWithState(counting, outputStructType=ROWS, outputMode="append", timeMode="none")


def frames(inputs, params):
    keys, counting = inputs["events"].groupBy("k"), ByFrame(params["failing"] + "/frames")
    return keys.transformWithStateInPandas(counting, outputStructType=ROWS, outputMode="append", timeMode="none")
"""
"""`weight` is what another version of the code changes. A file in `failing` makes one call raise, and is gone then."""

BOTH = " UNION ALL ".join(f"SELECT '{api}' AS api, * FROM {api}" for api in APIS)


@dataclass
class RunningCounts:
    """A job and its input. `weights`: for each file the weight of the version that counted it."""

    base: Path
    weight: int = 1
    parallelism: int = 2
    weights: list[int] = field(default_factory=list)

    @property
    def output(self) -> Path:
        return self.base / "out"

    @property
    def _failing(self) -> Path:
        return self.base / "failing"

    def write(self, **changes: Any) -> Path:
        """Write the job file, with top-level keys replaced."""
        directory = self.base / "job"
        for each in (directory, self._failing):
            each.mkdir(parents=True, exist_ok=True)
        (directory / "counts.py").write_text(CODE.format(weight=self.weight))
        source = {
            "format": "json",
            "path": str(self.base / "events"),
            "schema": "id BIGINT, k STRING, v BIGINT",
            "options": {"maxFilesPerTrigger": 1},
        }
        document = {
            "name": "running counts",
            "parallelism": self.parallelism,
            "params": {"failing": str(self._failing)},
            "checkpointing": {"interval": "1 s"},
            "artifacts": ["counts.py"],
            "vertices": {
                "events": {"source": source},
                **{api: {"inputs": ["events"], "python": f"counts:{api}"} for api in APIS},
                "both": {"inputs": list(APIS), "sql": BOTH},
                "out": {"inputs": ["both"], "sink": {"format": "parquet", "path": str(self.output)}},
            },
        }
        return write_job(directory / "job.yaml", document | changes)

    def feed(self, files: int = 2) -> None:
        """Write more files for the current version."""
        first = len(self.weights)
        write_files(self.base / "events", [_events(number) for number in range(first, first + files)], first=first)
        self.weights += [self.weight] * files

    def fail_once(self) -> None:
        """Make each of the two functions raise once."""
        for api in APIS:
            (self._failing / api).touch()

    @property
    def has_failed(self) -> bool:
        return not any(self._failing.iterdir())

    async def exact(self, cluster: Cluster, job_id: str) -> None:
        """Wait until a checkpoint covers and publishes all input, and check that the output is what a batch gives."""

        async def covered() -> bool:
            job, cause = await cluster.client.job(job_id), (await cluster.client.exceptions(job_id)).root_exception
            repeated = job.minflinkd.restarting_repeatedly
            hopeless = job.state in ("FAILED", "CANCELED") or (repeated is not None and repeated.failures >= HOPELESS)
            assert not hopeless, f"{job.state}, restarting repeatedly: {repeated}: {cause}"
            offsets = await cluster.client.get(f"/jobs/{job_id}/offsets", dict[str, Any])
            found = [task["published"].get("events") for task in offsets["tasks"].values()]
            return any(offset and int(offset["logOffset"]) + 1 == len(self.weights) for offset in found)

        await until(covered, "all events are published", timeout=150, pause=0.2)
        found, wanted = self.result(), self.batch()
        assert found == wanted, f"missing: {wanted - found}\nsurplus: {found - wanted}"

    def result(self) -> Counter[tuple[Any, ...]]:
        """Return what any reader sees, each row as often as it occurs."""
        rows = pyarrow.dataset.dataset(self.output, format="parquet").to_table().to_pylist()
        return Counter((row["api"], row["id"], row["k"], row["n"], row["total"]) for row in rows)

    def batch(self) -> Counter[tuple[Any, ...]]:
        """Return the expected rows, counted over all files in their order."""
        found, counts, totals = Counter[tuple[Any, ...]](), Counter[str](), Counter[str]()
        for number, weight in enumerate(self.weights):
            for event in _events(number):
                counts[event["k"]] += 1
                totals[event["k"]] += weight * event["v"]
                found.update((api, event["id"], event["k"], counts[event["k"]], totals[event["k"]]) for api in APIS)
        return found

    @property
    def leftovers(self) -> list[str]:
        return leftovers(self.output)


def _events(number: int) -> list[dict[str, Any]]:
    """Return the events of a file, in the order of their ids."""
    rng = random.Random(number)
    return [{"id": number * ROWS + n, "k": f"k{rng.randrange(KEYS)}", "v": rng.randrange(1, 100)} for n in range(ROWS)]
