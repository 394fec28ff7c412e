"""Scale (R31): one daemon with many TaskManagers and jobs, and how late its event loop runs meanwhile.

The daemon is the real one, its sockets are real, and so is what TaskManagers decide (`benchmarks.swarm`: 8 slots each,
all in one process beside the daemon's). Only Spark is not there: a task is RUNNING once it is deployed, an analysis
finds no fault, and checkpoints are an hour apart. The jobs have one task each, of 1 to 8 slots. Heartbeats are as they
come: 1 s, 5 s.

In turn:
- all TaskManagers connect at once, until all are registered;
- nothing happens for a while;
- all jobs are submitted over HTTP, 32 requests at a time, until all are RUNNING; a job's wait for its slots counts from
  its JobMaster's start;
- all jobs run for a while;
- the daemon is killed (-9) and started again, until all TaskManagers are registered with it and all jobs are RUNNING,
  on the slots that they had; then they run for a while, with JobMasters that began at the same instant;
- the daemon is killed and started again, and other TaskManagers come in the place of all: all jobs need slots at once,
  from the first connection on until the last is RUNNING;
- all jobs are cancelled, until all slots are free.

Lag is measured every 10 ms in the daemon, for each part apart; `own` is without the time in which other processes had
the processor. On two cores daemon and TaskManagers have one each, while nothing else runs: at 1,000 TaskManagers and
500 jobs each needs about half of it, and an overloaded daemon takes TaskManagers for lost. When something has come to
its end is known within 0.1 s, with 500 jobs within 0.5 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import resource
import sys
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psutil

from benchmarks.figures import Row
from benchmarks.running import quick_asked, run, say
from benchmarks.watched_daemon import lag_between
from minflinkd.rest.schemas import JobInfo
from minflinkd.runtime.ids import IdSource
from tests.cluster import Cluster, free_port, running_cluster
from tests.waiting import until

SLOTS = 8
AT_A_TIME = 32  # submissions
MIB = 1 << 20


async def measure(base: Path, quick: bool) -> Row:
    sizes = ((100, 50), (300, 150)) if quick else ((100, 50), (300, 150), (1000, 500))
    row = Row("scale", "Scale: TaskManagers and jobs in one daemon")
    for task_managers, jobs in sizes:
        trial = Trial(row, f"{task_managers} TaskManagers, {jobs} jobs: ", task_managers, jobs, 5 if quick else 20)
        await trial.run(base / str(task_managers))
        say(f"scale: {task_managers} TaskManagers, {jobs} jobs")
    return row


@dataclass
class Trial:
    row: Row
    name: str
    task_managers: int
    jobs: int
    pause: float  # idle seconds
    job_ids: list[str] = field(default_factory=list)
    more: Mapping[str, object] = field(default_factory=dict)  # settings of the daemon

    @property
    def look(self) -> float:
        """Seconds between two queries to the daemon: each costs it time for every job."""
        return max(0.1, self.jobs / 1000)

    async def run(self, base: Path) -> None:
        async with self.watched(base) as cluster:
            self._memory(cluster, "daemon alone: memory")
            async with Swarm(cluster, self.task_managers, offset=0) as swarm:
                async with self._part(cluster, swarm, "registration"):
                    await swarm.go()
                    await self._registered(cluster)
                async with self._part(cluster, swarm, "idle"):
                    await asyncio.sleep(self.pause)
                async with self._part(cluster, swarm, "submission"):
                    await self._submit(cluster)
                    await self._all_run(cluster)
                await self._waits(cluster)
                async with self._part(cluster, swarm, "all run"):
                    await asyncio.sleep(self.pause)
                self._memory(cluster, "all run: memory")
                async with self._part(cluster, swarm, "daemon restarted, the same TaskManagers"):
                    await cluster.kill()
                    await cluster.start_again()
                    await self._registered(cluster)
                    await self._all_run(cluster)
                async with self._part(cluster, swarm, "all run, after the restart"):
                    await asyncio.sleep(self.pause)
                await cluster.kill()
            async with Swarm(cluster, self.task_managers, offset=self.task_managers) as swarm:
                await cluster.start_again()
                async with self._part(cluster, swarm, "daemon restarted, other TaskManagers"):
                    await swarm.go()
                    await self._registered(cluster)
                    await self._all_run(cluster)
                async with self._part(cluster, swarm, "cancellation"):
                    await asyncio.gather(*(cluster.client.cancel(job_id) for job_id in self.job_ids))
                    await self._all_free(cluster)

    @contextlib.asynccontextmanager
    async def watched(self, base: Path) -> AsyncIterator[Cluster]:
        """Run the daemon, without TaskManagers."""
        settings = {
            "rest.port": free_port(),
            "jobmanager.rpc.port": free_port(),
            "resourcemanager.driver": "standalone",
            "resourcemanager.standby-taskmanagers": 0,
            "taskmanager.numberOfTaskSlots": SLOTS,
            **self.more,
        }
        _allow_files(2 * self.task_managers + 2000)
        async with running_cluster(base, serve=("-m", "benchmarks.watched_daemon"), **settings) as cluster:
            yield cluster

    @contextlib.asynccontextmanager
    async def all_running(self, base: Path) -> AsyncIterator[Cluster]:
        """Run the daemon with all TaskManagers and all jobs. They run when the block begins."""
        async with self.watched(base) as cluster, Swarm(cluster, self.task_managers, offset=0) as swarm:
            await swarm.go()
            await self._registered(cluster)
            await self._submit(cluster)
            await self._all_run(cluster)
            yield cluster

    # --- parts ---------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _part(self, cluster: Cluster, swarm: Swarm, name: str) -> AsyncIterator[None]:
        """Measure how long a part takes, the event loop's lag and the processor time."""
        began, daemon = time.time(), psutil.Process(cluster.process.pid)
        cpu, swarm_cpu = _seconds(daemon), _seconds(swarm.running)
        yield
        ended, same = time.time(), cluster.process.pid == daemon.pid
        spent = _seconds(psutil.Process(cluster.process.pid)) - (cpu if same else 0.0)
        lag = lag_between(cluster.launch.base, began, ended)
        self._add(f"{name}: time", "s", ended - began)
        for figure, value in lag.figures().items():
            self._add(f"{name}: {figure}", "ms", value)
        share = 100 / (ended - began)
        self._add(f"{name}: processor time of the daemon", "%", share * spent)
        self._add(f"{name}: processor time of the TaskManagers", "%", share * (_seconds(swarm.running) - swarm_cpu))

    async def _submit(self, cluster: Cluster) -> None:
        rng, ids, turn = random.Random(0), IdSource(random.Random(0)), asyncio.Semaphore(AT_A_TIME)

        async def submit(job_id: str, document: bytes) -> None:
            async with turn:
                await cluster.client.submit(job_id, document)

        self.job_ids = [ids.job() for _ in range(self.jobs)]
        documents = [_document(f"job{n}", rng.randint(1, SLOTS)) for n in range(self.jobs)]
        await asyncio.gather(*map(submit, self.job_ids, documents))

    async def _waits(self, cluster: Cluster) -> None:
        """Add the jobs' longest wait for their slots, and the time from the first submission to the last slot."""
        jobs: list[JobInfo] = [await cluster.client.job(job_id) for job_id in self.job_ids]
        self._add("submission: longest wait of a job for its slots", "s", max(_slots_after(job) for job in jobs))
        began = min(job.start_time for job in jobs) / 1000
        served = max(job.timestamps["CREATED"] / 1000 + _slots_after(job) for job in jobs)
        self._add("submission: first accepted -> all have their slots", "s", served - began)

    def _memory(self, cluster: Cluster, name: str) -> None:
        self._add(name, "MiB", psutil.Process(cluster.process.pid).memory_info().rss / MIB)

    def _add(self, name: str, unit: str, value: float) -> None:
        self.row.add(self.name + name, unit, [value])

    # --- conditions ----------------------------------------------------------------------------------------------

    async def _registered(self, cluster: Cluster) -> None:
        async def registered() -> bool:
            return (await cluster.client.overview()).taskmanagers == self.task_managers

        await until(registered, f"{self.task_managers} TaskManagers", timeout=180, pause=self.look)

    async def _all_run(self, cluster: Cluster) -> None:
        async def run() -> bool:
            found = (await cluster.client.jobs()).jobs
            return len(found) == self.jobs and all(job.tasks.running == job.tasks.total for job in found)

        await until(run, f"{self.jobs} jobs that run", timeout=180, pause=self.look)

    async def _all_free(self, cluster: Cluster) -> None:
        async def free() -> bool:
            found = await cluster.client.overview()
            return found.slots_available == found.slots_total

        await until(free, "free slots", timeout=180, pause=self.look)


