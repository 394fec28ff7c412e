"""A takeover: the leader is killed or hands over while a job runs. Its tasks go on without it, and are adopted.

Restarts of tasks; from the event until the next leader has adopted them and says RUNNING ("without a leader"); and the
longest pause between two micro-batches and between two visible outputs. Beside each pause stands the longest one in a
window of the same length just before, without the event. Output becomes visible with a checkpoint (one a second), and
nobody takes one without a leader; micro-batches need none. The job reads a file of 100 rows every 0.25 s.

Beside it, in the same run, a JobManager of Flink is killed while it runs the same job, and its standby takes over. It
restores the job from the last checkpoint, which counts as one restart. Flink has no micro-batches, so only its output
is compared.

Two cores carry a warm JVM, and nothing else should run: the figures are of an idle machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Row
from benchmarks.flink_cluster import VERSION as FLINK
from benchmarks.flink_cluster import FlinkCluster, flink_cluster
from benchmarks.running import quick_asked, run, say
from benchmarks.workload import fed, streaming
from minflinkd.runtime.errors import MinflinkError
from tests.beside import beside
from tests.cluster import Cluster, free_port, running_cluster
from tests.files import files_below
from tests.pair_of_daemons import Pair
from tests.servers.install import NotInstalled
from tests.servers.zookeeper import ZooKeeper
from tests.waiting import until
from tests.windows_job import WindowsJob

NAME = "takeover"  # of the job and of its sink's directory
SETTINGS = {"taskmanager.numberOfTaskSlots": 2, "resourcemanager.standby-taskmanagers": 0}
WINDOW = 8.0  # seconds before the kill, and after it, in which pauses are looked for


@dataclass(frozen=True)
class Event:
    """A way in which a leader goes, and how often it is measured. `session`: ZooKeeper's timeout, if it decides."""

    name: str
    session: str = ""
    kills: bool = True  # otherwise it hands over, as `systemctl restart` has it do

    @property
    def directory(self) -> str:
        return self.name.replace(" ", "-").replace(",", "")


EVENTS = (
    Event("kill -9, the same daemon again"),
    Event("handover, the same daemon again", kills=False),
    Event("kill -9, ZooKeeper with 2 s", session="2 s"),
    Event("kill -9, ZooKeeper with 6 s", session="6 s"),
    Event("handover, ZooKeeper with 6 s", session="6 s", kills=False),
)
FLINKS_SESSIONS = (2, 6)  # seconds


async def measure(base: Path, quick: bool) -> Row:
    row = Row("takeover", "Takeover by the next leader, without a restart of tasks")
    zookeeper = ZooKeeper(base / "zookeeper")
    if (reason := ZooKeeper.missing()) is None:
        await zookeeper.start()
    else:
        say(f"takeover: nothing with ZooKeeper: {reason}")
    try:
        for event in EVENTS:
            if not event.session or reason is None:
                samples = await _measure(event, base / event.directory, zookeeper, 2 if quick else 10)
                _add(row, event.name, samples)
        if reason is None:
            await _flinks(row, base, zookeeper, 2 if quick else 10)
    finally:
        await zookeeper.kill()
    return row


async def _measure(event: Event, base: Path, zookeeper: ZooKeeper, repetitions: int) -> list[dict[str, float]]:
    base.mkdir()
    job, seen, samples = WindowsJob(base, files=0), Seen(base), list[dict[str, float]]()
    async with (
        _leaders(event, base, zookeeper) as leaders,
        fed(job, pace=0.25),
        beside("look for micro-batches", seen.look()),
    ):
        job_id = await leaders.present.submit(streaming(job, NAME))
        await leaders.present.await_checkpoints(job_id, 3, timeout=150)
        for n in range(repetitions):
            samples.append(await _take_over(event, leaders, job_id, seen))
            say(f"takeover: {event.name}, {n + 1} of {repetitions}")
        await leaders.present.cancel(job_id)
    return samples


async def _flinks(row: Row, base: Path, zookeeper: ZooKeeper, repetitions: int) -> None:
    for seconds in FLINKS_SESSIONS:
        directory = base / f"flink-{seconds}"
        job, seen, samples = (
            WindowsJob(directory, files=1),
            Seen(directory, micro_batches=False),
            list[dict[str, float]](),
        )
        job.write_events()
        flink = flink_cluster(
            directory / "cluster", zookeeper.address, 1000 * seconds, events=job.events, results=directory / NAME
        )
        try:
            async with fed(job, pace=0.25), beside("look for output", seen.look()), flink as cluster:
                for n in range(repetitions):
                    samples.append(await _take_over_flink(cluster, seen))
                    say(f"takeover: Flink, ZooKeeper with {seconds} s, {n + 1} of {repetitions}")
        except NotInstalled as error:
            say(f"takeover: nothing of Flink: {error}")
            return
        _add(row, f"Flink {FLINK}, kill -9, ZooKeeper with {seconds} s", samples)


