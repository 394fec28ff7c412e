"""A job's tasks and a storage in memory, for the coordinator in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial

from minflinkd.checkpoint.causes import CheckpointFailed
from minflinkd.checkpoint.coordinator import CheckpointCoordinator
from minflinkd.checkpoint.hooks import MasterHook
from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.checkpoint.store import CheckpointStore
from minflinkd.checkpoint.turn import StorageTurn
from minflinkd.rpc.network import RpcTimeout
from minflinkd.runtime.clock import Clock, SystemClock
from minflinkd.runtime.errors import NotFound
from minflinkd.runtime.ids import AttemptId, TaskId
from minflinkd.storage.interface import Capabilities, Entry, ObjectExists, ObjectNotFound, Storage, StorageFull, Writer
from minflinkd.storage.location import Location
from minflinkd.storage.publication import SinkTransaction
from tests.unit.checkpoint.builders import JOB, TASKS, name, snapshot


class MemoryStorage(Storage):
    """Objects in a dict.

    Nothing can be written or deleted below the prefixes in `broken`. Below those in `stalled`, a request is carried out
    once they are removed, even if nobody waits for it any more.
    """

    scheme = ("memory",)
    capabilities = Capabilities(exclusive_create=True, consistent_list=True)

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.broken: set[str] = set()
        self.stalled: set[str] = set()
        self._threads: set[asyncio.Task[None]] = set()

    def check(self, path: str) -> None:
        if any(part in path for part in self.broken):
            raise StorageFull(f"memory: {path}: no space left")

    async def answer(self, path: str, act: Callable[[], object]) -> None:
        self.check(path)
        if any(part in path for part in self.stalled):
            await asyncio.shield(self._late(path, act))
        else:
            act()

    def _late(self, path: str, act: Callable[[], object]) -> asyncio.Future[None]:
        async def thread() -> None:
            while any(part in path for part in self.stalled):  # noqa: ASYNC110 - in virtual time
                await asyncio.sleep(0.1)
            act()

        task = asyncio.create_task(thread())
        self._threads.add(task)
        task.add_done_callback(self._threads.discard)
        return task

    async def open_read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        if path not in self.objects:
            raise ObjectNotFound(f"memory: {path} does not exist")
        yield self.objects[path][offset : None if length is None else offset + length]

    async def create(self, path: str) -> Writer:
        return MemoryWriter(self, path)

    async def create_exclusive(self, path: str, data: bytes) -> None:
        self.check(path)
        if path in self.objects:
            raise ObjectExists(f"memory: {path} exists")
        self.objects[path] = data

    async def list(self, prefix: str) -> AsyncIterator[Entry]:
        for path in sorted(self.objects):
            if path.startswith(prefix.rstrip("/") + "/"):
                yield Entry(path, len(self.objects[path]), 0)

    async def delete(self, paths: Sequence[str], *, below: str | None = None) -> None:
        for path in paths:
            await self.answer(path, partial(self.objects.pop, path, None))

    async def stat(self, path: str) -> Entry:
        if path not in self.objects:
            raise ObjectNotFound(f"memory: {path} does not exist")
        return Entry(path, len(self.objects[path]), 0)

    async def rename(self, source: str, target: str) -> None:
        self.objects[target] = self.objects.pop(source)


class MemoryWriter(Writer):
    def __init__(self, storage: MemoryStorage, path: str) -> None:
        self.storage, self.path, self.data = storage, path, b""

    async def append(self, data: bytes | memoryview) -> None:
        self.data += data

    async def commit(self) -> Entry:
        await self.storage.answer(self.path, partial(self.storage.objects.__setitem__, self.path, self.data))
        return Entry(self.path, len(self.data), 0)

    async def abort(self) -> None: ...


class World:
    """Two tasks that answer a trigger after `snapshot_takes` seconds, and publish after `publish_takes`."""

    def __init__(self, hooks: Mapping[str, MasterHook] | None = None, **options: object) -> None:
        self.hooks = dict(hooks or {})
        self.clock: Clock = SystemClock()
        self.storage = MemoryStorage()
        self.location = Location(self.storage, "memory", f"/c/{JOB}")
        self.options = CheckpointOptions(**options)  # type: ignore[arg-type]
        self.snapshot_takes: dict[TaskId, float | None] = dict.fromkeys(TASKS, 0.5)  # None: never
        self.publish_takes: dict[TaskId, float] = dict.fromkeys(TASKS, 0.0)
        self.unreachable: set[AttemptId] = set()
        self.attempts: dict[TaskId, AttemptId] = {}
        self.triggered: list[tuple[float, int]] = []  # when the first task was triggered
        self.incremental = False  # each snapshot refers to a file of the checkpoint confirmed before it
        self.confirmed: dict[TaskId, str] = {}
        self.heard: list[tuple[AttemptId, int]] = []  # triggers that reached their task
        self.oldest: dict[int, int] = {}  # the oldest pending checkpoint that the trigger of each checkpoint named
        self.aborted: list[tuple[AttemptId, int]] = []
        self.published: list[tuple[AttemptId, int]] = []
        self.failures: list[CheckpointFailed] = []
        self.leads = True
        self.turn = StorageTurn(f"job {JOB}")
        self.coordinator = self.new_coordinator()

    def new_coordinator(self) -> CheckpointCoordinator:
        return CheckpointCoordinator(
            options=self.options,
            store=CheckpointStore(
                self.location, job_id=JOB, epoch=self.options.epoch, turn=self.turn, leads=lambda: self.leads
            ),
            clock=self.clock,
            tasks=self,
            on_failure=self.failures.append,
            hooks=self.hooks,
        )

    def run(self, attempts: dict[TaskId, AttemptId]) -> None:
        self.attempts = attempts
        self.coordinator.tasks_running(attempts)

    def task_of(self, attempt_id: AttemptId) -> TaskId:
        if attempt_id in self.unreachable:
            raise RpcTimeout(f"{attempt_id} does not answer")
        for task, attempt in self.attempts.items():
            if attempt == attempt_id:
                return task
        raise NotFound(f"no attempt {attempt_id}")

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
        self.oldest[checkpoint_id] = oldest
        task, loop = self.task_of(attempt_id), asyncio.get_running_loop()
        self.heard.append((attempt_id, checkpoint_id))
        if all(known != checkpoint_id for _, known in self.triggered):
            self.triggered.append((loop.time(), checkpoint_id))
        if (takes := self.snapshot_takes[task]) is not None:
            loop.call_later(takes, self.acknowledge, task, attempt_id, checkpoint_id)

    def acknowledge(self, task: TaskId, attempt_id: AttemptId, checkpoint_id: int) -> None:
        reuses = (self.confirmed[task],) if self.incremental and task in self.confirmed else ()
        transaction = SinkTransaction(job_id=JOB, sink=task, root="memory:///out", checkpoint_id=checkpoint_id)
        taken = snapshot(checkpoint_id, task, attempt_id, reuses=reuses, transactions=(transaction,))
        for file in taken.physical_files:
            self.storage.objects[self.location.child(file).path] = b"state"
        if self.coordinator.running:
            self.coordinator.acknowledge(taken)

    async def notify_complete(self, attempt_id: AttemptId, checkpoint_id: int) -> None:
        task = self.task_of(attempt_id)
        await asyncio.sleep(self.publish_takes[task])
        self.published.append((attempt_id, checkpoint_id))
        self.confirmed[task] = name(checkpoint_id, attempt_id)

    async def notify_aborted(self, attempt_id: AttemptId, checkpoint_id: int) -> None:
        self.task_of(attempt_id)
        self.aborted.append((attempt_id, checkpoint_id))

    def names(self, under: str) -> list[str]:
        names = [self.location.relative(path) for path in sorted(self.storage.objects)]
        return [name for name in names if name.startswith(under)]
