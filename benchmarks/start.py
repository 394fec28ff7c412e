"""Start: the daemon until /health says ready, its import, its memory; a cold TaskManager by phase, and its memory.

The daemon's start is measured without TaskManagers, from the start of its process. A TaskManager's is measured from the
start of the supervisor's process until the daemon shows its session ready (looked at every 20 ms); the phases are the
session child's. Memory is the proportional set size (PSS): a page that n processes share counts 1/n in each, so that
sums are true.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import psutil

from benchmarks.figures import Row
from benchmarks.running import quick_asked, run, say
from minflinkd.rest.schemas import TaskManager
from tests.cluster import Cluster, running_cluster
from tests.waiting import until

MIB = 1 << 20
IMPORT = "import time; began = time.perf_counter(); import minflinkd.cli.main; print(time.perf_counter() - began)"


async def measure(base: Path, quick: bool) -> Row:
    starts, cold_starts = (3, 1) if quick else (10, 5)
    row = Row("start", "Start and memory")
    imports = [await asyncio.to_thread(_import_time) for _ in range(starts)]
    ready, idle = [], []
    for n in range(starts):
        seconds, rss = await _daemon(base / f"daemon{n}")
        ready.append(seconds)
        idle.append(rss)
    say("start: daemons")
    row.add("daemon: process start -> ready", "s", ready)
    row.add("import of minflinkd.cli.main", "s", imports)
    row.add("daemon, idle: memory", "MiB", idle)
    phases, memory = [], []
    for n in range(cold_starts):
        async with running_cluster(base / f"cluster{n}", **{"resourcemanager.max-taskmanagers": 1}) as cluster:
            start, rss_by_process = await _task_manager(cluster)
            phases.append(start)
            memory.append(rss_by_process)
        say(f"start: TaskManager {n + 1} of {cold_starts}")
    row.add_phases("cold TaskManager: ", phases)
    row.add_phases("TaskManager, warm and idle: memory of ", memory, unit="MiB")
    return row


def _import_time() -> float:
    return float(subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True).stdout)


async def _daemon(base: Path) -> tuple[float, float]:
    """Return the seconds until ready, and the MiB a second later, without any TaskManager."""
    base.mkdir()
    settings = {"rest.port": 0, "resourcemanager.standby-taskmanagers": 0}
    options = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    address = base / "state" / "daemon.json"
    with (base / "daemon.log").open("wb") as output:
        began = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "minflinkd", "serve", "--state-dir", str(base / "state"), *options),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:

        async def written() -> str | None:
            assert process.returncode is None, (base / "daemon.log").read_text()
            return address.read_text() if address.exists() else None

        url = json.loads(await until(written, "the daemon's address", pause=0.002))["url"]
        async with aiohttp.ClientSession() as http:

            async def answers() -> bool:
                async with http.get(f"{url}/health") as answer:
                    return answer.status == 200

            await until(answers, "a ready daemon", pause=0.002)
        ready = time.monotonic() - began
        await asyncio.sleep(1)
        return ready, _memory(psutil.Process(process.pid))
    finally:
        process.terminate()
        await process.wait()


async def _task_manager(cluster: Cluster) -> tuple[dict[str, float], dict[str, float]]:
    """Return seconds by phase, and MiB by process."""

    async def ready() -> TaskManager | None:
        return next(iter(await cluster.task_managers()), None)

    manager = await until(ready, "a ready TaskManager", timeout=150, pause=0.02)
    now = time.time()

    async def measured() -> TaskManager | None:
        found = await ready()
        told = found.minflinkd if found is not None else None
        return found if told is not None and told.start_phases and told.metrics.get("jvm.pid") else None

    manager = await until(measured, "its heartbeat with phases and pids")
    supervisor, metrics = psutil.Process(manager.minflinkd.pid), manager.minflinkd.metrics
    session, jvm = (psutil.Process(int(metrics[f"{name}.pid"])) for name in ("session", "jvm"))
    workers = [below for below in supervisor.children(recursive=True) if below not in (session, jvm)]
    memory = {
        "the supervisor": _memory(supervisor),
        "the session child": _memory(session),
        "the JVM": _memory(jvm),
        "Python workers": sum(_memory(worker) for worker in workers),
    }
    phases = {"process start -> ready": now - supervisor.create_time()} | manager.minflinkd.start_phases
    return phases, memory | {"all": sum(memory.values())}


def _memory(process: psutil.Process) -> float:
    """Return MiB; 0 if the process has just ended."""
    try:
        return float(process.memory_full_info().pss) / MIB
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return 0.0


if __name__ == "__main__":
    run(measure, quick=quick_asked(__doc__))