async def _take_over_flink(flink: FlinkCluster, seen: Seen) -> dict[str, float]:
    await asyncio.sleep(WINDOW)
    killed = time.time()
    await flink.leader.kill()
    restored = 0

    async def runs() -> bool:
        nonlocal restored
        state, restored = await flink.state()
        return state == "RUNNING"

    await until(runs, "the job runs under Flink's next leader", timeout=120, pause=0.02)
    runs_again = time.time()
    await asyncio.sleep(max(1.0, WINDOW - (runs_again - killed)))
    ended = time.time()
    found = {"restarts": float(restored), "leaderless": runs_again - killed}
    found |= _pauses("visible output", seen.times(NAME), killed, ended)
    await flink.exchange_roles()
    return found


def _add(row: Row, event: str, samples: list[dict[str, float]]) -> None:
    row.add(f"restarts of tasks, {event}", "restarts", [sample["restarts"] for sample in samples])
    row.add(f"time without a leader, {event}", "s", [sample["leaderless"] for sample in samples])
    for what in ("micro-batches", "visible output"):
        pauses, usual = ([s[name] for s in samples if name in s] for name in (what, f"usual {what}"))
        row.add(f"longest pause of {what}, {event}", "s", pauses, beside=("without the event", usual))


class Leaders:
    """The daemons, and which of them leads. A single one follows itself."""

    def __init__(self, present: Cluster, pair: Pair | None = None) -> None:
        self.present = present
        self._pair = pair

    async def follow(self) -> Cluster | None:
        """Return who leads after the present one has gone, and who is to be started again as a standby."""
        gone = self.present
        if self._pair is None:
            await gone.start_again()
            return None
        self.present = await self._pair.leader(other_than=gone)
        return gone


@contextlib.asynccontextmanager
async def _leaders(event: Event, base: Path, zookeeper: ZooKeeper) -> AsyncIterator[Leaders]:
    if not event.session:
        async with running_cluster(base / "cluster", **{**SETTINGS, "rest.port": free_port()}) as cluster:
            yield Leaders(cluster)
        return
    settings = {**SETTINGS, "high-availability.zookeeper.client.session-timeout": event.session}
    pair = Pair(base / "cluster", dict.fromkeys("ab", zookeeper.address), **settings)
    async with pair.running() as (first, _):
        yield Leaders(first, pair)


async def _take_over(event: Event, leaders: Leaders, job_id: str, seen: Seen) -> dict[str, float]:
    await asyncio.sleep(WINDOW)  # the figure is about what happens in this time
    before = seen.attempts()
    killed = time.time()
    await (leaders.present.kill() if event.kills else leaders.present.hand_over())
    standby = await leaders.follow()

    async def runs() -> bool:
        try:
            return (await leaders.present.client.job(job_id)).state == "RUNNING"
        except MinflinkError:
            return False

    await until(runs, "the job runs under the next leader", pause=0.02)
    adopted = time.time()
    await asyncio.sleep(WINDOW - (adopted - killed) if adopted - killed < WINDOW else 1.0)
    ended = time.time()
    found = {"restarts": float(len(seen.attempts() - before)), "leaderless": adopted - killed}
    found |= _pauses("micro-batches", seen.times("commits"), killed, ended)
    found |= _pauses("visible output", seen.times(NAME), killed, ended)
    if standby is not None:
        await standby.start_again()
    return found


class Seen:
    """The files of micro-batches and of output, with the time when each got its name. Spark soon removes the first."""

    def __init__(self, base: Path, *, micro_batches: bool = True) -> None:
        self._base = base
        self._micro_batches = micro_batches
        self._times: dict[Path, float] = {}  # seconds since 1970

    async def look(self) -> None:
        while True:
            await asyncio.to_thread(self._look)
            await asyncio.sleep(0.1)

    def _look(self) -> None:
        commits = [path for attempt in self._attempts() for path in files_below(attempt)] if self._micro_batches else []
        parts = [path for path in files_below(self._base / NAME) if path.name.startswith("part-")]
        for path in (*(path for path in commits if path.parent.name == "commits" and path.name.isdigit()), *parts):
            if path not in self._times:
                with contextlib.suppress(FileNotFoundError):  # it is removed already
                    self._times[path] = path.stat().st_ctime

    def times(self, directory: str) -> list[float]:
        return sorted(at for path, at in self._times.items() if path.parent.name == directory)

    def attempts(self) -> set[str]:
        return {path.name for path in self._attempts()}

    def _attempts(self) -> list[Path]:
        """Return the directories of the attempts on the TaskManagers of one daemon, or of several."""
        below = "state/taskmanagers/*/state/attempts/*"
        return [path for pattern in (below, f"?/{below}") for path in (self._base / "cluster").glob(pattern)]


def _pauses(what: str, times: list[float], event: float, ended: float) -> dict[str, float]:
    usual = _longest_pause(times, event - WINDOW, event)
    return {what: _longest_pause(times, event, ended), f"usual {what}": usual}


def _longest_pause(times: list[float], since: float, until: float) -> float:
    """Return the longest time without an event between `since` and `until`, counted from the last event before."""
    inside = [at for at in times if since <= at <= until]
    last = max((at for at in times if at < since), default=since)
    return max((later - earlier for earlier, later in itertools.pairwise([last, *inside, until])), default=0.0)


if __name__ == "__main__":
    run(measure, quick=quick_asked(__doc__))
