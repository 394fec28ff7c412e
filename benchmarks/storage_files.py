"""What a stateful query costs the storage of its checkpoints, HDFS and S3, beside plain PySpark.

Both sides run the query of `tests/windows_job.py` over the same event files, one per micro-batch, with RocksDB and
changelog checkpointing; `benchmarks/plain.py` says what else they have in common. Files come ten at a time. Plain
PySpark has its checkpoint directory on the storage; the job of minflinkd has its checkpoints there, and takes one on
request after every ten files. Results, code and the daemon's own store are on the local disk on both sides, so that
only the cost of the state is counted. Counting begins after the first file (and the first checkpoint) and ends when
there are no more requests to the storage. It covers forty files (fewer on S3, and with many partitions), and the
micro-batches without data that Spark adds after every ten, in which the watermark closes windows.

The servers count. HDFS: a NameNode and a DataNode; files created, with directories, calls of clients by method, and
transactions of the edit log, from the NameNode's JMX. S3: SeaweedFS, by its own metrics. A write in parts is several
requests, and so is what Hadoop's S3A client does to rename, since S3 cannot rename. Hadoop's clients are PySpark's and
the S3A of the same release, with their defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.counted import (
    ENTRIES,
    FILES,
    OPERATIONS,
    REQUESTS,
    TRANSACTIONS,
    Counted,
    CountedHdfs,
    CountedS3,
    Counts,
)
from benchmarks.figures import Row
from benchmarks.plain import plain_stream
from benchmarks.plots import line_plot
from benchmarks.running import quick_asked, run, say
from benchmarks.workload import streaming
from tests.cluster import Cluster, running_cluster
from tests.waiting import until
from tests.windows_job import WindowsJob

PLAIN = "plain PySpark"
OURS = "minflinkd"
EVERY = 10  # files between two checkpoints
ON_HDFS = {8: 4 * EVERY, 32: 2 * EVERY, 128: EVERY}  # files by partitions
ON_S3 = {8: 2 * EVERY, 32: EVERY, 128: EVERY}  # plain PySpark makes thousands of requests per micro-batch there
NEVER = "24 h"  # between two periodic checkpoints
FIGURES = (FILES, ENTRIES, OPERATIONS, TRANSACTIONS, REQUESTS)
PLOTS = Path(__file__).parents[1] / "build" / "plots"


@dataclass(frozen=True)
class Cost:
    """The cost of `files` micro-batches with data; `batches` includes those without data."""

    files: int
    batches: int
    counts: Counts

    def of_batch(self, figure: str) -> float:
        return self.counts[figure] / self.files


async def measure(base: Path, quick: bool) -> Row:
    row = Row("storage_files", "Files and requests of a stateful query on HDFS and S3")
    for counted, files in ((CountedHdfs(base / "hdfs"), ON_HDFS), (CountedS3(base / "s3"), ON_S3)):
        if quick:
            files = {8: 2 * EVERY}
        await counted.start()
        try:
            theirs = {count: await _plain(counted, base, count, n) for count, n in files.items()}
            ours = await _ours(counted, base, files)
        finally:
            await counted.kill()
        for count in files:
            _report(row, counted, count, ours[count], theirs[count])
        _plot(counted, ours, theirs)
    return row


async def _plain(counted: Counted, base: Path, count: int, files: int) -> Cost:
    job = WindowsJob(base / f"plain-{counted.name}-{count}", files=1)
    job.write_events()
    async with plain_stream(
        job,
        job.base / "work",
        parallelism=count,
        threads=2,
        checkpoint=counted.uri(f"plain-{count}", hadoop=True),
        settings=counted.spark,
    ) as stream:
        await stream.started()
        begun = await stream.process()
        before = await counted.settled()
        for first in range(1, files + 1, EVERY):
            job.write_events(first, EVERY)
            ended = await stream.process()
        cost = Cost(files, ended - begun, await counted.settled() - before)
    say(f"storage_files: {counted.name}, {count} partitions, {PLAIN}: {dict(cost.counts)}")
    return cost


async def _ours(counted: Counted, base: Path, files: Mapping[int, int]) -> Mapping[int, Cost]:
    settings = {
        "execution.checkpointing.dir": counted.uri("checkpoints"),
        "taskmanager.numberOfTaskSlots": max(files),
        "resourcemanager.max-taskmanagers": 1,
        **counted.minflinkd,
    }
    costs: dict[int, Cost] = {}
    async with running_cluster(base / f"cluster-{counted.name}", **settings) as cluster:
        await cluster.await_ready(1, timeout=900)  # warmed up with a Python worker for each of its slots
        for count, n in files.items():
            costs[count] = await _job(cluster, counted, base, count, n)
            say(f"storage_files: {counted.name}, {count} partitions: {dict(costs[count].counts)}")
    return costs


async def _job(cluster: Cluster, counted: Counted, base: Path, count: int, files: int) -> Cost:
    job = WindowsJob(base / f"{counted.name}-{count}", files=1)
    job.write_events()
    job_id = await cluster.submit(streaming(job, f"p{count}", parallelism=count, checkpoint_interval=NEVER))
    begun = await _processed(cluster, job_id, 1)
    await cluster.client.checkpoint(job_id)
    before = await counted.settled()
    for first in range(1, files + 1, EVERY):
        job.write_events(first, EVERY)
        ended = await _processed(cluster, job_id, first + EVERY)
        await cluster.client.checkpoint(job_id)
    cost = Cost(files, ended - begun, await counted.settled() - before)
    await cluster.cancel(job_id)
    return cost


async def _processed(cluster: Cluster, job_id: str, files: int) -> int:
    """Wait until so many files are processed, and return the number of micro-batches until then."""

    async def reached() -> bool:
        (task,) = (await cluster.client.get(f"/jobs/{job_id}/offsets", dict[str, Any]))["tasks"].values()
        return bool(task["processed"].get("events", {}).get("logOffset", -1) >= files - 1)

    await until(reached, f"{files} files are processed", timeout=900, pause=0.1)
    return int((await cluster.client.job(job_id)).vertices[0].minflinkd.batches)


def _report(row: Row, counted: Counted, count: int, ours: Cost, theirs: Cost) -> None:
    at = f"{counted.name}, {count} partitions: "
    row.add(f"{at}micro-batches, of which {ours.files} with data", "", [ours.batches], (PLAIN, [theirs.batches]))
    for figure in FIGURES:
        if figure in theirs.counts:
            beside = (PLAIN, [theirs.of_batch(figure)])
            row.add(f"{at}{figure} a micro-batch with data", "", [ours.of_batch(figure)], beside)
            fewer = theirs.counts[figure] / ours.counts[figure]
            row.add(f"{at}times fewer {figure}", "", [fewer])
    checkpoints = ours.files / EVERY
    for part in sorted(name for name in ours.counts | theirs.counts if "." in name):
        beside = (f"{PLAIN}, {EVERY} micro-batches", [theirs.counts[part] / checkpoints])
        row.add(f"{at}{part} a checkpoint", "", [ours.counts[part] / checkpoints], beside)


def _plot(counted: Counted, ours: Mapping[int, Cost], theirs: Mapping[int, Cost]) -> None:
    name = counted.name.lower()
    main = next(figure for figure in (FILES, REQUESTS) if all(figure in cost.counts for cost in ours.values()))
    line_plot(
        PLOTS / f"storage_files_{name}.svg",
        f"{counted.name}: {main} for a micro-batch, a checkpoint every {EVERY}",
        "state partitions",
        f"{main} a micro-batch",
        {
            side: [(count, cost.of_batch(main)) for count, cost in costs.items()]
            for side, costs in ((PLAIN, theirs), (OURS, ours))
        },
        log_y=True,
    )
    line_plot(
        PLOTS / f"storage_files_{name}_ratio.svg",
        f"{counted.name}: times fewer than plain PySpark",
        "state partitions",
        "plain PySpark / minflinkd",
        {
            figure: [(count, theirs[count].counts[figure] / ours[count].counts[figure]) for count in ours]
            for figure in FIGURES
            if all(figure in cost.counts for cost in ours.values())
        },
        log_y=True,
        limit=40 if main == FILES else None,
    )


if __name__ == "__main__":
    run(measure, quick=quick_asked(__doc__))
