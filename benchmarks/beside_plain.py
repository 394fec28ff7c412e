"""Micro-batch time and throughput of one query, beside plain PySpark with its checkpoint directory on the same disk.

The query is that of `tests/windows_job.py`; `benchmarks/plain.py` says what both sides have in common and what not. All
event files are there before the query begins, one a micro-batch, so that micro-batches follow each other without a
pause. Their times are those between the entries of Spark's commit log, the same instrument on both sides; the first 20
are left out on both, as the new process has to warm up. Runs of the two sides take turns (A B A B); the daemon and its
idle session stay while plain PySpark runs. The job here is checkpointed every 2 s besides, with its sink's two-phase
commit: that is the work that plain PySpark does not do.
"""

from __future__ import annotations

import asyncio
import statistics
from dataclasses import dataclass
from pathlib import Path

from benchmarks import commit_log
from benchmarks.figures import Row
from benchmarks.plain import run_plain
from benchmarks.running import quick_asked, run, say
from benchmarks.workload import streaming
from tests.cluster import Cluster, running_cluster
from tests.waiting import until
from tests.windows_job import WindowsJob

PLAIN = "plain PySpark"
WARM = 20  # micro-batches
PARTITIONS = 2
TINY, LARGE = 100, 20_000  # rows per micro-batch


@dataclass(frozen=True)
class Pace:
    """The seconds of each micro-batch after the first ones."""

    seconds: list[float]

    @property
    def median_ms(self) -> float:
        return statistics.median(self.seconds) * 1000

    def rows_per_second(self, rows: int) -> float:
        return rows * len(self.seconds) / sum(self.seconds)


async def measure(base: Path, quick: bool) -> Row:
    row = Row("beside_plain", "A stream beside plain PySpark with a local checkpoint directory")
    turns, files = (1, 50) if quick else (3, 60)
    settings = {"taskmanager.numberOfTaskSlots": PARTITIONS, "resourcemanager.max-taskmanagers": 1}
    async with running_cluster(base / "cluster", **settings) as cluster:
        await cluster.await_ready(1)
        for rows in (TINY, LARGE):
            ours, theirs = list[Pace](), list[Pace]()
            for turn in range(turns):
                job = WindowsJob(base / f"events-{rows}-{turn}", files=files, rows=rows)
                await asyncio.to_thread(job.write_events)
                ours.append(await _ours(cluster, job, f"r{rows}t{turn}"))
                say(f"beside_plain: {rows} rows, turn {turn + 1}: {ours[-1].median_ms:.0f} ms")
                plain = await run_plain(job, job.base / "work", parallelism=PARTITIONS, threads=PARTITIONS)
                theirs.append(_paced(commit_log.commits(plain.checkpoint)))
                say(f"beside_plain: {rows} rows, turn {turn + 1}, {PLAIN}: {theirs[-1].median_ms:.0f} ms")
            _report(row, rows, ours, theirs)
    return row


def _report(row: Row, rows: int, ours: list[Pace], theirs: list[Pace]) -> None:
    beside = (PLAIN, [pace.median_ms for pace in theirs])
    row.add(f"{rows:,} rows: a micro-batch (medians of the runs)", "ms", [pace.median_ms for pace in ours], beside)
    rates = (PLAIN, [pace.rows_per_second(rows) for pace in theirs])
    row.add(f"{rows:,} rows: throughput", "rows/s", [pace.rows_per_second(rows) for pace in ours], rates)


async def _ours(cluster: Cluster, job: WindowsJob, name: str) -> Pace:
    job_id = await cluster.submit(streaming(job, name, parallelism=PARTITIONS, checkpoint_interval="2 s"))
    async with commit_log.watched(cluster) as found:

        async def all_there() -> bool:
            state = (await cluster.client.job(job_id)).state
            assert state not in ("FAILED", "CANCELED"), (await cluster.client.exceptions(job_id)).root_exception
            return len(found) >= job.files

        await until(all_there, f"{job.files} micro-batches", timeout=600, pause=0.5)
    await cluster.cancel(job_id)
    return _paced(found)


def _paced(commits: commit_log.Commits) -> Pace:
    return Pace([at - commits[n - 1] for n, at in sorted(commits.items()) if n > WARM and n - 1 in commits])


if __name__ == "__main__":
    run(measure, quick=quick_asked(__doc__))
