"""Recovery: kill -9 of the TaskManager that runs the job, and of its session child only, with a warm or a hot standby.

From the kill to: noticed by the JobMaster; everything of the job ended; slots held; restore point found; deployed;
RUNNING again; the end of the first micro-batch after it; and the first output of the new attempt that a reader of the
sink's directory sees. That waits for the next checkpoint, as ever with two-phase commit: the job is checkpointed every
second. It reads a file of 100 rows every 0.25 s, each of which closes a window. Its restart delay is 100 ms, which is
in the figures. Before each kill there are two warm TaskManagers again and a checkpoint of the present attempt. With a
hot standby (`recovery: hot-standby`), that is ready as well. The two take turns.

Two cores carry two warm JVMs, and nothing else should run: the figures are of an idle machine.
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
from minflinkd.storage.publication import final_name
from tests.cluster import Cluster, running_cluster
from tests.waiting import until
from tests.windows_job import WindowsJob

NAME = "recovery"  # of the job and of its sink's directory
SETTINGS = {
    "taskmanager.numberOfTaskSlots": 2,
    "resourcemanager.standby-taskmanagers": 2,
    "resourcemanager.max-taskmanagers": 2,
    # Otherwise the delay, and with it every figure, grows with each kill of the same job.
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": 1000,
    "restart-strategy.fixed-delay.delay": "100 ms",
}
WARM, HOT = "restart", "hot-standby"  # `recovery` of the job
WHO = {"the TaskManager": None, "its session child": "session.pid"}


async def measure(base: Path, quick: bool) -> Row:
    repetitions = 2 if quick else 7
    found: dict[tuple[str, str], list[dict[str, float]]] = {
        (standby, who): [] for standby in (WARM, HOT) for who in WHO
    }
    async with running_cluster(base / "cluster", **SETTINGS) as cluster:
        for n in range(repetitions):
            for standby in (WARM, HOT):
                job = WindowsJob(base / f"{standby}{n}", files=0)
                async with fed(job, pace=0.25):
                    await cluster.await_ready(2)
                    job_id = await cluster.submit(streaming(job, NAME, recovery=standby))
                    for who, pid_metric in WHO.items():
                        found[standby, who].append(await _kill(cluster, job_id, job.base / NAME, pid_metric))
                    await cluster.cancel_all()
            say(f"recovery: {n + 1} of {repetitions}, {_shown(found)}")
    row = Row("recovery", "Recovery from kill -9 with a warm standby, and with a hot one")
    for (standby, who), samples in found.items():
        row.add_phases(f"{'hot standby, ' if standby == HOT else ''}kill of {who} -> ", samples)
    return row


def _shown(found: dict[tuple[str, str], list[dict[str, float]]]) -> str:
    last = {f"{standby} {who}": samples[-1]["first visible output"] for (standby, who), samples in found.items()}
    return ", ".join(f"{what}: {seconds:.2f} s" for what, seconds in last.items())


async def _kill(cluster: Cluster, job_id: str, output: Path, pid_metric: str | None) -> dict[str, float]:
    """Kill the process and return the seconds from then to the end of each phase."""
    await cluster.await_ready(2)
    before = await cluster.await_state(job_id, "RUNNING")
    started = before.timestamps["RUNNING"]
    await _checkpoint_after(cluster, job_id, started)
    if before.minflinkd.hot_standby is not None:
        await cluster.await_job(job_id, _stands_by, "has a hot standby")
    manager = await cluster.task_manager_of(job_id)
    pid = manager.minflinkd.pid if pid_metric is None else int(manager.minflinkd.metrics[pid_metric])
    known = len(before.minflinkd.recoveries)
    killed = time.time()
    os.kill(pid, signal.SIGKILL)

    def recovered(found: JobInfo) -> bool:
        recoveries = found.minflinkd.recoveries
        return len(recoveries) > known and "first_batch" in recoveries[-1].phases

    after = await cluster.await_job(job_id, recovered, "has recovered")
    recovery = after.minflinkd.recoveries[-1]
    noticed = recovery.failed / 1000 - killed
    phases = {"noticed": noticed} | {phase: noticed + seconds for phase, seconds in recovery.phases.items()}
    return phases | {"first visible output": await _visible(after, output) - killed}


def _stands_by(job: JobInfo) -> bool:
    standby = job.minflinkd.hot_standby
    return standby is not None and standby.ready


async def _visible(job: JobInfo, output: Path) -> float:
    """Return when the first file of the job's current attempt was published, in seconds since 1970."""
    attempt = job.vertices[0].minflinkd.attempt_id
    assert attempt is not None
    prefix = final_name(job.jid, "out", attempt, 0, "").partition("-000000000-")[0]

    async def published() -> float | None:
        return min((file.stat().st_ctime for file in output.glob(f"{prefix}-*")), default=None)

    return await until(published, "visible output of the new attempt")  # the last change of a file is its rename


async def _checkpoint_after(cluster: Cluster, job_id: str, since_ms: int) -> None:
    """Wait for a checkpoint of the current attempt, so that the restored state has the same age every time."""

    async def there() -> bool:
        latest = (await cluster.client.checkpoints(job_id)).latest.completed
        return latest is not None and latest.trigger_timestamp > since_ms

    await until(there, "a checkpoint of the present attempt")


if __name__ == "__main__":
    run(measure, quick=quick_asked(__doc__))
