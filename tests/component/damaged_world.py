"""A job with three checkpoints and a sink, on a real disk, to damage them. No task runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec.structs import replace as copy

from minflinkd.checkpoint import layout
from minflinkd.checkpoint.coordinator import CheckpointCoordinator
from minflinkd.checkpoint.metadata import CompletedCheckpoint, encode
from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.checkpoint.statistics import CheckpointCounts
from minflinkd.checkpoint.store import CheckpointStore
from minflinkd.filemerging.segments import checksum
from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.model import Delivery, Input, JobGraph, OnDamage, Sink, Source, Vertex
from minflinkd.jobmaster.falling_back import FallingBack
from minflinkd.jobmaster.origin import Origin
from minflinkd.jobmaster.restoring import RestorePoint, Restoring
from minflinkd.jobmaster.sinks import JobSinks
from minflinkd.jobmaster.succession import InheritedCheckpoints
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.ids import TaskId, VertexId
from minflinkd.storage.faulty import FaultyStorage
from minflinkd.storage.publication import (
    SinkTransaction,
    StagedFile,
    final_name,
    publish,
    staged_directory,
)
from minflinkd.storage.registry import Storages
from minflinkd_local import LocalStorage
from tests.files import files_below
from tests.unit.checkpoint.builders import A1, JOB, completed, name, snapshot
from tests.unit.checkpoint.stored_checkpoints import StoredCheckpoints

TASK, OUT = TaskId("in"), VertexId("out")
FILES = Sink(format="parquet", path="${root}")
COMMITS = Sink(python="m:C", delivery=Delivery.EXACTLY_ONCE)
REPEATS = Sink(format="kafka")


class Tasks:
    """No task runs here."""

    async def send_trigger(self, *_: Any, **__: Any) -> None: ...
    async def notify_complete(self, *_: Any) -> None: ...
    async def notify_aborted(self, *_: Any) -> None: ...


class World:
    """A job with the checkpoints 1, 2 and 3. Each has a file of its own and one that all share."""

    def __init__(self, base: Path, sink: Sink = FILES, on_damage: OnDamage = OnDamage.REFUSE, **tasks: Any) -> None:
        self.stored = StoredCheckpoints(base / "job")
        self.output = base / "out"
        self.storage = FaultyStorage(LocalStorage())
        self.storages = Storages()
        self.storages.add(self.storage)
        source = Vertex(id=VertexId("in"), source=Source(format="rate"))
        out = Vertex(id=OUT, inputs=(Input(id=source.id),), sink=sink)
        other = Vertex(id=VertexId("other"), source=Source(format="rate"))
        more = (other, Vertex(id=VertexId("more"), inputs=(Input(id=other.id),), sink=REPEATS)) if tasks else ()
        self.graph = JobGraph(name="job", params={"root": str(self.output)}, vertices=(source, out, *more))
        self.tasks = {task.id: task for task in chain(self.graph)}
        self.options = CheckpointOptions(num_retained=3, on_damage=on_damage)
        self.epoch = 1
        self.stored.put(layout.id_block(1))
        self.stored.put(name(9, A1))  # all refer to it
        self.checkpoints = [self.checkpoint(number) for number in (1, 2, 3)]

    def checkpoint(self, number: int, *transactions: SinkTransaction, tells: bool = True) -> CompletedCheckpoint:
        """Write a checkpoint, or write it again with transactions."""
        taken = copy(
            snapshot(number, TASK, A1, reuses=(name(9, A1),), digest=checksum(b"x")), transactions=transactions
        )
        counts = CheckpointCounts(completed=number) if tells else None
        made = copy(completed(number, taken), counts=counts)
        self.stored.put(name(number, A1))
        self.stored.put(layout.metadata_file(number), encode(made))
        return made

    def stage(self, number: int) -> SinkTransaction:
        """Stage a file of output, and write the checkpoint that covers it."""
        directory = staged_directory(JOB, OUT, A1, number)
        (self.output / directory).mkdir(parents=True)
        (self.output / directory / "part-0.parquet").write_bytes(b"rows")
        final = final_name(JOB, OUT, A1, number, "part-0.parquet")
        file = StagedFile(f"{directory}/part-0.parquet", final, 4)
        owed = SinkTransaction(job_id=JOB, sink=OUT, root=str(self.output), checkpoint_id=number, files=(file,))
        self.checkpoint(number, owed)
        return owed

    async def published(self, number: int) -> None:
        await publish(self.storages, self.stage(number))

    def visible(self) -> set[str]:
        return {path.name for path in files_below(self.output) if "_minflinkd" not in path.parts}

    def damage(self, file: str, how: str = "flipped") -> str:
        path = self.stored.directory / file
        match how:
            case "flipped":
                content = bytearray(path.read_bytes())
                content[-1] ^= 1
                path.write_bytes(content)
            case "truncated":
                path.write_bytes(path.read_bytes()[:-1])
            case "removed":
                path.unlink()
        return file

    @asynccontextmanager
    async def job_master(self) -> AsyncIterator[tuple[Restoring, FallingBack, CheckpointCoordinator]]:
        """Bring up what a JobMaster restores with. Each one has a later epoch, as after a restart of the daemon."""
        root = self.storages.at(str(self.stored.directory))
        self.epoch += 1
        coordinator = CheckpointCoordinator(
            options=replace(self.options, epoch=self.epoch),
            store=CheckpointStore(root, job_id=JOB, epoch=self.epoch),
            clock=SystemClock(),
            tasks=Tasks(),
            on_failure=lambda failure: None,
        )
        falling_back = FallingBack(
            JOB,
            coordinator=coordinator,
            graph=self.graph,
            storages=self.storages,
            directory=root.uri,
            clock=SystemClock(),
        )
        restoring = Restoring(
            JOB,
            coordinator=coordinator,
            origin=Origin(self.storages, self.graph),
            sinks=JobSinks(self.storages, job_id=JOB, graph=self.graph),
            inherited=InheritedCheckpoints(),
            falling_back=falling_back,
            clock=SystemClock(),
        )
        async with coordinator:
            yield restoring, falling_back, coordinator

    async def restore(self, *, suspected: bool = True) -> RestorePoint:
        async with self.job_master() as (restoring, falling_back, _):
            if suspected:
                falling_back.suspect()
            return await restoring.prepare(self.tasks, frozenset(self.tasks))


def own(number: int) -> str:
    return name(number, A1)