class Swarm:
    """The process that simulates TaskManagers. It lives as long as the block; `go` makes them connect."""

    def __init__(self, cluster: Cluster, count: int, *, offset: int) -> None:
        secret, port = cluster.state / "cluster.secret", cluster.settings["jobmanager.rpc.port"]
        options = {"count": count, "slots": SLOTS, "port": port, "secret-file": secret, "offset": offset}
        self._options = [part for key, value in options.items() for part in (f"--{key}", str(value))]

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.swarm", *self._options),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(60):
            assert await self._process.stdout.readline() == b"ready\n"
        self.running = psutil.Process(self._process.pid)
        return self

    async def __aexit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        await self._process.stdin.drain()


def _document(name: str, parallelism: int) -> bytes:
    graph = {
        "name": name,
        "parallelism": parallelism,
        "checkpointing": {"interval": "1 h"},
        "vertices": {
            "ticks": {"source": {"format": "rate"}},
            "out": {"inputs": ["ticks"], "sink": {"format": "parquet", "path": f"/nowhere/{name}"}},
        },
    }
    return json.dumps(graph).encode()


def _slots_after(job: JobInfo) -> float:
    """Return the seconds from the start of the job's JobMaster until it had its slots."""
    return job.minflinkd.submission["slots"]


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _allow_files(count: int) -> None:
    """Raise the limit on open files, one per connection. The daemon and the swarm inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))


if __name__ == "__main__":
    run(measure, quick=quick_asked(__doc__))
