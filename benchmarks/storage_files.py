"""What a stateful query costs the storage of its checkpoints, HDFS and S3, beside plain PySpark.

Both sides run the query of `tests/windows_job.py` over the same event files, one a micro-batch, with RocksDB and
changelog checkpointing; `benchmarks/plain.py` says what else they have in common. Ten files are given at a time. Plain
PySpark has its checkpoint directory on the storage; the job of minflinkd has its checkpoints there, and takes one
behind each ten files, by hand. Results, code and the daemon's own store are on the local disk on both sides, so that
only what the state costs is counted. Counted is from the end of the first file (and of the first checkpoint) to when
nothing is asked of the storage any more: forty files, and the micro-batches without data that Spark puts behind each
ten, in which the watermark closes windows.

The servers count. HDFS: a NameNode and a DataNode; files created, directories with them, calls of clients by method,
and transactions of the edit log from the NameNode's JMX. S3: SeaweedFS, by its own metrics; a write in parts is several
requests, and renaming, which S3 has not, is what Hadoop's S3A client makes of it. Hadoop's clients are PySpark's and
the S3A of the same release, with their defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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
from minflinkd.runtime.ids import JobId
from tests.faults.in_process import InProcess, in_process_cluster
from tests.windows_job import WindowsJob

PLAIN = "plain PySpark"
OURS = "minflinkd"
EVERY = 10  # files between two checkpoints
NEVER = "24 h"  # between two checkpoints that nobody asked for
FIGURES = (FILES, ENTRIES, OPERATIONS, TRANSACTIONS, REQUESTS)
PLOTS = Path(__file__).parents[1] / "build" / "plots"


@dataclass(frozen=True)
class Cost:
    """Of so many micro-batches with data; `batches`: with those without."""

    files: int
    batches: int
    counts: Counts

    def of_batch(self, figure: str) -> float:
        return self.counts[figure] / self.files


async def measure(base: Path, quick: bool) -> Row:
    row = Row("storage_files", "Files and requests of a stateful query on HDFS and S3")
    partitions = (8,) if quick else (8, 32, 128)
    files = 2 * EVERY if quick else 4 * EVERY
    for counted in (CountedHdfs(base / "hdfs"), CountedS3(base / "s3")):
        await counted.start()
        try:
            theirs = {count: await _plain(counted, base, count, files) for count in partitions}
            ours = await _ours(counted, base, partitions, files)
        finally:
            await counted.kill()
        for count in partitions:
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
        await stream.answer()
        begun = await stream.process()
        before = await counted.settled()
        for first in range(1, files + 1, EVERY):
            job.write_events(first, EVERY)
            ended = await stream.process()
        cost = Cost(files, ended - begun, await counted.settled() - before)
    say(f"storage_files: {counted.name}, {count} partitions, {PLAIN}: {dict(cost.counts)}")
    return cost


async def _ours(row: Row, counted: Counted, base: Path, partitions: tuple[int, ...], files: int) -> Mapping[int, Cost]:
    settings = {
        "execution.checkpointing.dir": counted.uri("checkpoints"),
        "taskmanager.numberOfTaskSlots": max(partitions),
        "resourcemanager.max-taskmanagers": 1,
        **counted.minflinkd,
    }
    costs: dict[int, Cost] = {}
    async with in_process_cluster(base / f"cluster-{counted.name}", **settings) as cluster:
        await cluster.await_ready(1)
        for count in partitions:
            costs[count] = await _job(cluster, counted, base, count, files)
            say(f"storage_files: {counted.name}, {count} partitions: {dict(costs[count].counts)}")
    return costs


async def _job(cluster: InProcess, counted: Counted, base: Path, count: int, files: int) -> Cost:
    job = WindowsJob(base / f"{counted.name}-{count}", files=1)
    job.write_events()
    job_id = await cluster.submit(streaming(job, f"p{count}", parallelism=count, checkpoint_interval=NEVER))
    begun = await _processed(cluster, job_id, job, 1)
    await _checkpoint(cluster, job_id)
    before = await counted.settled()
    for first in range(1, files + 1, EVERY):
        job.write_events(first, EVERY)
        ended = await _processed(cluster, job_id, job, first + EVERY)
        await _checkpoint(cluster, job_id)
    cost = Cost(files, ended - begun, await counted.settled() - before)
    await cluster.cancel(job_id)
    return cost


async def _processed(cluster: InProcess, job_id: str, job: WindowsJob, files: int) -> int:
    """So many files; the number of micro-batches until then."""
    found = await cluster.await_job(
        job_id,
        lambda info: info.vertices[0].metrics.read_records >= files * job.rows,
        f"has processed {files} files",
        timeout=600,
    )
    return int(found.vertices[0].minflinkd.batches)


async def _checkpoint(cluster: InProcess, job_id: str) -> None:
    master = cluster.job_master(JobId(job_id))
    assert master is not None
    await master.coordinator.trigger(timeout=300)


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
