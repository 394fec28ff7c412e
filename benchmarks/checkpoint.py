"""Checkpoints of a tiny state: time, bytes, files; beside what plain PySpark writes for every micro-batch.

The job reads a file of 100 rows every 0.2 s and is checkpointed every 3 s, which is about ten micro-batches. Files are
counted by name in the checkpoint directory, looked at every 20 ms; no name is used twice, and a completed checkpoint
is kept until after the next one. Plain PySpark runs the same query with the same partitions and its checkpoint
directory on the same disk; counted are the files that appeared after its first micro-batch. On a local disk it writes
a `.crc` beside each, counted apart: other storages do without. Requests to the storage are those that the TaskManager
counts itself, sinks included: an object written is one, however many pieces it is made of.

Trigger -> complete is the coordinator's; sync and async are the task's (sync: hard links at the micro-batch's end;
async: the upload). The rest is the wait for the end of the micro-batch that was in progress, messages and metadata.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.figures import Row
from benchmarks.plain import run_plain
from benchmarks.running import quick_asked, run, say
from benchmarks.workload import fed, streaming
from tests.beside import beside
from tests.cluster import Cluster, running_cluster
from tests.waiting import until
from tests.windows_job import WindowsJob

PLAIN = "plain PySpark"


async def measure(base: Path, quick: bool) -> Row:
    partitions, checkpoints, plain_files = ((8,), 4, 10) if quick else ((2, 8, 32), 12, 30)
    row = Row("checkpoint", "Checkpoints of a tiny state")
    settings = {"taskmanager.numberOfTaskSlots": max(partitions), "resourcemanager.max-taskmanagers": 1}
    found: dict[int, Measured] = {}
    async with running_cluster(base / "cluster", **settings) as cluster:
        await cluster.await_ready(1)
        for count in partitions:
            found[count] = await _checkpoints(cluster, base / f"events{count}", count, checkpoints)
            say(f"checkpoint: {count} partitions")
    for count, ours in found.items():
        job = WindowsJob(base / f"plain{count}", files=plain_files)
        job.write_events()
        plain = await run_plain(job, job.base / "work", parallelism=count, threads=2)
        _report(row, count, ours, _plain_files(plain.checkpoint))
        say(f"checkpoint: {count} partitions, {PLAIN}")
    return row


@dataclass
class Measured:
    """The measurements of one job, after its first completed checkpoint."""

    parts: list[dict[str, float]] = field(default_factory=list)  # milliseconds, by checkpoint
    sizes: list[tuple[float, float]] = field(default_factory=list)  # bytes uploaded and referenced
    batch_ms: list[float] = field(default_factory=list)
    files: int = 0
    batches: int = 0
    requests: dict[str, float] = field(default_factory=dict)  # of the TaskManager, by kind


@dataclass(frozen=True)
class PlainFiles:
    """Averages per micro-batch. `files` and `size` exclude the .crc files."""

    files: float
    crc: float
    size: float


def _report(row: Row, count: int, ours: Measured, plain: PlainFiles) -> None:
    at = f"{count} partitions: "
    done = len(ours.parts)
    row.add_phases(at, ours.parts, unit="ms")
    row.add(f"{at}a micro-batch of this job", "ms", ours.batch_ms)
    row.add(f"{at}bytes uploaded by a checkpoint", "bytes", [uploaded for uploaded, _ in ours.sizes])
    row.add(f"{at}bytes a checkpoint refers to", "bytes", [referenced for _, referenced in ours.sizes])
    row.add(f"{at}files created for a checkpoint", "files", [ours.files / done])
    row.add(f"{at}micro-batches for a checkpoint", "", [ours.batches / done])
    beside = (f"{PLAIN}, besides {plain.crc:.1f} .crc", [plain.files])
    row.add(f"{at}files created for a micro-batch", "files", [ours.files / max(ours.batches, 1)], beside)
    stored = sum(uploaded for uploaded, _ in ours.sizes) / max(ours.batches, 1)
    row.add(f"{at}bytes of state stored for a micro-batch", "bytes", [stored], (PLAIN, [plain.size]))
    for kind, requests in sorted(ours.requests.items()):
        row.add(f"{at}requests to the storage for a checkpoint: {kind}", "", [requests / done])


async def _checkpoints(cluster: Cluster, base: Path, count: int, wanted: int) -> Measured:
    """Run the job for `wanted` checkpoints after its first."""
    job = WindowsJob(base, files=0)
    measured = Measured()
    async with fed(job, pace=0.2):
        job_id = await cluster.submit(streaming(job, f"p{count}", parallelism=count, checkpoint_interval="3 s"))
        async with _created(cluster.state / "checkpoints" / job_id) as created:
            await cluster.await_checkpoints(job_id, 1)
            before = await _requests(cluster, job_id)
            first, files, batches = await _latest(cluster, job_id), len(created), await _batches(cluster, job_id)
            while len(measured.parts) < wanted:
                last = await _next_checkpoint(cluster, job_id, first + len(measured.parts))
                measured.parts.append(_parts(last))
                measured.sizes.append((last["checkpointed_size"], last["state_size"]))
                vertex = (await cluster.client.job(job_id)).vertices[0]
                measured.batch_ms.append(vertex.minflinkd.batch_duration)
            measured.files = len(created) - files
            measured.batches = await _batches(cluster, job_id) - batches
            after = await _requests(cluster, job_id)
            measured.requests = {kind: made - before.get(kind, 0.0) for kind, made in after.items()}
        await cluster.cancel(job_id)
    return measured


def _parts(checkpoint: dict[str, Any]) -> dict[str, float]:
    whole = checkpoint["end_to_end_duration"] + checkpoint["minflinkd"]["metadata"]
    sync = max(task["minflinkd"]["sync"] for task in checkpoint["tasks"].values())
    upload = max(task["minflinkd"]["async"] for task in checkpoint["tasks"].values())
    return {
        "trigger -> complete": whole,
        "sync part": sync,
        "async part": upload,
        "waiting for the micro-batch, messages, metadata": max(0.0, whole - sync - upload),
    }


async def _latest(cluster: Cluster, job_id: str) -> int:
    latest = (await cluster.client.checkpoints(job_id)).latest.completed
    assert latest is not None
    return latest.id


async def _next_checkpoint(cluster: Cluster, job_id: str, after: int) -> dict[str, Any]:
    """Return the details of the completed checkpoint `after` + 1."""

    async def there() -> bool:
        return await _latest(cluster, job_id) > after

    await until(there, f"checkpoint {after + 1}")
    return await cluster.client.get(f"/jobs/{job_id}/checkpoints/details/{after + 1}", dict[str, Any])


async def _batches(cluster: Cluster, job_id: str) -> int:
    return (await cluster.client.job(job_id)).vertices[0].minflinkd.batches


async def _requests(cluster: Cluster, job_id: str) -> dict[str, float]:
    """Return the requests so far by kind (`create` and so on), from a heartbeat of the last second."""
    runner = await cluster.measured((await cluster.task_manager_of(job_id)).id)
    found = {
        tuple(key.split(".")): value
        for key, value in runner.minflinkd.metrics.items()
        if key.startswith("storage.file.")
    }
    return {kind: value for (_, _, kind, what), value in found.items() if what == "requests"}


@contextlib.asynccontextmanager
async def _created(directory: Path) -> AsyncIterator[set[Path]]:
    """Collect every file that appears in the directory while the block runs."""
    seen: set[Path] = set()

    async def look() -> None:
        while True:
            seen.update(await asyncio.to_thread(_files, directory))
            await asyncio.sleep(0.02)

    async with beside("looker", look()):
        yield seen


def _files(directory: Path) -> list[Path]:
    return [Path(path) / name for path, _, names in os.walk(directory) for name in names]


def _plain_files(checkpoint: Path) -> PlainFiles:
    """Return the averages for the micro-batches after the first."""
    first = (checkpoint / "commits" / "0").stat().st_mtime_ns
    batches = len([path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()]) - 1
    new = [path for path in checkpoint.rglob("*") if path.is_file() and path.stat().st_mtime_ns > first]
    sums = [path for path in new if path.suffix == ".crc"]
    size = sum(path.stat().st_size for path in new if path.suffix != ".crc")
    return PlainFiles((len(new) - len(sums)) / batches, len(sums) / batches, size / batches)


if __name__ == "__main__":
    run(measure, quick=quick_asked(__doc__))
