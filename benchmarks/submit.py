"""Submission: `minflinkd run` on a warm TaskManager, beside a new plain PySpark process that runs the same query.

In turn, A B A B. From the client's first step (reading the job file, uploading the artifact) on the one side, from the
start of the process on the other, to: accepted and stored; RUNNING, which is an active query on both sides; the end of
the first micro-batch (one file of 100 rows, two state partitions, two threads).

What differs: minflinkd analyses the job before it accepts it, stores it durably, uploads an artifact whose Python
function is a vertex of the job, and stages its output for a two-phase commit; plain Spark does none of it, and starts
a JVM. The TaskManager was warmed up by its own query, not by this one: the first job on it is a figure of its own.
Phases of the daemon count from the request, those of the JobMaster from its start; those on the TaskManager each from
the end of the one before it. The JobMaster hears of a micro-batch up to 0.1 s after its end; the plain process looks
every 5 ms.
"""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.figures import Row
from benchmarks.plain import PlainRun, run_plain
from benchmarks.running import quick_asked, run, say
from benchmarks.workload import streaming
from tests.cluster import Cluster, running_cluster
from tests.windows_job import WindowsJob

PLAIN = "new PySpark process"
THREADS = 2


async def measure(base: Path, quick: bool) -> Row:
    repetitions, plain_repetitions = (5, 1) if quick else (16, 8)
    job = WindowsJob(base, files=3)
    job.write_events()
    settings = {"taskmanager.numberOfTaskSlots": THREADS, "resourcemanager.max-taskmanagers": 1}
    ours: list[dict[str, float]] = []
    tasks: list[dict[str, float]] = []
    plain: list[PlainRun] = []
    async with running_cluster(base / "cluster", **settings) as cluster:
        await cluster.await_ready(1)
        say("submit: the TaskManager is warm")
        first, _ = await submitted(cluster, job, "first")
        for n in range(repetitions):
            times, phases = await submitted(cluster, job, f"job{n}")
            ours.append(times)
            tasks.append(phases)
            if len(plain) < plain_repetitions:
                plain.append(await run_plain(job, base / f"plain{n}", parallelism=2, threads=THREADS))
            say(f"submit: {n + 1} of {repetitions}")
    row = Row("submit", "Submission on a warm TaskManager, beside a new PySpark process")
    row.add("submit -> accepted", "s", [t["accepted"] for t in ours])
    row.add("submit -> RUNNING", "s", [t["running"] for t in ours], (PLAIN, [p.running for p in plain]))
    name = "submit -> first micro-batch finished"
    row.add(name, "s", [t["first_batch"] for t in ours], (PLAIN, [p.first_batch for p in plain]))
    row.add("submit -> RUNNING, first job of the TaskManager", "s", [first["running"]])
    row.add("submit -> first micro-batch finished, first job of the TaskManager", "s", [first["first_batch"]])
    row.add_phases("", [{k: v for k, v in t.items() if k.startswith(("daemon", "JobMaster"))} for t in ours])
    row.add_phases("on the TaskManager: ", tasks)
    row.add(f"{PLAIN}: until pyspark is imported", "s", [p.imported for p in plain])
    row.add(f"{PLAIN}: until there is a session", "s", [p.session for p in plain])
    return row


async def submitted(cluster: Cluster, job: WindowsJob, name: str) -> tuple[dict[str, float], dict[str, float]]:
    """Return the seconds since the beginning, and by phase of the task. Cancels the job before it returns."""
    file = streaming(job, name)
    began = time.time()
    job_id = await cluster.submit(file)
    accepted = time.time() - began
    done = await cluster.await_job(
        job_id, lambda found: "first_batch" in found.minflinkd.submission, "has finished a micro-batch"
    )
    reported = done.minflinkd.submission
    running = done.timestamps["RUNNING"] / 1000 - began
    times = {
        "accepted": accepted,
        "running": running,
        "first_batch": running + reported["first_batch"] - reported["running"],
    }
    before = {f"daemon: {p}": reported[p] for p in ("analyzed", "stored") if p in reported}
    after = {f"JobMaster: {p}": s for p, s in reported.items() if p not in ("analyzed", "stored")}
    await cluster.cancel(job_id)
    return times | before | after, done.vertices[0].minflinkd.phases


if __name__ == "__main__":
    run(measure, quick=quick_asked(__doc__))
