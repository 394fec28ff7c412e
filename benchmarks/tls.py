"""TLS: submissions, checkpoints and blobs with TLS on every connection, beside a daemon without.

Two daemons at once, each with a warm TaskManager, used in turn, A B A B. The jobs are those of the rows `submit` and
`checkpoint`. A checkpoint is triggered over HTTP, in a job that writes its state every 0.2 s; its time is the
coordinator's. Blobs go to the daemon's BlobServer and into a cache as TaskManagers have: PUT and GET of the row `blob`.
Only what runs on this machine is encrypted here, so the cost is that of the processor, and not of a network.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.figures import Row
from benchmarks.running import quick_asked, run, say
from benchmarks.submit import submitted
from benchmarks.workload import fed, streaming
from minflinkd.blob.cache import BlobCache
from minflinkd.blob.keys import BlobKey
from minflinkd.runtime.ids import IdSource
from tests.cluster import Cluster, running_cluster
from tests.tls import CaInTest, everywhere
from tests.windows_job import WindowsJob

MIB = 1 << 20
SIZES = {"1 KiB": 1024, "10 MiB": 10 * MIB, "100 MiB": 100 * MIB}
WITHOUT = "without TLS"


async def measure(base: Path, quick: bool) -> Row:
    submissions, checkpoints, blobs = (3, 4, 4) if quick else (12, 16, 20)
    slots = {"taskmanager.numberOfTaskSlots": 2, "resourcemanager.max-taskmanagers": 1}
    ca = CaInTest(base / "ca")
    secure = everywhere(ca.files("daemon"))
    async with AsyncExitStack() as stack:
        plain = await stack.enter_async_context(running_cluster(base / "plain", **slots))
        tls = await stack.enter_async_context(running_cluster(base / "tls", ca_file=ca.ca, **slots, **secure))
        both = [Daemon("plain", plain), Daemon("tls", tls)]
        for one in both:
            await one.cluster.await_ready(1)
        await _submit(both, base, submissions)
        await _checkpoint(both, base, checkpoints)
        await _blobs(both, base, blobs)
    row = Row("tls", "TLS on every connection, beside none")
    for name, values in both[1].seconds.items():
        ms = 1 if name.startswith("submit") else 1000
        theirs = [value * ms for value in both[0].seconds[name]]
        row.add(name, "s" if ms == 1 else "ms", [value * ms for value in values], (WITHOUT, theirs))
    return row


@dataclass
class Daemon:
    name: str
    cluster: Cluster
    seconds: dict[str, list[float]] = field(default_factory=dict)  # by figure

    def add(self, figure: str, seconds: float) -> None:
        self.seconds.setdefault(figure, []).append(seconds)


async def _submit(both: list[Daemon], base: Path, repetitions: int) -> None:
    job = WindowsJob(base, files=3)
    job.write_events()
    for n in range(repetitions + 1):
        for one in both:
            times, _ = await submitted(one.cluster, job, f"{one.name}{n}")
            if n:  # the first job of a TaskManager is another figure
                for name in ("accepted", "running", "first_batch"):
                    one.add(f"submit -> {name.replace('_', ' ')}", times[name])
        say(f"tls: submission {n} of {repetitions}")


async def _checkpoint(both: list[Daemon], base: Path, repetitions: int) -> None:
    job = WindowsJob(base / "fed", files=0)
    async with fed(job, pace=0.2):
        running = []
        for one in both:
            file = streaming(job, f"fed-{one.name}", parallelism=2, checkpoint_interval="1 h")
            running.append((one, await one.cluster.submit(file)))
        for one, job_id in running:
            await one.cluster.await_state(job_id, "RUNNING")
        for n in range(repetitions + 1):
            for one, job_id in running:
                number = await one.cluster.client.checkpoint(job_id)
                latest = (await one.cluster.client.checkpoints(job_id)).latest.completed
                assert latest is not None
                assert latest.id == number
                if n:
                    one.add("checkpoint", latest.end_to_end_duration / 1000)
        for one, job_id in running:
            await one.cluster.cancel(job_id)
    say("tls: checkpoints")


async def _blobs(both: list[Daemon], base: Path, repetitions: int) -> None:
    job_id, file = IdSource().job(), base / "file"
    for name, size in SIZES.items():
        for n in range(repetitions + 1):
            for one in both:
                await asyncio.to_thread(file.write_bytes, os.urandom(size))
                async with await one.cluster.client.blob_server() as client:
                    await client.upload(job_id, small(base))  # opens the connection
                    began = time.perf_counter()
                    stored = await client.upload(job_id, file)
                    put = time.perf_counter() - began
                    async with BlobCache(directory=base / "cache", client=client) as cache:
                        began = time.perf_counter()
                        await cache.get(job_id, BlobKey.parse(stored.key))
                        got = time.perf_counter() - began
                    await client.delete_job(job_id)
                if n:
                    one.add(f"blob of {name}, PUT", put)
                    one.add(f"blob of {name}, GET", got)
        say(f"tls: blobs of {name}")


def small(base: Path) -> Path:
    file = base / "small"
    file.write_bytes(os.urandom(16))
    return file


if __name__ == "__main__":
    run(measure, quick=quick_asked(__doc__))
