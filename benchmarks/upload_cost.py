"""What uploads of checkpoints cost the query: throughput and micro-batch times in blocks with and without them.

One job under a load that does not change: micro-batches of 10,000 rows follow each other without a pause, and each
changes a tenth of 100 MB of state. In a block "with", a checkpoint is triggered by hand every 1.5 s, and uploads what
has changed since: tens of MB. In a block "without" there is none. The blocks take turns (A B A B), so that what drifts
(the JVM's compiler, RocksDB's levels, other work on the machine) drifts for both. The first seconds of a block, in
which the one before it lingers, are left out; RocksDB makes its own snapshots every 5 s in both.

The loss compares each block "with" to the mean of the blocks "without" before and after it; the verdict is the median
of these losses against the aim. Processor time is that of the TaskManager's supervisor, which uploads, and of the
daemon.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

from benchmarks import commit_log
from benchmarks.figures import Row
from benchmarks.large_state import ROW, LargeState
from benchmarks.running import run, say
from minflinkd.rest.schemas import Checkpoint
from tests.beside import beside
from tests.cluster import Cluster, running_cluster

AIM = 3.0  # % of throughput lost
STATE = 100  # MB
SHARE = 0.1  # of the state, changed in each micro-batch
ROWS = round(STATE * 1_000_000 / ROW * SHARE)
EVERY = 1.5  # seconds
SETTLING = 3.0  # seconds of a block that are left out
WARM = 15  # micro-batches
AHEAD = 100  # micro-batches waiting to be processed: more than are committed between two reads of the log
WITHOUT = "without uploads"


@dataclass
class Block:
    since: float
    until: float
    checkpoints: Sequence[Checkpoint]
    processor: Mapping[str, float]  # % of a core, by process
    batches: list[float] = field(default_factory=list)  # seconds of each

    @property
    def rows_per_second(self) -> float:
        return ROWS * len(self.batches) / sum(self.batches)

    @property
    def batch_ms(self) -> float:
        return statistics.median(self.batches) * 1000

    @property
    def uploaded(self) -> float:
        """MB per second."""
        return sum(c.checkpointed_size for c in self.checkpoints) / 1e6 / (self.until - self.since)


async def measure(base: Path, quick: bool, blocks: int = 0, seconds: float = 0.0) -> Row:
    count, length = blocks or (2 if quick else 8), seconds or (12.0 if quick else 20.0)
    row = Row("upload_cost", "Throughput of a query beside uploads of its checkpoints, and without them")
    settings = {
        "taskmanager.numberOfTaskSlots": 2,
        "taskmanager.memory.heap.size": "3 GiB",
        "resourcemanager.max-taskmanagers": 1,
    }
    async with running_cluster(base / "cluster", **settings) as cluster:
        await cluster.await_ready(1)
        beside, without = await _in_turn(cluster, LargeState(base / "state"), count, length)
    _report(row, beside, without)
    return row


async def _in_turn(cluster: Cluster, state: LargeState, count: int, length: float) -> tuple[list[Block], list[Block]]:
    """Run the blocks in turn. There is one more without uploads, so that each block with is between two without."""
    first = state.load(STATE)
    job_id = await cluster.submit(state.write("uploads", interval="1 h"))
    async with commit_log.watched(cluster) as times, _fed(state, times):
        await commit_log.committed(cluster, first, timeout=300)
        await cluster.client.checkpoint(job_id)
        await commit_log.committed(cluster, max(times, default=first) + WARM, timeout=300)
        beside, without = list[Block](), list[Block]()
        for number in range(2 * count + 1):
            uploads = number % 2 == 1
            block = await _block(cluster, job_id, length, uploads=uploads)
            (beside if uploads else without).append(block)
            await asyncio.sleep(1)  # the log is read every half second
            pairs = [(epoch, at) for epoch, at in sorted(times.items()) if epoch - 1 in times]
            block.batches = [at - times[n - 1] for n, at in pairs if times[n - 1] >= block.since and at <= block.until]
            what = f"{block.uploaded:.0f} MB/s uploaded" if uploads else WITHOUT
            say(f"upload_cost: {block.rows_per_second:,.0f} rows/s, a micro-batch {block.batch_ms:.0f} ms, {what}")
    await cluster.cancel(job_id)
    return beside, without


async def _block(cluster: Cluster, job_id: str, length: float, *, uploads: bool) -> Block:
    watched = _processes(cluster, (await cluster.task_manager_of(job_id)).minflinkd.pid)
    async with _uploading(cluster, job_id, every=EVERY if uploads else None) as checkpoints:
        await asyncio.sleep(SETTLING)
        since, before = time.time(), _seconds(watched)
        await asyncio.sleep(length)
        until, spent = time.time(), _seconds(watched)
    processor = {name: 100 * (seconds - before[name]) / (until - since) for name, seconds in spent.items()}
    return Block(since, until, [c for c in checkpoints if since <= c.trigger_timestamp / 1000 <= until], processor)


@contextlib.asynccontextmanager
async def _uploading(cluster: Cluster, job_id: str, *, every: float | None) -> AsyncIterator[list[Checkpoint]]:
    """Take checkpoints while the block runs, as often as `every` says, and yield their list."""
    taken: list[Checkpoint] = []
    over = asyncio.Event()

    async def take() -> None:
        while every is not None and not over.is_set():
            began = time.monotonic()
            number = await cluster.client.checkpoint(job_id)
            where = f"/jobs/{job_id}/checkpoints/details/{number}"
            taken.append(await cluster.client.get(where, Checkpoint))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), max(0.0, began + every - time.monotonic()))

    async with beside("checkpoints", take(), over=over):
        yield taken


def _processes(cluster: Cluster, supervisor: int) -> dict[str, psutil.Process]:
    return {"supervisor": psutil.Process(supervisor), "daemon": psutil.Process(cluster.process.pid)}


def _seconds(processes: dict[str, psutil.Process]) -> dict[str, float]:
    times = {name: process.cpu_times() for name, process in processes.items()}
    return {name: spent.user + spent.system for name, spent in times.items()}


@contextlib.asynccontextmanager
async def _fed(state: LargeState, times: commit_log.Commits) -> AsyncIterator[None]:
    """Make sure that there are always changes waiting to be processed."""

    async def feed() -> None:
        last = 0
        while True:
            while last < max(times, default=0) + AHEAD:
                last = await asyncio.to_thread(state.change, SHARE)
            await asyncio.sleep(0.5)

    async with beside("feeder", feed()):
        yield


def _report(row: Row, beside: Sequence[Block], without: Sequence[Block]) -> None:
    rates = (WITHOUT, [block.rows_per_second for block in without])
    row.add("throughput, by block", "rows/s", [block.rows_per_second for block in beside], rates)
    medians = (WITHOUT, [block.batch_ms for block in without])
    row.add("a micro-batch, medians of the blocks", "ms", [block.batch_ms for block in beside], medians)
    every = (WITHOUT, [seconds * 1000 for block in without for seconds in block.batches])
    row.add("a micro-batch, all", "ms", [seconds * 1000 for block in beside for seconds in block.batches], every)
    losses = [
        100 * (1 - block.rows_per_second / statistics.mean([one.rows_per_second, other.rows_per_second]))
        for block, one, other in zip(beside, without, without[1:], strict=False)
    ]
    met = "met" if statistics.median(losses) < AIM else "missed"
    row.add(f"loss of throughput beside the neighbouring blocks; under {AIM:g} %: {met}", "%", losses)
    checkpoints = [checkpoint for block in beside for checkpoint in block.checkpoints]
    row.add("uploaded by a checkpoint", "MB", [c.checkpointed_size / 1e6 for c in checkpoints])
    row.add("upload", "ms", [max(task.minflinkd.async_ for task in c.tasks.values()) for c in checkpoints])
    row.add("uploaded", "MB/s", [block.uploaded for block in beside])
    for name in ("supervisor", "daemon"):
        other = (WITHOUT, [block.processor[name] for block in without])
        row.add(f"processor of the {name}", "% of a core", [block.processor[name] for block in beside], other)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--quick", action="store_true", help="2 blocks of 12 s each way instead of 8 of 20 s")
    parser.add_argument("--blocks", type=int, default=0, help="blocks with uploads")
    parser.add_argument("--seconds", type=float, default=0.0, help="of a block")
    options = parser.parse_args()
    run(partial(measure, blocks=options.blocks, seconds=options.seconds), quick=options.quick)


if __name__ == "__main__":
    main()
