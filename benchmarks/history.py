"""History and events (E16): what it costs a daemon to remember metrics, and to tell many listeners of changes.

The daemon is the real one, and TaskManagers are played (`benchmarks.swarm`), as in `benchmarks.scale`: tasks tell of a
micro-batch every second, and Spark is not there. In turn:

- 1,000 TaskManagers and 500 jobs run for a while: a sample of all jobs every 5 s is a part of the event loop's lag, and
  of the processor time. `a sample of all jobs` is measured in this process, with the same number of jobs whose details
  are at hand: what it takes to compute, encode and remember them;
- 100 jobs, and 200 clients that listen: half of them to all jobs, the others to one job each;
- the same, while 20 of the clients read nothing.

Memory is that of the daemon's process. Lag is measured every 10 ms in the daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import psutil
from msgspec.structs import replace

from benchmarks.figures import Row
from benchmarks.running import quick_asked, run, say
from benchmarks.scale import MIB, Trial
from benchmarks.watched_daemon import lag_between
from minflinkd.metrics.history.book import HistoryBook
from minflinkd.rest.backend import Backend
from minflinkd.rest.history.sampler import Sampler
from minflinkd.rpc.local import LocalNetwork
from minflinkd.runtime.ids import JobId
from tests.beside import beside
from tests.cluster import Cluster
from tests.tokens import bearer
from tests.unit.rest.parties import Dispatcher, ResourceManager, details

LISTENERS = 200
STALLED = 20
SAMPLES = 5


async def measure(base: Path, quick: bool) -> Row:
    row = Row("history", "History and events of one daemon")
    await _one_sample(row, 100 if quick else 500)
    sizes = (100, 50) if quick else (1000, 500)
    pause = 12 if quick else 60
    await _sampled(row, base / "sampled", *sizes, pause)
    await _listened(row, base / "listened", 20 if quick else 100, pause)
    return row


async def _one_sample(row: Row, jobs: int) -> None:
    network = LocalNetwork()
    dispatcher, manager = Dispatcher(network), ResourceManager(network)
    assert manager is not None
    dispatcher.jobs = {JobId(f"{n:032x}"): details(JobId(f"{n:032x}")) for n in range(jobs)}
    book = HistoryBook()
    sampler = Sampler(Backend(network), book)
    taken = []
    for _ in range(SAMPLES):
        for job_id, job in dispatcher.jobs.items():
            first, *others = job.tasks
            metrics = replace(first.metrics, batch_id=first.metrics.batch_id + 1, rows_in=first.metrics.rows_in + 100)
            dispatcher.jobs[job_id] = replace(job, tasks=(replace(first, metrics=metrics), *others))
        began = time.process_time()
        await sampler.sample()
        taken.append(1000 * (time.process_time() - began))
    row.add(f"a sample of {jobs} jobs with 2 tasks each", "ms", taken)
    await network.aclose()
    say("history: a sample")


async def _sampled(row: Row, base: Path, task_managers: int, jobs: int, pause: float) -> None:
    name = f"{task_managers} TaskManagers, {jobs} jobs: "
    trial = Trial(row, name, task_managers, jobs, pause)
    async with trial.all_running(base) as cluster:
        await _quiet(row, cluster, f"{name}all run: ", pause)
        process = psutil.Process(cluster.process.pid)
        row.add(f"{name}memory", "MiB", [process.memory_info().rss / MIB])
    say(f"history: {name}")


async def _listened(row: Row, base: Path, jobs: int, pause: float) -> None:
    trial = Trial(row, f"{jobs} jobs: ", 2 * jobs, jobs, pause)
    async with trial.all_running(base) as cluster:
        await _quiet(row, cluster, f"{jobs} jobs, nobody listens: ", pause)
        process = psutil.Process(cluster.process.pid)
        before = process.memory_info().rss
        for stalled in (0, STALLED):
            name = f"{jobs} jobs, {LISTENERS} listen"
            name += f", {stalled} of them read nothing: " if stalled else ": "
            async with _listeners(cluster, trial.job_ids, stalled) as events:
                await _quiet(row, cluster, name, pause)
                row.add(f"{name}memory besides", "MiB", [(process.memory_info().rss - before) / MIB])
                row.add(f"{name}bytes to a listener", "kB/s", [events.bytes / 1000 / pause / (LISTENERS - stalled)])
    say(f"history: {LISTENERS} listeners")


class _Heard:
    bytes = 0


@contextlib.asynccontextmanager
async def _listeners(cluster: Cluster, job_ids: list[str], stalled: int) -> AsyncIterator[_Heard]:
    heard, ready = _Heard(), asyncio.Semaphore(0)

    async def listen(session: aiohttp.ClientSession, path: str, *, reads: bool) -> None:
        async with session.get(path) as response:
            assert response.status == 200, await response.text()
            ready.release()
            if not reads:
                await asyncio.Event().wait()
            async for piece in response.content.iter_any():
                heard.bytes += len(piece)

    async def listen_all() -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        connector = aiohttp.TCPConnector(limit=0)
        async with (
            aiohttp.ClientSession(
                cluster.url, headers=bearer(cluster.state), connector=connector, timeout=timeout
            ) as session,
            asyncio.TaskGroup() as group,
        ):
            for number in range(LISTENERS):
                path = "/events" if number % 2 else f"/jobs/{job_ids[number // 2 % len(job_ids)]}/events"
                group.create_task(listen(session, path, reads=number >= stalled))

    async with beside("listeners", listen_all()):
        for _ in range(LISTENERS):
            async with asyncio.timeout(60):
                await ready.acquire()
        heard.bytes = 0
        yield heard


async def _quiet(row: Row, cluster: Cluster, name: str, pause: float) -> None:
    """Let it run for a while, and add the lag and the processor time meanwhile."""
    process = psutil.Process(cluster.process.pid)
    before, began = process.cpu_times(), time.time()
    await asyncio.sleep(pause)
    ended, after = time.time(), process.cpu_times()
    lag = lag_between(cluster.launch.base, began, ended)
    for figure, value in lag.figures().items():
        row.add(f"{name}{figure}", "ms", [value])
    spent = after.user + after.system - before.user - before.system
    row.add(f"{name}processor time of the daemon", "%", [100 * spent / (ended - began)])


if __name__ == "__main__":
    run(measure, quick=quick_asked(__doc__))
