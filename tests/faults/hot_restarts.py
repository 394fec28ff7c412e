"""A job through its versions. It always has traffic, and in the end its output has every row once."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.dataset

from minflinkd.cli.submission import restart
from minflinkd.rest.schemas import HotRestartInfo, JobInfo
from minflinkd.runtime.errors import MinflinkError
from tests.beside import beside
from tests.cluster import Cluster
from tests.waiting import LOOK, until
from tests.windows_job import SQL, WindowsJob, leftovers, result

ONE = {
    "resourcemanager.standby-taskmanagers": 1,
    "resourcemanager.max-taskmanagers": 1,
    "taskmanager.numberOfTaskSlots": 4,
    "heartbeat.timeout": "10 s",
    "task.cancellation.timeout": "10 s",  # a version that hangs costs the session
}


NOTHING: Mapping[str, Any] = {}
AHEAD = 6  # event files that are there but not yet read
TAGGED = SQL.replace("SELECT ", "SELECT '${version}' AS version, ", 1)


@dataclass
class Versions:
    """One job that reads files which keep coming. Each version writes its tag beside every row."""

    cluster: Cluster
    windows: WindowsJob
    job_id: str = ""

    @property
    def output(self) -> Path:
        return self.windows.base / "out"

    def write(
        self, tag: str, *, artifact: str = "", sql: str = TAGGED, vertices: Mapping[str, Any] = NOTHING, **changes: Any
    ) -> Path:
        """Write the job file of a version. `vertices` replaces or adds vertices; `changes` replaces top-level keys."""
        windows = replace(self.windows, artifact=artifact) if artifact else self.windows
        document = json.loads(windows.write("out", mode="streaming").read_text())
        document["params"]["version"] = tag
        document["vertices"]["minutes"]["sql"] = sql
        document["vertices"] |= vertices
        document |= changes
        file = self.windows.base / "out-job/job.yaml"
        file.write_text(json.dumps(document))
        return file

    @property
    def files(self) -> int:
        return len(list(self.windows.events.glob("[0-9]*")))

    @contextlib.asynccontextmanager
    async def fed(self) -> AsyncIterator[None]:
        """While the block runs, there is always something to read, but never much."""

        async def feed() -> None:
            while True:
                with contextlib.suppress(MinflinkError):  # the daemon may be down
                    for task in (await self.cluster.client.job(self.job_id)).vertices:  # none without a JobMaster
                        more = max(0, task.minflinkd.batch_id + AHEAD - self.files)
                        await asyncio.to_thread(self.windows.write_events, self.files, more)
                await asyncio.sleep(LOOK)

        async with beside("feeder", feed()):
            yield

    async def goes_on(self) -> None:
        """Wait until the current version has a checkpoint of its own and closes windows."""
        await self.cluster.await_job(self.job_id, closes_windows, "has closed windows")

    async def more_events(self, count: int = 3) -> None:
        await asyncio.to_thread(self.windows.write_events, self.files, count)

    async def reads_all(self) -> None:
        """Wait until a checkpoint of the current version covers all events."""

        async def covered() -> bool:
            offsets = await self.cluster.client.get(f"/jobs/{self.job_id}/offsets", dict[str, Any])
            found = [t["published"]["events"] for t in offsets["tasks"].values() if "events" in t["published"]]
            return bool(found) and int(found[0]["logOffset"]) + 1 == self.files

        await until(covered, "all events are covered by a checkpoint", timeout=60)

    def written(self) -> list[str]:
        """Return the tags in the output, in the order of time."""
        rows = pyarrow.dataset.dataset(self.output, format="parquet").to_table(columns=["minute", "version"])
        return [tag for _, tag in sorted({(row["minute"], row["version"]) for row in rows.to_pylist()})]


@contextlib.asynccontextmanager
async def running_versions(cluster: Cluster, base: Path, **changes: Any) -> AsyncIterator[Versions]:
    """A job whose version "1" runs. At the end, every row must be in its output, once.

    `changes` replaces top-level keys of its job file.
    """
    versions = Versions(cluster, WindowsJob(base))
    versions.windows.write_events(count=AHEAD)
    versions.job_id = await cluster.submit(versions.write("1", **changes))
    try:
        async with versions.fed():
            await versions.goes_on()
            await cluster.await_checkpoints(versions.job_id, 2)
            yield versions
            await versions.goes_on()
        await drained(cluster, versions.job_id, base / "savepoints", source="events", files=versions.files)
    finally:
        await cluster.cancel_all()
    assert result(versions.output) == versions.windows.expected()
    assert leftovers(versions.output) == []
    assert versions.written() == sorted(versions.written()), "no version wrote after the next"


@contextlib.asynccontextmanager
async def idle_versions(cluster: Cluster, base: Path) -> AsyncIterator[Versions]:
    """A job whose version "1" has read all its input. Its output is compared at the end."""
    versions = Versions(cluster, WindowsJob(base))
    versions.windows.write_events(count=AHEAD)
    versions.job_id = await cluster.submit(versions.write("1"))
    try:
        await versions.reads_all()
        yield versions
        await drained(cluster, versions.job_id, base / "savepoints", source="events", files=versions.files)
    finally:
        await cluster.cancel_all()
    assert result(versions.output) == versions.windows.expected()
    assert leftovers(versions.output) == []


def closes_windows(job: JobInfo) -> bool:
    return job.state == "RUNNING" and job.vertices[0].minflinkd.batches > 4


async def on_trial(cluster: Cluster, job_id: str, file: Path) -> int:
    """Begin a hot restart, and return its number when its version waits for input."""
    accepted = await restart(cluster.client, job_id, file, params={}, options={}, tell=lambda _: None)

    async def waits() -> bool:
        job = await cluster.client.job(job_id)
        last = job.minflinkd.hot_restarts[0]
        assert not last.over, last
        return last.number == accepted.number and last.state == "on-trial"

    await until(waits, f"hot restart {accepted.number} is on trial", timeout=60)
    return accepted.number


async def restarted(cluster: Cluster, job_id: str, file: Path, **options: str) -> HotRestartInfo:
    """Make a hot restart, and return it when it is over."""
    accepted = await restart(cluster.client, job_id, file, params={}, options=options, tell=lambda _: None)

    over = partial(ended, cluster, job_id, accepted.number)
    return await until(over, f"the end of hot restart {accepted.number}", timeout=90)


async def ended(cluster: Cluster, job_id: str, number: int) -> HotRestartInfo | None:
    job = await cluster.client.job(job_id)
    return next((r for r in job.minflinkd.hot_restarts if r.number == number and r.over), None)


async def processes_of(cluster: Cluster) -> tuple[int, Mapping[str, float]]:
    """Return the pid of the only TaskManager, and those of its session."""
    (tm,) = await cluster.task_managers()
    tm = await cluster.measured(tm.id)
    return tm.minflinkd.pid, {key: tm.minflinkd.metrics[key] for key in ("jvm.pid", "session.pid")}


async def files_read(cluster: Cluster, job_id: str, source: str) -> int:
    """Return how many files a source has read that takes one for each micro-batch."""
    offsets = await cluster.client.get(f"/jobs/{job_id}/offsets", dict[str, Any])
    found = [t["processed"][source] for t in offsets["tasks"].values() if source in t["processed"]]
    return int(found[0]["logOffset"]) + 1 if found else 0


async def drained(cluster: Cluster, job_id: str, savepoints: Path, *, source: str, files: int) -> None:
    """Drain the job once it has read `files` files. It is then FINISHED, with its last windows written."""

    async def all_read() -> bool:
        return await files_read(cluster, job_id, source) == files

    await until(all_read, f"{files} files of {source} are read", timeout=90)
    await cluster.client.stop(job_id, str(savepoints), drain=True)
    await cluster.await_state(job_id, "FINISHED")
