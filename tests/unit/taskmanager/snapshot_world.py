"""Snapshots of running tasks on a real disk, with stand-ins for the session child and the coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from minflinkd.checkpoint.layout import parse_physical_file
from minflinkd.filemerging.compaction import CompactionLimits, SpaceUse, file_uses, space_use
from minflinkd.filemerging.policy import FileMerging
from minflinkd.filemerging.reader import read_segments
from minflinkd.jobgraph.model import Checkpointing, RuntimeMode, Source, Task, Vertex
from minflinkd.rpc import messages as m
from minflinkd.rpc.snapshot import StateHandle, TaskSnapshot
from minflinkd.runtime.errors import MinflinkError, RemoteError
from minflinkd.runtime.ids import AllocationId, AttemptId, JobId, LeaderId, ResourceId, TaskId, VertexId
from minflinkd.runtime.supervision import TaskOwner
from minflinkd.storage.faulty import FaultyStorage
from minflinkd.storage.registry import Storages
from minflinkd.taskmanager.attempts.attempt import Attempt
from minflinkd.taskmanager.attempts.local_snapshots import LocalSnapshots
from minflinkd.taskmanager.attempts.snapshotting import Snapshots
from minflinkd.taskmanager.child import protocol as sp
from minflinkd.taskmanager.child.process import SessionProcess
from minflinkd_local import LocalStorage
from tests.waiting import until

JOB, ATTEMPT, TASK = JobId("1" * 32), AttemptId("2" * 32), TaskId("a")
OTHER_ATTEMPT, OTHER_TASK = AttemptId("3" * 32), TaskId("b")


def state(number: int, kind: str = "changelog") -> str:
    return f"state/0/0/{number}_{UUID(int=number)}.{kind}"


@dataclass
class Session:
    """Writes `files` into each snapshot. While it is `busy`, it waits for a micro-batch boundary that never comes."""

    files: dict[str, bytes] = field(default_factory=dict)
    others: dict[str, bytes] | None = None  # of the second task; None: the same files
    busy: bool = False
    busy_attempts: set[AttemptId] = field(default_factory=set)
    asked: list[m.Message] = field(default_factory=list)

    def files_of(self, attempt_id: AttemptId) -> dict[str, bytes]:
        return self.others if self.others is not None and attempt_id == OTHER_ATTEMPT else self.files

    async def ask(self, request: m.Message, timeout: float) -> Any:
        self.asked.append(request)
        if isinstance(request, sp.TakeSnapshot):
            if self.busy or request.attempt_id in self.busy_attempts:
                await asyncio.Event().wait()
            target, content_of = Path(request.target_directory), self.files_of(request.attempt_id)
            for path, content in content_of.items():
                (target / path).parent.mkdir(parents=True, exist_ok=True)
                (target / path).write_bytes(content)
            files = tuple(sp.SnapshotFile(path, len(content)) for path, content in content_of.items())
            return sp.SnapshotTaken(batch_id=request.checkpoint_id, files=files)
        return m.Done()


@dataclass
class World:
    base: Path
    snapshots: Snapshots
    local: LocalSnapshots
    session: Session
    storage: FaultyStorage
    storages: Storages
    attempt: Attempt
    other: Attempt
    delivered: list[m.Message] = field(default_factory=list)
    refusal: MinflinkError | None = None
    silent: bool = False

    async def deliver(self, _: Attempt, request: m.Request[m.Done]) -> None:
        self.delivered.append(request)
        if self.silent:
            await asyncio.Event().wait()
        if self.refusal is not None:
            raise RemoteError(self.refusal.info())

    def trigger(self, number: int, *, stop: bool = False, full: bool = False) -> None:
        self._trigger(self.attempt, number, stop=stop, full=full)

    def _trigger(self, attempt: Attempt, number: int, *, stop: bool = False, full: bool = False) -> None:
        attempt_id = attempt.deployment.attempt_id
        request = m.TriggerCheckpoint(
            job_id=JOB, attempt_id=attempt_id, checkpoint_id=number, epoch=1, stop=stop, full=full
        )
        self.snapshots.trigger(attempt, request)

    def trigger_both(self, number: int) -> None:
        for attempt in (self.attempt, self.other):
            self._trigger(attempt, number)

    async def take_both(self, number: int) -> tuple[TaskSnapshot, TaskSnapshot]:
        self.trigger_both(number)
        await until(lambda: not self.snapshots._running)
        first, second = self.acknowledged(number), self.acknowledged(number, OTHER_ATTEMPT)
        assert first is not None
        assert second is not None
        return first, second

    async def confirmed_both(self, number: int) -> tuple[TaskSnapshot, TaskSnapshot]:
        taken = await self.take_both(number)
        for attempt in (self.attempt, self.other):
            done = m.NotifyCheckpointComplete(
                job_id=JOB, attempt_id=attempt.deployment.attempt_id, checkpoint_id=number
            )
            await self.snapshots.complete(attempt, done)
        return taken

    def subsume(self, *retained: TaskSnapshot) -> SpaceUse:
        """Delete every file that none of these needs, as a coordinator does. Return the space that they take."""
        kept = {file.handle.file for snapshot in retained for file in snapshot.files}
        for path in self.physical_files():
            if path.name not in kept:
                path.unlink()
        space = space_of(retained)
        assert sum(path.stat().st_size for path in self.physical_files()) == space.stored
        return space

    def physical_files(self) -> list[Path]:
        return sorted((self.base / "storage").rglob("*.seg"))

    async def take(self, number: int, *, full: bool = False) -> TaskSnapshot:
        self.trigger(number, full=full)
        await until(lambda: self.acknowledged(number) is not None)
        await until(lambda: (ATTEMPT, number) not in self.snapshots._running)
        return cast(TaskSnapshot, self.acknowledged(number))

    async def confirmed(self, number: int) -> TaskSnapshot:
        taken = await self.take(number)
        await self.complete(number)
        return taken

    async def complete(self, number: int) -> None:
        done = m.NotifyCheckpointComplete(job_id=JOB, attempt_id=ATTEMPT, checkpoint_id=number)
        await self.snapshots.complete(self.attempt, done)

    async def abort(self, number: int) -> None:
        aborted = m.NotifyCheckpointAborted(job_id=JOB, attempt_id=ATTEMPT, checkpoint_id=number)
        await self.snapshots.abort(self.attempt, aborted)

    def acknowledged(self, number: int, attempt_id: AttemptId = ATTEMPT) -> TaskSnapshot | None:
        for message in self.delivered:
            if isinstance(message, m.AcknowledgeCheckpoint):
                snapshot = message.snapshot
                if (snapshot.checkpoint_id, snapshot.attempt_id) == (number, attempt_id):
                    return snapshot
        return None

    def stored(self) -> set[int]:
        """Return the ids of the checkpoints that have physical files in the storage."""
        return {parse_physical_file(path.name)[1] for path in self.physical_files()}

    def copies(self) -> set[str]:
        return self.local_copies(TASK)

    def local_copies(self, task_id: TaskId) -> set[str]:
        directory = self.local.root / JOB / task_id
        return {path.name for path in directory.iterdir()} if directory.exists() else set()

    async def restored(self, snapshot: TaskSnapshot) -> dict[str, bytes]:
        target = self.base / f"restored-{snapshot.checkpoint_id}-{snapshot.task_id}"
        root = self.storages.at(self.attempt.deployment.job.checkpoint_root)
        await read_segments(root, {file.path: file.handle for file in snapshot.files}, target)
        return {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()}


def space_of(snapshots: Iterable[TaskSnapshot]) -> SpaceUse:
    """Return the space that these snapshots take and need in the storage, from the sizes that they record."""
    handles: set[StateHandle] = set()
    sizes: dict[str, int] = {}
    for snapshot in snapshots:
        handles.update(file.handle for file in snapshot.files)
        sizes.update(snapshot.file_sizes)
    return space_use(file_uses(handles, sizes))


@asynccontextmanager
async def running(
    base: Path,
    *,
    retained: int | None = None,
    max_file_size: int = 1 << 20,
    max_file_age: float = 60.0,
    merging: bool = True,
    **faults: Any,
) -> AsyncIterator[World]:
    storages, storage = Storages(), FaultyStorage(LocalStorage(), **faults)
    storages.add(storage)
    local, session, tasks = LocalSnapshots(base / "snapshots"), Session(), TaskOwner("test")
    context = m.JobContext(
        job_id=JOB,
        name="copy",
        params={},
        mode=RuntimeMode.STREAMING,
        checkpointing=Checkpointing(num_retained=retained),
        checkpoint_root=f"file://{base}/storage/job",
    )

    def attempt_of(task_id: TaskId, attempt_id: AttemptId) -> Attempt:
        vertex = Vertex(id=VertexId(task_id), source=Source(format="rate"))
        deployment = m.DeployTask(
            job=context,
            task=Task(id=task_id, vertices=(vertex,), parallelism=1),
            allocation_id=AllocationId("x"),
            attempt_id=attempt_id,
            attempt_number=0,
            job_leader_id=LeaderId("jm"),
        )
        return Attempt.of(deployment, base / f"attempt-{task_id}", 1)

    world = World(
        base,
        Snapshots(
            resource_id=ResourceId("tm-1"),
            storages=storages,
            local=local,
            session=lambda: cast(SessionProcess, session),
            deliver=lambda attempt, request: world.deliver(attempt, request),
            merging=FileMerging(
                limits=CompactionLimits(max_file_size=max_file_size), max_file_age=max_file_age, enabled=merging
            ),
            tasks=tasks,
        ),
        local,
        session,
        storage,
        storages,
        attempt_of(TASK, ATTEMPT),
        attempt_of(OTHER_TASK, OTHER_ATTEMPT),
    )
    yield world
    await tasks.aclose()
    await storages.aclose()
