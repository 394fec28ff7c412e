"""What more partitions of state cost a micro-batch: 2 slots, and 2 to 128 partitions.

The query (`constant_stream.py`) has constant input without pause. Each micro-batch changes ten keys. A figure is the
time from the commit of one micro-batch to that of the next, by Spark's commit log. Numbers of partitions take turns.
"""

from __future__ import annotations

import statistics
from itertools import pairwise
from pathlib import Path

from benchmarks.by_hand import HEAP, PATIENCE, THREADS
from benchmarks.commit_log import watched
from benchmarks.constant_stream import ConstantStream
from benchmarks.figures import Row
from benchmarks.running import quick_asked, run, say
from tests.cluster import Cluster, running_cluster
from tests.waiting import until

SLOTS = 2
PARTITIONS = (2, 4, 8, 32, 128)
WARM, MEASURED = 10, 40  # micro-batches of a turn


async def measure(base: Path, quick: bool) -> Row:
    row = Row("partitions", f"A micro-batch with {SLOTS} slots, by the number of partitions of its state")
    settings = {
        "taskmanager.numberOfTaskSlots": THREADS,
        "taskmanager.memory.heap.size": f"{HEAP} GiB",
        "resourcemanager.max-taskmanagers": 1,
    }
    found: dict[tuple[int, int], list[float]] = {}
    async with running_cluster(base / "cluster", **settings) as cluster:
        await cluster.await_ready(1)
        for turn in range(1 if quick else 3):
            for megabytes in (0,) if quick else (0, 100):
                for partitions in PARTITIONS:
                    stream = ConstantStream(base / f"{turn}-{megabytes}-{partitions}", megabytes)
                    gaps = await _gaps(cluster, stream, partitions)
                    found.setdefault((megabytes, partitions), []).extend(gaps)
                    say(f"partitions: turn {turn + 1}, {megabytes} MB, {partitions}: {statistics.median(gaps):.3f} s")
    for (megabytes, partitions), gaps in found.items():
        size = f"{megabytes} MB" if megabytes else "tiny state"
        few = (f"{SLOTS} partitions", found[megabytes, SLOTS])
        row.add(f"{size}, {partitions} partitions: one micro-batch -> the next", "s", gaps, few)
    return row


async def _gaps(cluster: Cluster, stream: ConstantStream, partitions: int) -> list[float]:
    """Return the seconds from each measured micro-batch to the next."""
    async with watched(cluster) as commits:
        job_id = await cluster.submit(stream.write("v0", SLOTS, interval="10 s", highest=partitions))
        await until(lambda: len(commits) > WARM + MEASURED, "enough micro-batches", timeout=PATIENCE, pause=0.1)
        await cluster.cancel(job_id)
        times = [commits[epoch] for epoch in sorted(commits)][WARM : WARM + MEASURED + 1]
    return [after - before for before, after in pairwise(times)]


if __name__ == "__main__":
    run(measure, quick=quick_asked(__doc__))
