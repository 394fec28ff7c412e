"""HTTP (E4): how many requests a daemon answers for `/overview` and `/jobs/overview` while many jobs run.

The daemon is the real one, with its tokens, and TaskManagers are played (`benchmarks.swarm`), as in `benchmarks.scale`:
1,000 TaskManagers, 500 jobs, and each task tells of a micro-batch every second. A client in a third process asks over
8 connections that stay open, each again as soon as it has its answer (`benchmarks.http_load`). First nobody asks for a
while, then turn by turn for one path and the other.

On a machine that does other work, or has fewer cores than these processes keep busy, requests per second say little.
`requests per processor second` divides the requests by all processor time of the daemon meanwhile, including what it
spends on jobs and TaskManagers. Lag is that of the daemon's event loop, measured every 10 ms; `own` is without the time
in which other processes had the processor.
"""

from __future__ import annotations

import asyncio
import sys
import time
from asyncio.subprocess import PIPE
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import psutil

from benchmarks.figures import Row
from benchmarks.http_load import Asked, Asking
from benchmarks.running import quick_asked, run, say
from benchmarks.scale import Trial
from benchmarks.watched_daemon import lag_between
from tests.cluster import Cluster

Note = Callable[[str, str, float], None]  # a figure, its unit, its value

PATHS = ("/overview", "/jobs/overview")
CONNECTIONS = 8
PATIENT = {"heartbeat.timeout": "120 s"}  # nobody is lost because others need the processor


async def measure(base: Path, quick: bool) -> Row:
    row = Row("http_overview", "HTTP overview")
    task_managers, jobs, seconds, turns = (200, 100, 3, 2) if quick else (1000, 500, 5, 3)
    trial = Trial(row, f"{task_managers} TaskManagers, {jobs} jobs: ", task_managers, jobs, seconds, more=PATIENT)
    async with trial.all_running(base) as cluster:
        say(f"http_overview: {jobs} jobs run")
        found: dict[str, list[float]] = defaultdict(list)
        units: dict[str, str] = {}

        def note(figure: str, unit: str, value: float) -> None:
            found[figure].append(value)
            units[figure] = unit

        for _ in range(turns):
            began, cpu = time.time(), _cpu(cluster)
            await asyncio.sleep(seconds)
            _note_daemon(note, cluster, "nobody asks: ", began, cpu)
            for path in PATHS:
                began, cpu = time.time(), _cpu(cluster)
                asked = await _asked(cluster, path, seconds)
                spent = _note_daemon(note, cluster, f"{path}: ", began, cpu)
                _note_client(note, f"{path}: ", asked, spent)
            say("http_overview: a turn")
        for figure, values in found.items():
            row.add(trial.name + figure, units[figure], values)
    return row


def _note_daemon(note: Note, cluster: Cluster, name: str, began: float, cpu: float) -> float:
    """Note what the daemon did since then. Return the seconds of processor time."""
    ended, spent = time.time(), _cpu(cluster) - cpu
    lag = lag_between(cluster.launch.base, began, ended)
    for figure, value in lag.figures().items():
        note(name + figure, "ms", value)
    note(f"{name}processor time of the daemon", "%", 100 * spent / (ended - began))
    return spent


def _note_client(note: Note, name: str, asked: Asked, daemon: float) -> None:
    latencies = sorted(asked.latencies)
    note(f"{name}requests per second", "/s", len(latencies) / asked.seconds)
    note(f"{name}requests per processor second of the daemon", "/s", len(latencies) / daemon)
    note(f"{name}p50", "ms", 1000 * latencies[len(latencies) // 2])
    note(f"{name}p99", "ms", 1000 * latencies[int(0.99 * len(latencies))])
    note(f"{name}processor time of the client", "%", 100 * asked.cpu / asked.seconds)
    note(f"{name}size of an answer", "kB", asked.size / 1000)


async def _asked(cluster: Cluster, path: str, seconds: float) -> Asked:
    where = urlsplit(cluster.url)
    assert where.hostname is not None
    assert where.port is not None
    what = Asking(where.hostname, where.port, path, cluster.headers, CONNECTIONS, seconds)
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.http_load", stdin=PIPE, stdout=PIPE, cwd=Path(__file__).parents[1]
    )
    try:
        async with asyncio.timeout(seconds + 60):
            out, _ = await client.communicate(msgspec.json.encode(what))
    finally:
        if client.returncode is None:
            client.kill()
            await client.wait()
    return msgspec.json.decode(out, type=Asked)


def _cpu(cluster: Cluster) -> float:
    times = psutil.Process(cluster.process.pid).cpu_times()
    return times.user + times.system


if __name__ == "__main__":
    run(measure, quick=quick_asked(__doc__))
