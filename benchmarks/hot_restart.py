"""Hot restart and rescale, beside stopping and starting the query by hand, and beside a new PySpark process.

Processed: from the commit of the last micro-batch of the old version to that of the first of the new one, by Spark's
commit log. Visible: from the last file of the old version that a reader of the output sees to the first of the new one.
The job's sink is exactly-once, so that files are seen with the checkpoint that covers them: one a second, and those
that the restart takes itself. By hand each micro-batch is seen at once, and again where its commit did not follow.

The query (`constant_stream.py`) has constant input without pause and keeps RocksDB state with changelogs; a new version
has another param in its SQL. All sides have the settings of a TaskManager's session, as many threads and as much heap.

- by hand: one warm session, in which it is stopped, which interrupts the micro-batch in progress, and started
- new process: stopped, and started by a process that begins at this moment; how long the old one takes to end is not
  in the figure

Sides take turns of five restarts, while the others have no query. Each restart has at least ten micro-batches of the
version before it, and a checkpoint of it. For a job each turn begins with a new state; the query by hand goes on with
its own. Rescaling is from 2 to 4 slots and back, of one version. Here the state has 4 partitions all the time, and no
task stops: the figures are those around the moment in which the job changed hands, beside those of all other
micro-batches. By hand, Spark repartitions the checkpoint directory. Before that, the entry of the interrupted
micro-batch is removed from it, because otherwise Spark refuses.

Phases are those that the job reports of its restart, counted from the last micro-batch of the old version.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.by_hand import HEAP, PATIENCE, SETTLED, THREADS, by_hand
from benchmarks.commit_log import Commits, watched
from benchmarks.constant_stream import ConstantStream
from benchmarks.figures import Row
from benchmarks.running import run, say
from minflinkd.cli.submission import restart
from minflinkd.rest.schemas import HotRestartInfo, JobInfo
from tests.cluster import Cluster, running_cluster
from tests.waiting import until

INTERVAL = "1 s"  # of checkpoints
PARTITIONS, WIDE = 2, 4
TURN = 5  # restarts
BY_HAND, NEW_PROCESS = "by hand", "new process"


@dataclass(frozen=True)
class Part:
    megabytes: int
    rescales: bool = False

    @property
    def title(self) -> str:
        size = f"{self.megabytes} MB" if self.megabytes else "tiny state"
        return f"{size}, {PARTITIONS} -> {WIDE} -> {PARTITIONS}" if self.rescales else size

    @property
    def highest(self) -> int | None:
        return WIDE if self.rescales else None

    def steps(self) -> Iterator[dict[str, Any]]:
        """Yield the arguments of each version."""
        for number in itertools.count():
            yield {"version": f"v{number:03}", "partitions": WIDE if self.rescales and number % 2 else PARTITIONS}


PARTS = {"tiny": Part(0), "100MB": Part(100), "500MB": Part(500), "rescale": Part(100, rescales=True)}


@dataclass
class Found:
    """The seconds of each restart on one side."""

    processed: list[float] = field(default_factory=list)
    visible: list[float] = field(default_factory=list)
    phases: list[dict[str, float]] = field(default_factory=list)
    task: list[dict[str, float]] = field(default_factory=list)
    checkpoint: list[dict[str, float]] = field(default_factory=list)
    usual: list[float] = field(default_factory=list)  # between two micro-batches of a job that is not being rescaled

    def note_by_hand(self, stream: ConstantStream, times: Mapping[str, float], old: str, new: str) -> None:
        """Record a restart; `times` are times of day from the process."""
        last = times["last"]
        names = ("requested", "stopped", "repartitioned", "started")
        phases = {name: times[name] - last for name in names if name in times}
        self.note(times["first"] - last, phases, stream.visible_gap(old, new))

    def note(self, processed: float, phases: Mapping[str, float], visible: float) -> None:
        self.processed.append(processed)
        self.visible.append(visible)
        self.phases.append(dict(sorted(phases.items(), key=lambda phase: phase[1])))


async def measure(base: Path, quick: bool, parts: Sequence[str] = ()) -> Row:
    row = Row("hot_restart", f"Hot restart, with a checkpoint every {INTERVAL}")
    settings = {
        "taskmanager.numberOfTaskSlots": THREADS,
        "taskmanager.memory.heap.size": f"{HEAP} GiB",
        "resourcemanager.max-taskmanagers": 1,
    }
    turns, restarts, processes = (1, 3, 1) if quick else (3, TURN, 3)
    async with running_cluster(base / "cluster", **settings) as cluster:
        await cluster.await_ready(1)
        for name in parts or (["tiny"] if quick else PARTS):
            await _part(row, cluster, base / name, PARTS[name], turns, restarts, processes)
    return row


async def _part(row: Row, cluster: Cluster, base: Path, part: Part, turns: int, restarts: int, processes: int) -> None:
    ours, hand, process = Found(), Found(), Found()
    stream, work = ConstantStream(base / "by-hand", part.megabytes), base / "work"
    steps = part.steps()
    async with by_hand(stream, work) as warm:
        for turn in range(turns):
            our_turn = _our_rescales if part.rescales else _our_turn
            await our_turn(cluster, ConstantStream(base / f"ours{turn}", part.megabytes), part, restarts, ours)
            say(f"hot_restart: {part.title}, turn {turn + 1}: {_shown(ours.processed)}")
            step = next(steps)
            await warm.ask(do="start", **step)
            for _ in range(restarts):
                old, step = step, next(steps)
                hand.note_by_hand(stream, await warm.ask(do="change", **step), old["version"], step["version"])
            stopped = await warm.ask(do="stop")
            say(f"hot_restart: {part.title}, turn {turn + 1}, {BY_HAND}: {_shown(hand.processed)}")
            if turn < processes:
                old, step = step, next(steps)
                async with by_hand(stream, work) as cold:
                    started = await cold.ask(do="start", **step)
                    process.note_by_hand(stream, stopped | started, old["version"], step["version"])
                    await cold.ask(do="stop")
                say(f"hot_restart: {part.title}, turn {turn + 1}, {NEW_PROCESS}: {_shown(process.processed)}")
    _report(row, part, ours, hand, process)


def _shown(seconds: list[float]) -> str:
    return ", ".join(f"{found:.3f}" for found in seconds)


def _report(row: Row, part: Part, ours: Found, hand: Found, process: Found) -> None:
    for what, theirs in ((BY_HAND, hand), (NEW_PROCESS, process)):
        row.add(f"{part.title}: processed, last -> first", "s", ours.processed, (what, theirs.processed))
        row.add(f"{part.title}: visible, last -> first", "s", ours.visible, (what, theirs.visible))
    if ours.usual:
        row.add(f"{part.title}: processed, one micro-batch -> the next, at other times", "s", ours.usual)
    row.add_phases(f"{part.title}: last micro-batch -> ", ours.phases)
    row.add_phases(f"{part.title}: final checkpoint: ", ours.checkpoint)
    row.add_phases(f"{part.title}: on the TaskManager: ", ours.task)
    row.add_phases(f"{part.title}: {BY_HAND}: last micro-batch -> ", hand.phases)
    row.add_phases(f"{part.title}: {NEW_PROCESS}: last micro-batch -> ", process.phases)


# --- minflinkd ---


async def _our_turn(cluster: Cluster, stream: ConstantStream, part: Part, restarts: int, found: Found) -> None:
    steps = part.steps()
    old = next(steps)
    async with watched(cluster) as commits:
        job_id = await cluster.submit(stream.write(**old, interval=INTERVAL, highest=part.highest))
        await _settled(cluster, job_id, stream, old["version"])
        for _ in range(restarts):
            new = next(steps)
            file = stream.write(**new, interval=INTERVAL, highest=part.highest)
            accepted = await restart(cluster.client, job_id, file, params={}, options={}, tell=lambda _: None)
            over = partial(_over, cluster, job_id, accepted.number)
            done = await until(over, f"hot restart {accepted.number} of {job_id}", timeout=PATIENCE, pause=0.1)
            assert done.state == "completed", done
            if done.checkpoint_id is not None:
                found.checkpoint.append(await _checkpoint(cluster, job_id, done.checkpoint_id))
            after = await _settled(cluster, job_id, stream, new["version"])
            stopped = done.requested / 1000 + done.phases["stopped"]
            processed = await until(partial(_seen, commits, stopped), "its micro-batches in the log")
            since = done.requested / 1000 - processed.last
            phases = {"requested": since} | {phase: since + seconds for phase, seconds in done.phases.items()}
            found.note(processed.gap, phases, stream.visible_gap(old["version"], new["version"]))
            found.task.append(after.vertices[0].minflinkd.phases)
            old = new
        await cluster.cancel(job_id)


async def _our_rescales(cluster: Cluster, stream: ConstantStream, part: Part, restarts: int, found: Found) -> None:
    version = "v000"
    async with watched(cluster) as commits:
        first = stream.write(version=version, partitions=PARTITIONS, interval=INTERVAL, highest=part.highest)
        job_id = await cluster.submit(first)
        for number in range(1, restarts + 1):
            job = await _settled(cluster, job_id, stream, version, after=max(commits, default=0))
            began = max(commits)
            wanted = WIDE if number % 2 else PARTITIONS
            await cluster.client.rescale(job_id, {vertex.id: {"upperBound": wanted} for vertex in job.vertices})
            over = partial(_over, cluster, job_id, number)
            done = await until(over, f"rescale {number} of {job_id}", timeout=PATIENCE, pause=0.1)
            assert done.state == "completed", done
            moment = done.requested / 1000 + done.phases["handed_over"]
            processed = await until(partial(_seen, commits, moment), "its micro-batches in the log")
            await _settled(cluster, job_id, stream, version, after=max(commits))
            since = done.requested / 1000 - processed.last
            phases = {"requested": since} | {phase: since + seconds for phase, seconds in done.phases.items()}
            found.note(processed.gap, phases, stream.visible_gap_at(version, moment))
            quiet = [epoch for epoch in commits if began - SETTLED < epoch < began and epoch + 1 in commits]
            found.usual += [commits[epoch + 1] - commits[epoch] for epoch in sorted(quiet)]
        await cluster.cancel(job_id)


@dataclass(frozen=True)
class Processed:
    """Times of day."""

    last: float
    first: float

    @property
    def gap(self) -> float:
        return self.first - self.last


async def _seen(commits: Commits, stopped: float) -> Processed | None:
    """Return the commits around a restart.

    `stopped` is when the old version had ended.
    """
    end = max((epoch for epoch, at in commits.items() if at <= stopped), default=None)
    first = None if end is None else commits.get(end + 1)
    return None if end is None or first is None else Processed(commits[end], first)


async def _over(cluster: Cluster, job_id: str, number: int) -> HotRestartInfo | None:
    job = await cluster.client.job(job_id)
    return next((r for r in job.minflinkd.hot_restarts if r.number == number and r.over), None)


async def _settled(cluster: Cluster, job_id: str, stream: ConstantStream, version: str, *, after: int = 0) -> JobInfo:
    """Wait until the version has completed some micro-batches after this one, and published the first of them."""

    async def settled() -> JobInfo | None:
        job = await cluster.client.job(job_id)
        assert job.state not in ("FAILED", "CANCELED"), (await cluster.client.exceptions(job_id)).root_exception
        own = job.vertices[0].minflinkd
        many = job.state == "RUNNING" and own.batches >= SETTLED and own.batch_id >= after + SETTLED
        return job if many and stream.is_seen(version) else None

    return await until(settled, f"micro-batches of version {version} of {job_id}", timeout=PATIENCE, pause=0.1)


async def _checkpoint(cluster: Cluster, job_id: str, number: int) -> dict[str, float]:
    """Return the parts of a checkpoint's time, in seconds."""
    details = await cluster.client.get(f"/jobs/{job_id}/checkpoints/details/{number}", dict[str, Any])
    (task,) = details["tasks"].values()
    parts = {part: task["minflinkd"][part] for part in ("wait", "sync", "async")}
    parts |= {"trigger -> acknowledged": details["end_to_end_duration"], "metadata": details["minflinkd"]["metadata"]}
    return {name: milliseconds / 1000 for name, milliseconds in parts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="3 restarts, and one of a new process; tiny state, if no part is named"
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all without one")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    run(partial(measure, parts=options.parts), quick=options.quick)


if __name__ == "__main__":
    main()
