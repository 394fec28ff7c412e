"""Random graphs of tasks that fail and restart in part, with exchanges on a real disk (C2, C3, C5, R16).

Each task remembers all rows that it has processed: that is its state, and what a snapshot holds. Sources run out of
rows, some early. At the end, each task must have processed every row of its sources exactly once, and know that no more
comes, whatever has failed, and whatever message was late or lost.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest

from minflinkd.jobgraph.model import Input as Edge
from minflinkd.jobgraph.model import Task, Vertex
from minflinkd.jobmaster.scheduler.exchanges import exchanges
from minflinkd.runtime.ids import TaskId, VertexId
from minflinkd.taskmanager.exchange.channels import CheckpointEnded, CutState, StartingPoint, TaskChannels
from minflinkd.taskmanager.exchange.input import RESTORED, Input
from minflinkd.taskmanager.exchange.log import (
    DATA,
    ENTRIES,
    DataFile,
    Entry,
    EntryKind,
    ExchangeDamaged,
    LogWriter,
    begin_reading,
)

STEPS = 250
ROWS = 100  # bytes that a row is said to have


@dataclass(frozen=True)
class Snapshot:
    cut: CutState
    rows: tuple[str, ...]
    unread: Path


@dataclass
class Attempt:
    """A task that runs: its channels, its rows, and the micro-batch in progress, if there is one."""

    channels: TaskChannels
    directory: Path
    log: Path
    rows: list[str]
    positions: dict[VertexId, int]
    batch: int
    processing: tuple[list[str], dict[VertexId, int]] | None = None
    triggered: dict[int, Path] = field(default_factory=dict)
    rows_at: dict[int, int] = field(default_factory=dict)  # micro-batch -> how many rows its end has
    ended: bool = False


class Job:
    """A drawn job with its coordinator, whose messages to the tasks are late or lost."""

    def __init__(self, root: Path, seed: int, *, hold: bool = True) -> None:
        self.root, self.rng, self.hold = root, random.Random(seed), hold
        self.now = 0.0
        names = "abcdef"[: self.rng.randint(2, 6)]
        self.sources = {
            name: "".join(sorted(self.rng.sample(names[:at], self.rng.randint(0 if at > 1 else 1, min(at, 2)))))
            if at
            else ""
            for at, name in enumerate(names)
        }
        self.readers = {name: [r for r, read in self.sources.items() if name in read] for name in names}
        self.graph = exchanges([task(*edge) for edge in self.sources.items()])
        self.replay = self.rng.choice([0, 50_000, 10_000_000])
        self.aligned_timeout = self.rng.choice([None, 2.0]) if hold else None
        self.attempts: dict[str, Attempt] = {}
        self.known_replayable: dict[str, bool] = {}  # as the JobMaster knows it: old news
        self.completed: dict[str, Snapshot] | None = None
        self.exhausted: set[str] = set()  # sources that have no more rows
        self.last_id = 0
        self.pending: dict[str, Snapshot] | None = None  # of checkpoint `last_id`
        self.messages: list[tuple[str, str, int]] = []  # what, to which task, about which checkpoint
        self.partial = 0  # restarts in which a task ran on
        self.damaged = 0  # restarts that found entries gone
        self.restart(frozenset(names))

    # --- restarts ------------------------------------------------------------------------------------------------

    def fail(self, failed: set[str]) -> None:
        if self.pending is not None:
            self.end_checkpoint("abort")
        while True:
            affected = self.graph.affected(
                [TaskId(name) for name in failed], lambda name: self.known_replayable.get(name, False)
            )
            reader = self.restart(frozenset(affected))
            if reader is None:
                self.partial += len(affected) < len(self.sources)
                return
            self.damaged += 1
            failed = {*failed, *affected, *self.sources[reader]}

    def restart(self, names: frozenset[str]) -> str | None:
        """Restart these tasks. Return one that has found its input gone, if there is one."""
        self.messages = [m for m in self.messages if m[1] not in names]
        for name in names:
            self.attempts.pop(name, None)
            self.known_replayable.pop(name, None)
        for name in sorted(names):
            try:
                self.attempts[name] = self.begin(name)
            except ExchangeDamaged:
                return name
        return None

    def begin(self, name: str) -> Attempt:
        saved = self.completed[name] if self.completed is not None else None
        directory = self.root / uuid4().hex
        first = {VertexId(v): saved.cut.cut.barriers[VertexId(v)] if saved else 0 for v in self.sources[name]}
        positions = dict(first)
        inputs = []
        for vertex, at in first.items():
            restored = directory / vertex / RESTORED
            if saved is not None and (saved.unread / vertex).exists():
                restored.parent.mkdir(parents=True)
                (restored).symlink_to(saved.unread / vertex)
                positions[vertex] = min(int(p.name) for p in (restored / ENTRIES).glob("*"))
            log = self.attempts[vertex].log
            begin_reading(log, name, at)
            reading = Input(
                vertex,
                log,
                restored,
                reader=name,
                position=positions[vertex],
                first=at,
                idle_timeout=None,
                oldest=self.last_id + 1,
            )
            inputs.append(reading)
        log = directory / "log"
        output = None
        if self.readers[name]:
            output = LogWriter(
                log, tuple(self.readers[name]), first=saved.cut.output if saved else 0, replay=self.replay
            )
            output.describe("{}")
        channels = TaskChannels(
            tuple(inputs),
            output,
            StartingPoint(positions, batch_id=saved.cut.batch_id if saved else -1, oldest=self.last_id + 1),
            hold=self.hold,
            aligned_timeout=self.aligned_timeout,
            clock=lambda: self.now,
        )
        rows = list(saved.rows) if saved else []
        at = {channels.published: len(rows)}
        return Attempt(channels, directory, log, rows, positions, channels.published, rows_at=at)

    # --- micro-batches -------------------------------------------------------------------------------------------

    def plan(self, name: str) -> bool:
        """Begin a micro-batch if there is input. Return whether it was begun."""
        attempt = self.attempts[name]
        if attempt.processing is not None or attempt.ended:
            return False
        rows, ends = list[str](), dict[VertexId, int]()
        for vertex in map(VertexId, self.sources[name]):
            start = attempt.positions[vertex]
            ends[vertex] = attempt.channels.readable(vertex, start)
            for file in attempt.channels.data_files(vertex, start, ends[vertex]):
                rows += json.loads(file.read_text("utf-8"))
        if not self.sources[name]:
            number = len(attempt.rows)
            rows = [f"{name}{number + one}" for one in range(self.rng.randint(1, 3))]
            rows = [] if name in self.exhausted else rows
        if (not rows and ends == attempt.positions) or (not rows and not ends) or not attempt.channels.begin():
            return False
        attempt.processing = rows, ends
        return True

    def finish(self, name: str) -> None:
        attempt = self.attempts[name]
        if attempt.processing is None:
            return
        rows, ends = attempt.processing
        entry = None
        if attempt.channels.output is not None:
            file = f"{uuid4().hex}.parquet"
            (attempt.log / DATA / file).write_text(json.dumps([f"{row}{name}" for row in rows]), "utf-8")
            files = (DataFile(file, len(rows), len(rows) * ROWS),) if rows else ()
            entry = Entry(kind=EntryKind.DATA, files=files, batch_id=attempt.batch + 1)
        attempt.rows += rows
        attempt.batch += 1
        attempt.rows_at[attempt.batch] = len(attempt.rows)
        attempt.positions = ends
        assert attempt.channels.publish(attempt.batch, ends, entry)
        attempt.channels.backlog()
        attempt.processing = None

    def end(self, name: str) -> bool:
        """End a task that has processed all of its input. Return whether it ended now."""
        attempt = self.attempts[name]
        if attempt.ended or attempt.processing is not None:
            return False
        if not (attempt.channels.all_ended() if self.sources[name] else name in self.exhausted):
            return False
        attempt.channels.put_end()
        attempt.ended = True
        return True

    # --- checkpoints ---------------------------------------------------------------------------------------------

    def trigger(self) -> None:
        if self.pending is None:
            self.last_id += 1
            self.pending = {}
            self.messages += [("trigger", name, self.last_id) for name in self.sources]

    def end_checkpoint(self, what: str) -> None:
        self.pending = None
        self.messages += [(what, name, self.last_id) for name in self.sources if self.rng.random() < 0.8]

    def deliver(self) -> None:
        if not self.messages:
            return
        what, name, number = self.messages.pop(self.rng.randrange(len(self.messages)))
        attempt = self.attempts[name]
        match what:
            case "trigger":
                target = attempt.triggered[number] = attempt.directory / f"snapshot-{number}"
                oldest = number if self.pending is not None and number == self.last_id else 0
                attempt.channels.trigger(number, target, oldest=oldest)
            case "confirm":
                attempt.channels.confirm(number)
            case "abort":
                attempt.triggered.pop(number, None)
                attempt.channels.abort(number)

    def take(self, name: str) -> None:
        """Look whether a triggered checkpoint has been cut, and acknowledge it."""
        attempt = self.attempts[name]
        for number, target in list(attempt.triggered.items()):
            try:
                made = attempt.channels.await_cut(number, 0.0)
            except CheckpointEnded:
                del attempt.triggered[number]
                if number == self.last_id and self.pending is not None:
                    self.end_checkpoint("abort")
                continue
            if made is None:
                continue
            del attempt.triggered[number]
            if number == self.last_id and self.pending is not None:
                rows = attempt.rows[: attempt.rows_at[made.batch_id]]
                self.pending[name] = Snapshot(made, tuple(rows), target)
                if self.pending.keys() == self.sources.keys():
                    self.completed = self.pending
                    self.end_checkpoint("confirm")

    # --- a run ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        names = list(self.sources)
        for _ in range(STEPS):
            self.now += self.rng.random()
            name = self.rng.choice(names)
            match self.rng.choices(
                ["plan", "finish", "deliver", "take", "trigger", "abort", "fail", "told", "exhaust", "end"],
                [20, 20, 25, 20, 3, 0.5, 1.2, 5, 0.3, 10],
            )[0]:
                case "plan":
                    self.plan(name)
                case "finish":
                    self.finish(name)
                case "deliver":
                    self.deliver()
                case "take":
                    self.attempts[name].channels.poll()
                    self.take(name)
                case "trigger":
                    self.trigger()
                case "abort" if self.pending is not None:
                    self.end_checkpoint("abort")
                case "fail":
                    self.fail({name, *(self.rng.choice(names) for _ in range(self.rng.randint(0, 1)))})
                case "told":
                    self.known_replayable[name] = self.attempts[name].channels.replayable
                case "exhaust" if not self.sources[name]:
                    self.exhausted.add(name)
                case "end":
                    self.end(name)
        self.settle()

    def settle(self) -> None:
        """Let all tasks process everything, and end. No message is lost from here on."""
        self.exhausted = {name for name, read in self.sources.items() if not read}
        if self.pending is not None:
            self.pending = None
        self.messages = [m for m in self.messages if m[0] != "trigger"]
        for name in self.sources:
            for number in range(1, self.last_id + 1):
                self.messages.append(("abort", name, number))
        while self.messages:
            self.deliver()
        while True:
            for name in self.sources:
                self.finish(name)
            # All of them, not only the first.
            if not sum([*map(self.plan, self.sources), *map(self.end, self.sources)]):
                return

    def expected(self, name: str) -> list[str]:
        """Return all rows that come to a task, over all ways."""
        if not self.sources[name]:
            return [f"{name}{number}" for number in range(len(self.attempts[name].rows))]
        return [f"{row}{source}" for source in self.sources[name] for row in self.expected(source)]


def task(name: str, sources: str) -> Task:
    inputs = tuple(Edge(id=VertexId(one), exchange=True) for one in sources)
    vertex = Vertex(id=VertexId(name), inputs=inputs, sql="SELECT 1")
    return Task(id=TaskId(name), vertices=(vertex,), parallelism=1)


def processed(job: Job) -> Mapping[str, list[str]]:
    return {name: sorted(attempt.rows) for name, attempt in job.attempts.items()}


@pytest.mark.parametrize("seed", [pytest.param(n, marks=[pytest.mark.slow] if n >= 60 else []) for n in range(400)])
def test_every_row_is_processed_once_although_tasks_restart_in_part(tmp_path: Path, seed: int) -> None:
    """Exactly-once, aligned and unaligned; and every task ends, or a bounded job would never."""
    job = Job(tmp_path, seed)
    job.run()
    assert processed(job) == {name: sorted(job.expected(name)) for name in job.sources}
    assert [name for name, attempt in job.attempts.items() if not attempt.ended] == []


@pytest.mark.parametrize("seed", [pytest.param(n, marks=[pytest.mark.slow] if n >= 20 else []) for n in range(100)])
def test_every_row_is_processed_at_least_once_although_tasks_restart_in_part(tmp_path: Path, seed: int) -> None:
    job = Job(tmp_path, seed, hold=False)
    job.run()
    for name, rows in processed(job).items():  # more than that: what was read ahead of a barrier
        assert set(rows) >= set(job.expected(name))
    assert [name for name, attempt in job.attempts.items() if not attempt.ended] == []


def test_the_runs_restart_in_part_and_also_find_what_is_gone(tmp_path: Path) -> None:
    """Otherwise the runs above would show nothing."""
    jobs = [Job(tmp_path / str(seed), seed) for seed in range(60)]
    for job in jobs:
        job.run()
    assert sum(job.partial for job in jobs) > 20
    assert sum(job.damaged for job in jobs) >= 1
