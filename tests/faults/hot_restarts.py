"""Hot restarts of jobs on one TaskManager, whose processes are to stay the same."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from minflinkd.cli.submission import restart
from minflinkd.rest.schemas import HotRestartInfo
from tests.cluster import Cluster, until

ONE = {
    "resourcemanager.standby-taskmanagers": 1,
    "resourcemanager.max-taskmanagers": 1,
    "taskmanager.numberOfTaskSlots": 4,
    "heartbeat.timeout": "10 s",
    "task.cancellation.timeout": "10 s",  # a version that hangs costs the session
}


async def restarted(cluster: Cluster, job_id: str, file: Path, **options: str) -> HotRestartInfo:
    """The hot restart when it is over."""
    accepted = await restart(cluster.client, job_id, file, params={}, options=options, tell=lambda _: None)

    over = partial(ended, cluster, job_id, accepted.number)
    return await until(f"the end of hot restart {accepted.number}", over, timeout=90)


async def ended(cluster: Cluster, job_id: str, number: int) -> HotRestartInfo | None:
    job = await cluster.client.job(job_id)
    return next((r for r in job.minflinkd.hot_restarts if r.number == number and r.over), None)


async def processes_of(cluster: Cluster) -> tuple[int, Mapping[str, float]]:
    """Of the only TaskManager: its pid, and those of its session."""
    (tm,) = await cluster.task_managers()
    tm = await cluster.measured(tm.id)
    return tm.minflinkd.pid, {key: tm.minflinkd.metrics[key] for key in ("jvm.pid", "session.pid")}


async def files_read(cluster: Cluster, job_id: str, source: str) -> int:
    """By a source of files that takes one a micro-batch."""
    offsets = await cluster.client.get(f"/jobs/{job_id}/offsets", dict[str, Any])
    found = [t["processed"][source] for t in offsets["tasks"].values() if source in t["processed"]]
    return int(found[0]["logOffset"]) + 1 if found else 0


async def drained(cluster: Cluster, job_id: str, savepoints: Path, *, source: str, files: int) -> None:
    """The job is FINISHED, with the last windows written, once it has read so many files."""

    async def all_read() -> bool:
        return await files_read(cluster, job_id, source) == files

    await until(f"{files} files of {source} are read", all_read, timeout=90)
    await cluster.client.stop(job_id, str(savepoints), drain=True)
    await cluster.await_state(job_id, "FINISHED")
