"""Recovery: kill -9 of the TaskManager that runs the job, and of its session child only, with a warm standby.

From the kill to: noticed by the JobMaster; RUNNING again; the end of the first micro-batch after it. The job reads a
file of 100 rows every 0.25 s and is checkpointed every second; its restart delay is 100 ms, which is in the figures.
Before each kill there are two warm TaskManagers again and a checkpoint of the present attempt. First output that is
visible waits for the next checkpoint after the first micro-batch, as ever with two-phase commit, and is not measured.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from benchmarks.figures import Row
from benchmarks.running import quick_asked, run, say
from benchmarks.workload import fed, streaming
from minflinkd.rest.schemas import JobInfo
from tests.cluster import Cluster, running_cluster, until
from tests.windows_job import WindowsJob

SETTINGS = {
    "taskmanager.numberOfTaskSlots": 2,
    "resourcemanager.min-taskmanagers": 2,
    "resourcemanager.standby-taskmanagers": 1,
    "resourcemanager.max-taskmanagers": 2,
}
WHO = {"the TaskManager": None, "its session child": "session.pid"}


async def measure(base: Path, quick: bool) -> Row:
    repetitions = 1 if quick else 6
    job = WindowsJob(base, files=0)
    found: dict[str, list[dict[str, float]]] = {who: [] for who in WHO}
    async with running_cluster(base / "cluster", **SETTINGS) as cluster, fed(job, pace=0.25):
        await cluster.await_ready(2)
        job_id = await cluster.submit(streaming(job, "recovery"))
        for n in range(repetitions):
            for who, pid_metric in WHO.items():
                found[who].append(await _kill(cluster, job_id, pid_metric))
            say(f"recovery: {n + 1} of {repetitions}")
    row = Row("recovery", "Recovery from kill -9 with a warm standby")
    for who, samples in found.items():
        row.add_phases(f"kill of {who} -> ", samples)
    return row


async def _kill(cluster: Cluster, job_id: str, pid_metric: str | None) -> dict[str, float]:
    """Seconds from the kill to the end of each phase."""
    await cluster.await_ready(2)
    before = await cluster.await_state(job_id, "RUNNING")
    started = before.timestamps["RUNNING"]
    await _checkpoint_after(cluster, job_id, started)
    manager = await cluster.task_manager_of(job_id)
    pid = manager.minflinkd.pid if pid_metric is None else int(manager.minflinkd.metrics[pid_metric])
    known = len(before.minflinkd.recoveries)
    killed = time.time()
    os.kill(pid, signal.SIGKILL)

    def recovered(found: JobInfo) -> bool:
        recoveries = found.minflinkd.recoveries
        return len(recoveries) > known and "first_batch" in recoveries[-1].phases

    recovery = (await cluster.await_job(job_id, recovered, "has recovered")).minflinkd.recoveries[-1]
    noticed = recovery.failed / 1000 - killed
    return {"noticed": noticed} | {phase: noticed + seconds for phase, seconds in recovery.phases.items()}


async def _checkpoint_after(cluster: Cluster, job_id: str, since_ms: int) -> None:
    """A checkpoint of the attempt that runs now, so that what is restored is of the same age every time."""

    async def there() -> bool:
        latest = (await cluster.client.checkpoints(job_id)).latest.completed
        return latest is not None and latest.trigger_timestamp > since_ms

    await until("a checkpoint of the present attempt", there)


if __name__ == "__main__":
    run(measure, quick=quick_asked(__doc__))
