"""A coordinator and a TaskManager's snapshots, in real time, on a local storage that fails, is slow or is full.

Only the session child is a stand-in. It writes files when it is asked to link them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from minflinkd.checkpoint.causes import CheckpointFailed, FailureCause
from minflinkd.checkpoint.coordinator import CheckpointCoordinator
from minflinkd.checkpoint.metadata import decode
from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.checkpoint.store import CheckpointStore
from minflinkd.filemerging.compaction import CompactionLimits
from minflinkd.filemerging.policy import FileMerging
from minflinkd.jobgraph.model import Checkpointing, RuntimeMode, Source, Task, Vertex
from minflinkd.rpc import messages as m
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import AllocationId, AttemptId, LeaderId, ResourceId, TaskId, VertexId
from minflinkd.runtime.supervision import TaskOwner
from minflinkd.storage.faulty import FaultyStorage
from minflinkd.storage.registry import Storages
from minflinkd.taskmanager.attempts.attempt import Attempt
from minflinkd.taskmanager.attempts.local_snapshots import LocalSnapshots
from minflinkd.taskmanager.attempts.snapshotting import Snapshots
from minflinkd.taskmanager.child import protocol as sp
from minflinkd.taskmanager.child.process import SessionProcess
from minflinkd_local import LocalStorage
from tests.unit.checkpoint.builders import A1, B1, JOB, TASKS
from tests.waiting import until

FILES = 12  # state files in each snapshot
WRITES = ("create", "create_exclusive", "rename", "copy")


class Session:
    """Two tasks whose queries continue whatever happens to their snapshots."""

    async def ask(self, request: m.Message, timeout: float) -> Any:
        if not isinstance(request, sp.TakeSnapshot):
            return m.Done()
        target = Path(request.target_directory)
        target.mkdir(parents=True)
        files = []
        for number in range(FILES):
            path = f"{request.attempt_id}-{request.checkpoint_id}-{number}"
            (target / path).write_bytes(path.encode() * 10)
            files.append(sp.SnapshotFile(path, len(path) * 10))
        return sp.SnapshotTaken(batch_id=request.checkpoint_id, files=tuple(files))


class World:
    def __init__(self, base: Path, **options: Any) -> None:
        self.storage = FaultyStorage(LocalStorage())
        self.storages = Storages()
        self.storages.add(self.storage)
        self.location = self.storages.at(str(base / "storage")).child(JOB)
        self.options = CheckpointOptions(**options)
        self.failures: list[CheckpointFailed] = []
        self.owner = TaskOwner("TaskManager")
        self.snapshots = Snapshots(
            resource_id=ResourceId("tm-000000000001"),
            storages=self.storages,
            local=LocalSnapshots(base / "snapshots"),
            session=lambda: cast(SessionProcess, Session()),
            deliver=self.deliver,
            merging=FileMerging(limits=CompactionLimits(max_file_size=64)),  # each state file is a file of the storage
            tasks=self.owner,
        )
        self.attempts = {attempt: self.attempt(task, attempt, base) for task, attempt in TASKS.items()}
        self.coordinator = CheckpointCoordinator(
            options=self.options,
            store=CheckpointStore(self.location, job_id=JOB, epoch=1),
            clock=SystemClock(),
            tasks=self,
            on_failure=self.failures.append,
        )

    def attempt(self, task: TaskId, attempt: AttemptId, base: Path) -> Attempt:
        job = m.JobContext(
            job_id=JOB,
            name="copy",
            params={},
            mode=RuntimeMode.STREAMING,
            checkpointing=Checkpointing(),
            checkpoint_root=self.location.uri,
        )
        vertex = Vertex(id=VertexId(task), source=Source(format="rate"))
        deployment = m.DeployTask(
            job=job,
            task=Task(id=task, vertices=(vertex,), parallelism=1),
            allocation_id=AllocationId("x"),
            attempt_id=attempt,
            attempt_number=0,
            job_leader_id=LeaderId("jm"),
        )
        return Attempt.of(deployment, base / attempt, 1)

    async def deliver(self, attempt: Attempt, request: m.Request[m.Done]) -> None:
        if isinstance(request, m.AcknowledgeCheckpoint):
            self.coordinator.acknowledge(request.snapshot)
        elif isinstance(request, m.DeclineCheckpoint):
            self.coordinator.decline(request.attempt_id, request.checkpoint_id, request.error)

    async def send_trigger(
        self,
        attempt_id: AttemptId,
        checkpoint_id: int,
        epoch: int,
        *,
        oldest: int = 0,
        stop: bool = False,
        full: bool = False,
    ) -> None:
        request = m.TriggerCheckpoint(job_id=JOB, attempt_id=attempt_id, checkpoint_id=checkpoint_id, epoch=epoch)
        self.snapshots.trigger(self.attempts[attempt_id], request)

    async def notify_complete(self, attempt_id: AttemptId, checkpoint_id: int) -> None:
        request = m.NotifyCheckpointComplete(job_id=JOB, attempt_id=attempt_id, checkpoint_id=checkpoint_id)
        await self.snapshots.complete(self.attempts[attempt_id], request)

    async def notify_aborted(self, attempt_id: AttemptId, checkpoint_id: int) -> None:
        request = m.NotifyCheckpointAborted(job_id=JOB, attempt_id=attempt_id, checkpoint_id=checkpoint_id)
        await self.snapshots.abort(self.attempts[attempt_id], request)

    def names(self) -> set[str]:
        root = Path(self.location.path)
        found = (Path(at, name) for at, _, names in os.walk(root) for name in names)  # skips what goes meanwhile
        return {str(path.relative_to(root)) for path in found}

    def orphans(self) -> set[str]:
        """Return physical files that no checkpoint refers to, and anything that a writer left."""
        wanted = set[str]()
        for metadata in Path(self.location.path).glob("chk-*/_metadata"):
            with contextlib.suppress(FileNotFoundError):
                wanted |= decode(metadata.read_bytes()).physical_files()
        return {
            name for name in self.names() - wanted if not name.startswith("ids/") and not name.endswith("/_metadata")
        }

    def written(self) -> int:
        """Return the number of write requests that the storage has counted."""
        counts = self.storages.statistics()["file"]
        return sum(counts[kind].requests for kind in WRITES if kind in counts)


@contextlib.asynccontextmanager
async def running(base: Path, *, seen_to_work: bool = True, **options: Any) -> AsyncIterator[World]:
    """Run two tasks. With `seen_to_work`, one checkpoint is in the storage first, and ids are reserved."""
    world = World(base, **{"interval": 0.05, "timeout": 5.0, "orphan_grace": 0.4, **options})
    with capture_logs():
        async with world.coordinator as coordinator:
            coordinator.tasks_running(TASKS)
            if seen_to_work:
                await coordinator.trigger()
            yield world
        await world.owner.aclose()
        await world.storages.aclose()


async def test_a_storage_that_fails_every_third_write_costs_checkpoints_and_nothing_else(tmp_path: Path) -> None:
    """The failures are shown by name, the job lives, and nothing is left behind (C23, F7)."""
    async with running(tmp_path, tolerable_failed=10_000) as world:
        world.storage.fail_every = 3
        await until(lambda: world.coordinator.statistics().failed >= 5)
        causes = set(world.coordinator.statistics().failed_by_cause)
        assert FailureCause.STORAGE in causes
        assert causes <= {FailureCause.STORAGE, FailureCause.FINALIZE_FAILURE, FailureCause.TRIGGER_FAILURE}
        latest = world.coordinator.statistics().latest_failed
        assert latest is not None
        assert latest.error is not None
        assert latest.error.code == "storage-transient"
        assert world.failures == []
        world.storage.fail_every = None
        completed = world.coordinator.statistics().completed
        await until(lambda: world.coordinator.statistics().completed >= completed + 2)
        assert world.coordinator.statistics().consecutive_failures == 0
        world.coordinator.tasks_stopped()
        await until(lambda: not world.orphans())


async def test_a_full_storage_fails_the_job_only_beyond_the_tolerated_number(tmp_path: Path) -> None:
    """A job that tolerates the failures goes on when there is space again (C23)."""
    async with running(tmp_path, tolerable_failed=2) as world:
        world.storage.full = True
        await until(lambda: bool(world.failures))
        [failure] = world.failures
        assert failure.cause is FailureCause.STORAGE
        assert failure.error is not None
        assert failure.error.code == "storage-full"
        assert world.coordinator.statistics().failed_by_cause == {FailureCause.STORAGE: 3}
        world.storage.full = False
        world.coordinator.tasks_stopped()
        point = await world.coordinator.restore_point()
        assert point is not None
        assert point.checkpoint_id == 1
        world.coordinator.tasks_running(TASKS)
        await until(lambda: world.coordinator.statistics().completed >= 3)
        world.coordinator.tasks_stopped()
        await until(lambda: not world.orphans())


async def test_a_slow_storage_makes_checkpoints_slow_and_no_more(tmp_path: Path) -> None:
    """Each takes long, no other is begun meanwhile, and the warning gives the reason (C20, C42)."""
    async with running(tmp_path) as world:
        world.storage.latency = 0.05  # each task writes 12 files, one after the other
        completed = world.coordinator.statistics().completed
        await until(lambda: world.coordinator.statistics().completed >= completed + 2)
        statistics = world.coordinator.statistics()
        assert (statistics.failed, world.failures) == (0, [])
        assert statistics.latest_completed is not None
        assert statistics.latest_completed.duration_ms >= 12 * 50
        assert "for the upload of task" in statistics.latest_completed.warning


async def test_a_storage_that_is_too_slow_lets_checkpoints_expire(tmp_path: Path) -> None:
    """Uploads end with their checkpoint when it expires, and what they wrote is deleted (C21, C13)."""
    async with running(tmp_path, seen_to_work=False, timeout=0.3, tolerable_failed=1) as world:
        world.storage.latency = 0.1  # each task writes 12 files, one after the other
        await until(lambda: bool(world.failures))
        [failure] = world.failures
        assert failure.cause is FailureCause.EXPIRED
        assert failure.error is not None
        assert "tasks a, b have not acknowledged within 0.3 s" in failure.error.message
        world.coordinator.tasks_stopped()
        await until(lambda: not world.orphans())


@pytest.mark.parametrize("ending", ["another task declines", "it expires", "the tasks are stopped"])
async def test_an_aborted_checkpoint_writes_nothing_more_and_its_files_are_gone(tmp_path: Path, ending: str) -> None:
    """The recording storage shows it (C13)."""
    options = {"interval": 0.0, "timeout": 1.5, "tolerable_failed": 5, "orphan_grace": 3600.0}
    async with running(tmp_path, seen_to_work=False, **options) as world:
        world.storage.latency = 0.2
        request = asyncio.create_task(world.coordinator.trigger())
        await until(lambda: any(name.endswith(".seg") for name in world.names()))  # in the middle of the upload
        before = {name for name in world.names() if name.startswith("ids/")}
        match ending:
            case "another task declines":
                world.coordinator.decline(B1, 1, ErrorInfo(code="user-code", message="it broke"))
            case "the tasks are stopped":
                world.coordinator.tasks_stopped(frozenset({A1, B1}))  # they run on
        with pytest.raises(CheckpointFailed):
            await request
        await until(lambda: not world.snapshots._running)
        written = world.written()
        assert world.names() == before
        await asyncio.sleep(0.5)  # several writes' time, without anything to wait for
        assert world.written() == written
        assert world.names() == before
