"""Cancel: from the request until the job is CANCELED, and until its slots are free in the ResourceManager's eyes.

The job reads a file of 100 rows every 0.1 s, so that mostly a micro-batch is in progress. Slots are looked at every
5 ms.
"""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.figures import Row
from benchmarks.running import quick_asked, run, say
from benchmarks.workload import fed, streaming
from tests.cluster import Cluster, running_cluster
from tests.waiting import until
from tests.windows_job import WindowsJob


async def measure(base: Path, quick: bool) -> Row:
    repetitions = 5 if quick else 20
    job = WindowsJob(base, files=0)
    settings = {"taskmanager.numberOfTaskSlots": 2, "resourcemanager.max-taskmanagers": 1}
    found = []
    async with running_cluster(base / "cluster", **settings) as cluster:
        await cluster.await_ready(1)
        async with fed(job, pace=0.1):
            for n in range(repetitions):
                found.append(await _cancel(cluster, streaming(job, f"job{n}")))
                say(f"cancel: {n + 1} of {repetitions}")
    row = Row("cancel", "Cancellation of a running job")
    row.add_phases("cancel -> ", found)
    return row


async def _cancel(cluster: Cluster, file: Path) -> dict[str, float]:
    """Run and cancel a job. Returns seconds since the cancel request."""
    job_id = await cluster.submit(file)
    batches = 3
    await cluster.await_job(job_id, lambda j: j.vertices[0].minflinkd.batches >= batches, "processes")

    async def free() -> bool:
        return all(manager.free_slots == manager.slots_number for manager in await cluster.task_managers())

    began = time.time()
    await cluster.client.cancel(job_id)
    answered = time.time() - began
    await until(free, "free slots", pause=0.005)
    freed = time.time() - began
    job = await cluster.await_state(job_id, "CANCELED")
    return {"answered": answered, "CANCELED": job.timestamps["CANCELED"] / 1000 - began, "slots free": freed}


if __name__ == "__main__":
    run(measure, quick=quick_asked(__doc__))
