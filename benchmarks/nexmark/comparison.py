"""Nexmark: how many events a second each query takes, and what they cost, beside plain PySpark.

Each query reads the same files of events, all of which are there before it begins, and drops its rows. The rate is that
from the end of its first micro-batch to the end of its last one with events, by Spark's commit log, the same instrument
on all sides; so neither the start of a query nor what it writes at its end is in it. Processor time is that of all
processes of a side, from before the query starts until it has ended, divided by the events.

Three sides take turns: a job of minflinkd on a warm TaskManager, with a checkpoint every 10 s; plain PySpark with
Spark's defaults (200 partitions of a shuffle, state on the heap); and plain PySpark with the settings of a
TaskManager's session. All have two threads and a heap of 1 GiB. The queries are those of examples/nexmark, which a test
compares with batches; `job.py` says what differs here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

from benchmarks import commit_log
from benchmarks.figures import Row
from benchmarks.nexmark.events import Events
from benchmarks.nexmark.job import IN_TWO_TASKS, QUERIES, document
from benchmarks.nexmark.plain_process import processor_time
from benchmarks.running import say
from benchmarks.spark_process import SparkProcess, spark_process
from tests.cluster import Cluster, running_cluster, write_job
from tests.waiting import until

SLOTS = 2
OURS, DEFAULTS, TUNED = "minflinkd", "plain PySpark", "plain PySpark, a session's settings"


@dataclass(frozen=True)
class Load:
    """The input of each query: `batches` micro-batches, of one file each."""

    directory: Path
    number: int
    batches: int


@dataclass(frozen=True)
class Run:
    rate: float  # events/s
    processor: float  # seconds per million events


async def measure(base: Path, quick: bool) -> Row:
    row = Row("nexmark", "Nexmark: events per second, and processor time, beside plain PySpark")
    number, batches, turns = (100_000, 10, 1) if quick else (1_000_000, 20, 3)
    load = Load(base / "load", number, batches)
    await asyncio.to_thread(Events(number).write, load.directory / "events", number // batches)
    side = "".join(f"{key},value of {key}\n" for key in range(10_000))
    (load.directory / "side_input.csv").write_text(side)
    settings = {"taskmanager.numberOfTaskSlots": SLOTS, "resourcemanager.max-taskmanagers": 1}
    async with contextlib.AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(running_cluster(base / "cluster", **settings))
        plain = {
            side: await stack.enter_async_context(_plain(base / f"plain-{tuned}", load, tuned=tuned))
            for side, tuned in ((DEFAULTS, False), (TUNED, True))
        }
        await cluster.await_ready(1)
        for name in QUERIES:
            sides = (OURS,) if name in IN_TWO_TASKS else (OURS, DEFAULTS, TUNED)
            found: dict[str, list[Run]] = {side: [] for side in sides}
            for turn in range(turns + 1):  # the first warms up
                for side in found:
                    checkpoint = base / "checkpoints" / f"{name}-{turn}-{side.replace(' ', '-')}"
                    if side == OURS:
                        run = await _ours(cluster, name, load, base)
                    else:
                        run = await _theirs(plain[side], name, load, checkpoint)
                    say(f"nexmark: {name}, turn {turn}, {side}: {run.rate:,.0f} events/s, {run.processor:.1f} s")
                    if turn:
                        found[side].append(run)
            _report(row, name, found)
    return row


def _report(row: Row, name: str, found: dict[str, list[Run]]) -> None:
    ours = found.pop(OURS)
    for side, theirs in found.items() or (("", []),):
        row.add(f"{name}: events", "1/s", [run.rate for run in ours], (side, [run.rate for run in theirs]))
        costs = (side, [run.processor for run in theirs])
        row.add(f"{name}: processor time of a million events", "s", [run.processor for run in ours], costs)


def _plain(base: Path, load: Load, *, tuned: bool) -> contextlib.AbstractAsyncContextManager[SparkProcess]:
    base.mkdir()
    settings = {"base": str(base), "load": str(load.directory), "threads": SLOTS, "tuned": tuned}
    return spark_process("benchmarks.nexmark.plain_process", settings, base / "stderr.log")


async def _theirs(process: SparkProcess, name: str, load: Load, checkpoint: Path) -> Run:
    process.tell(json.dumps([name, str(checkpoint)]).encode())
    answer = await process.answer()
    return _run(load, commit_log.commits(checkpoint), answer["processor"])


async def _ours(cluster: Cluster, name: str, load: Load, base: Path) -> Run:
    job = document(name, load.directory, parallelism=SLOTS)
    before = await asyncio.to_thread(processor_time, cluster.process.pid)
    async with commit_log.watched(cluster) as found:
        job_id = await cluster.submit(write_job(base / f"{name}.json", job))

        async def all_there() -> bool:
            state = (await cluster.client.job(job_id)).state
            assert state not in ("FAILED", "CANCELED"), (await cluster.client.exceptions(job_id)).root_exception
            return len(found) >= load.batches

        await until(all_there, f"{load.batches} micro-batches", timeout=1_800, pause=0.5)
    used = await asyncio.to_thread(processor_time, cluster.process.pid) - before
    await cluster.cancel(job_id)
    return _run(load, found, used)


def _run(load: Load, commits: commit_log.Commits, processor: float) -> Run:
    last = load.batches - 1
    if not {0, last} <= commits.keys():
        raise RuntimeError(f"of {load.batches} micro-batches these were seen: {sorted(commits)}")
    events = load.number * last / load.batches
    return Run(events / (commits[last] - commits[0]), processor / load.number * 1e6)
