"""A takeover: kill -9 of the daemon and a new start, while a job runs. Its tasks go on without it, and are adopted.

Restarts of tasks; from the kill until the next daemon has adopted them and says RUNNING ("without a leader"); and the
longest pause between two micro-batches and between two visible outputs. Beside each pause stands the longest one in a
window of the same length just before, without the event. Output becomes visible with a checkpoint (one a second), and
nobody takes one without a leader; micro-batches need none. The job reads a file of 100 rows every 0.25 s.

Two cores carry a warm JVM, and nothing else should run: the figures are of an idle machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from pathlib import Path

from benchmarks.figures import Row
from benchmarks.running import quick_asked, run, say
from benchmarks.workload import fed, streaming
from minflinkd.runtime.errors import MinflinkError
from tests.beside import beside
from tests.cluster import Cluster, free_port, running_cluster
from tests.waiting import until
from tests.windows_job import WindowsJob

NAME = "takeover"  # of the job and of its sink's directory
SETTINGS = {"taskmanager.numberOfTaskSlots": 2, "resourcemanager.standby-taskmanagers": 0}
WINDOW = 8.0  # seconds before the kill, and after it, in which pauses are looked for


async def measure(base: Path, quick: bool) -> Row:
    repetitions = 2 if quick else 10
    job = WindowsJob(base, files=0)
    samples: list[dict[str, float]] = []
    settings = {**SETTINGS, "rest.port": free_port()}
    seen = Seen(base)
    async with (
        running_cluster(base / "cluster", **settings) as cluster,
        fed(job, pace=0.25),
        beside("look for micro-batches", seen.look()),
    ):
        job_id = await cluster.submit(streaming(job, NAME))
        await cluster.await_checkpoints(job_id, 3, timeout=150)
        for n in range(repetitions):
            samples.append(await _take_over(cluster, job_id, seen))
            say(f"takeover: {n + 1} of {repetitions}")
    row = Row("takeover", "Takeover after kill -9 of the daemon, without a restart of tasks")
    row.add("restarts of tasks, kill -9 of the daemon", "restarts", [sample["restarts"] for sample in samples])
    row.add("time without a leader", "s", [sample["leaderless"] for sample in samples])
    for what in ("micro-batches", "visible output"):
        pauses, usual = [s[what] for s in samples], [s[f"usual {what}"] for s in samples]
        row.add(f"longest pause of {what}", "s", pauses, beside=("without the event", usual))
    return row


async def _take_over(cluster: Cluster, job_id: str, seen: Seen) -> dict[str, float]:
    await asyncio.sleep(WINDOW)  # the figure is about what happens in this time
    before = seen.attempts()
    killed = time.time()
    await cluster.kill()
    await cluster.start_again()

    async def runs() -> bool:
        try:
            return (await cluster.client.job(job_id)).state == "RUNNING"
        except MinflinkError:
            return False

    await until(runs, "the job runs under the next daemon", pause=0.02)
    adopted = time.time()
    await asyncio.sleep(WINDOW - (adopted - killed) if adopted - killed < WINDOW else 1.0)
    ended = time.time()
    found = {"restarts": float(len(seen.attempts() - before)), "leaderless": adopted - killed}
    for what, times in (("micro-batches", seen.times("commits")), ("visible output", seen.times(NAME))):
        found[what] = _longest_pause(times, killed, ended)
        found[f"usual {what}"] = _longest_pause(times, killed - WINDOW, killed)
    return found


class Seen:
    """The files of micro-batches and of output, with the time when each got its name. Spark soon removes the first."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._times: dict[Path, float] = {}  # seconds since 1970

    async def look(self) -> None:
        while True:
            await asyncio.to_thread(self._look)
            await asyncio.sleep(0.1)

    def _look(self) -> None:
        commits = self._base.glob("cluster/state/taskmanagers/*/state/attempts/*/**/commits/[0-9]*")
        for path in (*commits, *(self._base / NAME).glob("part-*")):
            if path not in self._times:
                with contextlib.suppress(FileNotFoundError):  # it is removed already
                    self._times[path] = path.stat().st_ctime

    def times(self, directory: str) -> list[float]:
        return sorted(at for path, at in self._times.items() if path.parent.name == directory)

    def attempts(self) -> set[str]:
        return {path.name for path in self._base.glob("cluster/state/taskmanagers/*/state/attempts/*")}


def _longest_pause(times: list[float], since: float, until: float) -> float:
    """Return the longest time without an event between `since` and `until`, counted from the last event before."""
    inside = [at for at in times if since <= at <= until]
    last = max((at for at in times if at < since), default=since)
    return max((later - earlier for earlier, later in itertools.pairwise([last, *inside, until])), default=0.0)


if __name__ == "__main__":
    run(measure, quick=quick_asked(__doc__))
