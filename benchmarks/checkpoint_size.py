"""Checkpoints of a large state: time by phase, and what an upload of 200 MB costs the micro-batches beside it.

By phase, for each size of state: one event file makes the state in one micro-batch, and micro-batches of ten rows
follow every 0.2 s. "Full" are the checkpoints that upload at least half of the state (first the changelogs of the large
micro-batch, later what RocksDB has made of them), "next" those that upload what the small micro-batches have changed.
The wait is for the end of the micro-batch in progress, which for a full checkpoint may be the large one; it holds up no
other work, and is shown apart.

Beside an upload: all event files are there from the start, so that micro-batches follow each other without a pause.
Every 80 small ones a large one writes all of the state anew. A small micro-batch counts as "beside an upload" if it
overlaps one of at least 100 MB; the others are those "without". Large ones, and the one after each, are left out.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from benchmarks import commit_log
from benchmarks.figures import Row
from benchmarks.large_state import LargeState
from benchmarks.running import quick_asked, run, say
from tests.beside import beside
from tests.cluster import Cluster, running_cluster
from tests.waiting import until

INTERVAL = 4.0  # seconds
UPLOAD = 200  # MB
BETWEEN = 80  # small micro-batches after a large one


async def measure(base: Path, quick: bool) -> Row:
    row = Row("checkpoint_size", "Checkpoints of a large state")
    sizes, rounds = ((1, 100), 2) if quick else ((1, 100, 1000), 4)
    settings = {
        "taskmanager.numberOfTaskSlots": 2,
        "taskmanager.memory.heap.size": "3 GiB",
        "resourcemanager.max-taskmanagers": 1,
    }
    async with running_cluster(base / "cluster", **settings) as cluster:
        await cluster.await_ready(1)
        for size in sizes:
            await _phases(row, cluster, base / f"state{size}", size, 3 if quick else 6)
            say(f"checkpoint_size: {size} MB")
        await _beside_uploads(row, cluster, base / "uploads", rounds)
    return row


async def _phases(row: Row, cluster: Cluster, base: Path, size: int, wanted: int) -> None:
    state = LargeState(base)
    last = state.load(size)
    async with (
        _stepping(state, 0.2),
        _running(cluster, state, f"state{size}") as (job_id, seen),
        commit_log.watched(cluster) as times,
    ):
        await _processed(cluster, job_id, times, last)

        def following() -> list[dict[str, Any]]:
            done = [c for _, c in sorted(seen.items())]
            return [c for c in done if size / 2 * 1e6 <= c["state_size"] and not _is_full(c, size)]

        await until(
            _there(lambda: len(following()) >= wanted), f"{wanted} checkpoints that follow a full one", timeout=300
        )
        full = [c for _, c in sorted(seen.items()) if _is_full(c, size)]
    for kind, checkpoints in (("full", full), ("next", following())):
        at = f"{size} MB, {kind}: "
        row.add_phases(at, [_parts(c) for c in checkpoints], unit="ms")
        row.add(f"{at}uploaded", "MB", [c["checkpointed_size"] / 1e6 for c in checkpoints])
        row.add(f"{at}state", "MB", [c["state_size"] / 1e6 for c in checkpoints])


def _is_full(checkpoint: dict[str, Any], size: int) -> bool:
    return bool(checkpoint["checkpointed_size"] >= size / 2 * 1e6)


async def _beside_uploads(row: Row, cluster: Cluster, base: Path, rounds: int) -> None:
    state = LargeState(base)
    large = []
    for _ in range(rounds):
        large.append(state.load(UPLOAD))
        last = [state.step() for _ in range(BETWEEN)][-1]
    async with _running(cluster, state, "uploads") as (job_id, seen), commit_log.watched(cluster) as times:
        await _processed(cluster, job_id, times, last)
        highest = max(seen, default=0)
        await until(_there(lambda: max(seen, default=0) > highest), "one more checkpoint", timeout=120)
    uploads = [_upload(c) for c in seen.values() if c["checkpointed_size"] >= UPLOAD / 2 * 1e6]
    beside, without = list[float](), list[float]()
    for epoch, ended in sorted(times.items()):
        if epoch in large or epoch - 1 in large or epoch - 1 not in times:
            continue
        began = times[epoch - 1]
        overlaps = any(began < until_ and since < ended for since, until_ in uploads)
        (beside if overlaps else without).append((ended - began) * 1000)
    what = ("without an upload", without)
    row.add(f"a micro-batch beside an upload of {UPLOAD} MB", "ms", beside, what)
    row.add(f"uploads of {UPLOAD} MB: time", "ms", [(until_ - since) * 1000 for since, until_ in uploads])


@contextlib.asynccontextmanager
async def _running(
    cluster: Cluster, state: LargeState, name: str
) -> AsyncIterator[tuple[str, dict[int, dict[str, Any]]]]:
    """Run the job, and collect the details of its checkpoints as they complete."""
    job_id = await cluster.submit(state.write(name, interval=f"{INTERVAL} s"))
    seen: dict[int, dict[str, Any]] = {}

    async def look() -> None:
        while True:
            for checkpoint in (await cluster.client.get(f"/jobs/{job_id}/checkpoints", dict[str, Any]))["history"]:
                number = checkpoint["id"]
                if checkpoint["status"] == "COMPLETED" and number not in seen:
                    where = f"/jobs/{job_id}/checkpoints/details/{number}"
                    seen[number] = await cluster.client.get(where, dict[str, Any])
            await asyncio.sleep(0.5)

    async with beside("looker", look()):
        yield job_id, seen
    await cluster.cancel(job_id)


@contextlib.asynccontextmanager
async def _stepping(state: LargeState, pace: float) -> AsyncIterator[None]:
    async def step() -> None:
        while True:
            await asyncio.to_thread(state.step)
            await asyncio.sleep(pace)

    async with beside("stepper", step()):
        yield


async def _processed(cluster: Cluster, job_id: str, times: commit_log.Commits, epoch: int) -> None:
    async def there() -> bool:
        job = await cluster.client.job(job_id)
        assert job.state not in ("FAILED", "CANCELED"), (await cluster.client.exceptions(job_id)).root_exception
        return epoch in times

    await until(there, f"micro-batch {epoch}", timeout=900, pause=0.5)


def _there(condition: Any) -> Any:
    async def ask() -> bool:
        return bool(condition())

    return ask


def _parts(checkpoint: dict[str, Any]) -> dict[str, float]:
    """Return milliseconds by part. A checkpoint's duration ends with the last acknowledgement, as in Flink."""
    tasks = [*checkpoint["tasks"].values()]
    own, acknowledged = checkpoint["minflinkd"], checkpoint["end_to_end_duration"]
    wait, sync, upload = (max(_of(task, part) for task in tasks) for part in ("wait", "sync", "async"))
    parts = {
        "trigger -> complete": acknowledged + own["metadata"],
        "trigger -> complete, without the wait": max(0.0, acknowledged - wait) + own["metadata"],
        "wait for the micro-batch": wait,
        "sync: links": sync,
        "upload": upload,
        "trigger, acknowledgement: messages": max(0.0, acknowledged - wait - sync - upload),
        "metadata": own["metadata"],
    }
    return parts | ({"notified, published": own["notify"]} if own["notify"] >= 0 else {})


def _of(task: dict[str, Any], part: str) -> float:
    return float(task["minflinkd"][part])


def _upload(checkpoint: dict[str, Any]) -> tuple[float, float]:
    """Return the begin and end of the upload, in seconds since 1970."""
    task = max(checkpoint["tasks"].values(), key=lambda each: _of(each, "async"))
    acknowledged = task["latest_ack_timestamp"] / 1000
    return acknowledged - _of(task, "async") / 1000, acknowledged


if __name__ == "__main__":
    run(measure, quick=quick_asked(__doc__))
