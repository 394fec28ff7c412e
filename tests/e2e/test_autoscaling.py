"""A real job whose input triples and falls again gets more slots, and gives them back (R62)."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import pyarrow.dataset
import pytest

from minflinkd.rest.schemas import JobInfo
from tests.beside import beside
from tests.cluster import Cluster, running_cluster
from tests.waiting import until

# Slow: a rate must last for longer than cool-down and scale-down-delay before anything may follow from it.
pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(2400)]

ONE = {
    "resourcemanager.standby-taskmanagers": 1,
    "resourcemanager.max-taskmanagers": 1,
    "taskmanager.numberOfTaskSlots": 4,
    "heartbeat.timeout": "10 s",
}
LOW, HIGH = 6, 18  # rows per second: each waits for 50 ms on a slot, which takes no processor of a busy machine
COOL_DOWN = 20.0  # seconds
SLOWLY = """
import time

from pyspark.sql.functions import udf


def slowly(inputs, params):
    @udf("bigint")
    def waited(number):
        time.sleep(0.05)
        return number

    once = inputs["events"].dropDuplicates(["id"])
    return once.select(waited("id").alias("id"))
"""


@dataclass
class Feed:
    """Writes rows at a rate, each with a number of its own."""

    directory: Path
    rate: float = LOW
    written: int = 0
    files: int = 0

    async def run(self) -> None:
        """A busy machine gets the rows later, and not fewer of them."""
        self.directory.mkdir(parents=True, exist_ok=True)
        last, owed = time.monotonic(), 0.0
        while True:
            await asyncio.sleep(0.5)
            now = time.monotonic()
            owed += self.rate * (now - last)
            last = now
            rows, owed = int(owed), owed - int(owed)
            await asyncio.to_thread(self._write, rows)

    def _write(self, rows: int) -> None:
        lines = [json.dumps({"id": number}) for number in range(self.written, self.written + rows)]
        staged = self.directory / f"_{self.files:06d}.json"
        staged.write_text("\n".join(lines) + "\n")
        staged.rename(self.directory / f"{self.files:06d}.json")
        self.written, self.files = self.written + rows, self.files + 1


def job_file(base: Path, events: Path) -> Path:
    directory = base / "job"
    directory.mkdir(parents=True)
    (directory / "slow.py").write_text(SLOWLY)
    document = {
        "name": "scaled",
        "max-parallelism": 4,
        "autoscaler": {
            "min": 1,
            "max": 4,
            "cool-down": f"{COOL_DOWN:g} s",
            "scale-down-delay": "60 s",
            "catch-up": "60 s",
        },
        "checkpointing": {"interval": "2 s"},
        "trigger-interval": "1 s",
        "artifacts": ["slow.py"],
        "vertices": {
            "events": {"source": {"format": "json", "path": str(events), "schema": "id BIGINT"}},
            "slow": {"inputs": ["events"], "python": "slow:slowly"},
            "out": {"inputs": ["slow"], "sink": {"format": "parquet", "path": str(base / "out")}},
        },
    }
    file = directory / "job.yaml"
    file.write_text(json.dumps(document))
    return file


def slots(job: JobInfo) -> int:
    return max(vertex.parallelism for vertex in job.vertices)


async def settled(cluster: Cluster, job_id: str, rate: float, *, least: int = 1, most: int = 4) -> JobInfo | None:
    """Return the job if its autoscaler has seen about this rate, and it runs with so many slots."""
    job = await cluster.client.job(job_id)
    assert job.state != "FAILED"
    told = job.minflinkd.autoscaler
    if job.state != "RUNNING" or not job.vertices or told is None or not told.groups:
        return None
    return job if least <= slots(job) <= most and 0.7 * rate <= told.groups[0].rate <= 1.5 * rate else None


def published(base: Path) -> list[int]:
    """Return the numbers in the output, in order."""
    out = base / "out"
    if not out.exists():
        return []
    return sorted(pyarrow.dataset.dataset(out, format="parquet").to_table()["id"].to_pylist())


async def test_a_job_whose_input_triples_and_falls_again_has_the_slots_for_it(tmp_path: Path) -> None:
    """No task stops, there are few changes, no two of them in a cool-down, and every row is in the output once."""
    feed = Feed(tmp_path / "events")
    async with running_cluster(tmp_path / "cluster", **ONE) as cluster:
        await cluster.await_ready(1)
        async with beside("feeder", feed.run()):
            await until(lambda: feed.files > 2, "the first rows")
            job_id = await cluster.submit(job_file(tmp_path, tmp_path / "events"))
            first = await cluster.await_job(
                job_id, lambda job: bool(job.vertices) and job.vertices[0].minflinkd.batches > 10, "micro-batches"
            )
            feed.rate = HIGH
            wide = await until(partial(settled, cluster, job_id, HIGH, least=2), "more slots", timeout=300)
            feed.rate = LOW
            less = slots(wide) - 1
            await until(partial(settled, cluster, job_id, LOW, most=less), "fewer slots", timeout=300)

        async def all_there() -> bool:
            return len(await asyncio.to_thread(published, tmp_path)) >= feed.written

        await until(all_there, "all rows in the output", timeout=300)
        assert published(tmp_path) == list(range(feed.written))
        last = await cluster.client.job(job_id)
        assert last.minflinkd.restarts == 0
        assert last.vertices[0].minflinkd.attempt_id == first.vertices[0].minflinkd.attempt_id
        told = last.minflinkd.autoscaler
        assert told is not None
        changes = sorted(told.changes, key=lambda change: change.number)
        assert 2 <= len(changes) <= 6
        assert changes[0].vertices["slow"][0] == 1
        assert all(change.why for change in changes)
        pauses = [b.requested - a.requested for a, b in pairwise(changes)]
        assert min(pauses) >= 1000 * COOL_DOWN
