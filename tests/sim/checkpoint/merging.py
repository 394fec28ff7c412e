"""A job whose tasks write their state into physical files, and everything that may happen to it (F11).

Real: the coordinator, its store and its queue of deletions, PhysicalFileWriter, read_segments. Played: the tasks, which
upload what the checkpoint confirmed last does not hold, and now and then write again what lies in older files (F6).
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from operator import is_
from pathlib import Path

from minflinkd.checkpoint.causes import CheckpointFailed, CheckpointKind, CheckpointNotPending
from minflinkd.checkpoint.driver import CheckpointCoordinator
from minflinkd.checkpoint.metadata import CompletedCheckpoint, decode
from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.checkpoint.store import CheckpointStore
from minflinkd.checkpoint.turn import StorageTurn
from minflinkd.filemerging.reader import read_segments
from minflinkd.filemerging.segments import checksum, physical_file_name
from minflinkd.filemerging.writer import PhysicalFileWriter
from minflinkd.rpc.network import RpcTimeout
from minflinkd.rpc.snapshot import StateFile, StateHandle, TaskSnapshot
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.component import Crashed
from minflinkd.runtime.errors import ErrorInfo, MinflinkError, NotFound
from minflinkd.runtime.ids import AttemptId, ResourceId, TaskId
from minflinkd.storage.location import Location
from tests.sim.checkpoint.weather import CALM, Weather, WeatherStorage
from tests.unit.checkpoint.builders import JOB, A, B

State = dict[str, bytes]  # of a task: its files
STORM = Weather(failures=0.15, delay=1.5, lateness=3.0)
TAKEOVER = 4.0  # seconds, longer than a listing is out of date
SMALL_FILE = 300  # bytes: a snapshot has several physical files now and then
RETRIES = 5


class Reader:
    """The real reader, on a loop of its own, so that virtual time stands still while it works in threads."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="reader")
        self._thread.start()

    def read(self, objects: Mapping[str, bytes], checkpoint: CompletedCheckpoint) -> dict[TaskId, State]:
        """What a restore from it lays out."""
        storage = WeatherStorage(random.Random(0))
        storage.objects = dict(objects)
        storage.weather = Weather(delay=0.0)
        root = Location(storage, "memory", f"/c/{JOB}")
        return asyncio.run_coroutine_threadsafe(self._read(root, checkpoint), self._loop).result(30)

    async def _read(self, root: Location, checkpoint: CompletedCheckpoint) -> dict[TaskId, State]:
        found = {}
        with tempfile.TemporaryDirectory() as directory:
            for task in checkpoint.tasks:
                target = Path(directory) / task.task_id
                await read_segments(root, {file.path: file.handle for file in task.files}, target)
                found[task.task_id] = {file.path: (target / file.path).read_bytes() for file in task.files}
        return found

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class PlayedTask:
    """One execution attempt, and the part of a TaskManager that works for it."""

    def __init__(
        self, world: MergingWorld, task: TaskId, attempt: AttemptId, state: State, known: dict[str, StateHandle]
    ) -> None:
        self.world, self.task, self.attempt, self.rng = world, task, attempt, world.rng
        self.resource = ResourceId(f"tm-{task}")
        self.state, self.known = dict(state), known
        self.handles: dict[int, dict[str, StateHandle]] = {}  # of snapshots that are not confirmed
        self.uploads: dict[int, asyncio.Task[None]] = {}
        self.confirmed = 0

    def works(self) -> None:
        """A micro-batch: files come and go, and small ones may come again with an old content."""
        for _ in range(self.rng.randint(0, 4)):
            path = f"state/{self.rng.randint(0, 9)}"
            if self.rng.random() < 0.3:
                self.state.pop(path, None)
            else:
                unique = self.rng.random() < 0.7
                data = self.rng.randbytes(self.rng.randint(0, 120)) if unique else bytes([self.rng.randint(0, 3)]) * 7
                self.state[path] = data

    def trigger(self, number: int, epoch: int) -> None:
        if number not in self.uploads:
            self.works()
            self.world.truth[number, self.attempt] = dict(self.state)
            upload = self._upload(number, epoch, dict(self.state))
            self.uploads[number] = asyncio.create_task(upload, name=f"upload of {number} by {self.attempt}")

    async def _upload(self, number: int, epoch: int, state: State) -> None:
        await asyncio.sleep(self.rng.uniform(0, 4))
        try:
            snapshot = await self._write(number, epoch, state, dict(self.known))
        except MinflinkError as error:
            self.world.decline(self.attempt, number, error.info())
            return
        self.handles[number] = {file.path: file.handle for file in snapshot.files}
        for _ in range(self.rng.choice([1, 1, 1, 2])):  # an answer may be lost
            await asyncio.sleep(self.rng.uniform(0, 2))
            if not await self._acknowledge(snapshot):
                return

    async def _write(self, number: int, epoch: int, state: State, known: dict[str, StateHandle]) -> TaskSnapshot:
        def name(sequence: int) -> str:
            return physical_file_name(epoch, number, self.attempt, self.resource, sequence)

        held = {(handle.length, handle.checksum): handle for handle in known.values()}
        compacted = self._to_compact(held.values())
        written: set[tuple[int, str]] = set()
        files = []
        async with PhysicalFileWriter(self.world.location, name, max_file_size=SMALL_FILE) as writer:
            for path, data in sorted(state.items()):
                content = (len(data), checksum(data))
                handle = held.get(content)
                if handle is None or (handle.file in compacted and content not in written):
                    handle = held[content] = await writer.append(data)
                    written.add(content)
                files.append(StateFile(path, handle))
            names = await writer.commit()
        return TaskSnapshot(
            task_id=self.task,
            attempt_id=self.attempt,
            resource_id=self.resource,
            checkpoint_id=number,
            batch_id=number,
            files=tuple(files),
            physical_files=names,
            rewritten=names if compacted else (),
        )

    def _to_compact(self, handles: Iterable[StateHandle]) -> set[str]:
        """Older files whose live segments this snapshot writes again."""
        files = sorted({handle.file for handle in handles})
        return (
            set(self.rng.sample(files, self.rng.randint(1, len(files)))) if files and self.rng.random() < 0.3 else set()
        )

    async def _acknowledge(self, snapshot: TaskSnapshot) -> bool:
        try:
            self.world.coordinator.acknowledge(snapshot)
        except CheckpointNotPending:  # refused: the files are ours to delete
            for _ in range(RETRIES):
                try:
                    await self.world.location.delete_children(snapshot.physical_files)
                    break
                except MinflinkError:
                    await asyncio.sleep(0.5)
            return False
        except Crashed:
            return False
        return True

    def confirm(self, number: int) -> None:
        if number in self.handles:
            self.known = self.handles[number]
        self.confirmed = max(self.confirmed, number)
        self.handles = {n: handles for n, handles in self.handles.items() if n > number}

    def abort(self, number: int) -> None:
        if number in self.uploads:
            self.uploads[number].cancel()
        self.handles.pop(number, None)

    def die(self) -> None:
        """In the midst of whatever it does; nothing is tidied up."""
        for upload in self.uploads.values():
            upload.cancel()


class MergingWorld:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        random.seed(seed)  # the jitter of retries
        self.storage = WeatherStorage(self.rng)
        self.location = Location(self.storage, "memory", f"/c/{JOB}")
        self.options = CheckpointOptions(
            interval=3.0,
            timeout=25.0,
            max_concurrent=self.rng.randint(1, 3),
            num_retained=self.rng.randint(1, 3),
            tolerable_failed=3,
            orphan_grace=60.0,
        )
        self.truth: dict[tuple[int, AttemptId], State] = {}
        self.tasks: dict[AttemptId, PlayedTask] = {}
        self.dead: list[PlayedTask] = []
        self.turn = StorageTurn(f"job {JOB}")
        self.reader = Reader()
        self.verified: dict[int, tuple[bytes | None, ...]] = {}
        self.restores = self.attempts = 0
        self.stopped = asyncio.Event()  # the tasks are to be restarted
        self.coordinator = self._new_coordinator()

    def _new_coordinator(self) -> CheckpointCoordinator:
        return CheckpointCoordinator(
            job_id=JOB,
            options=self.options,
            store=CheckpointStore(self.location, job_id=JOB, epoch=self.options.epoch, turn=self.turn),
            clock=SystemClock(),
            tasks=self,
            on_failure=self._failed,
        )

    def _failed(self, failure: CheckpointFailed) -> None:
        self.stopped.set()

    # --- the tasks, to the coordinator -------------------------------------------------------------------------------

    def _task(self, attempt: AttemptId) -> PlayedTask:
        if self.rng.random() < self.storage.weather.failures:
            raise RpcTimeout(f"{attempt} does not answer")
        if attempt not in self.tasks:
            raise NotFound(f"no attempt {attempt}")
        return self.tasks[attempt]

    async def send_trigger(
        self, attempt_id: AttemptId, checkpoint_id: int, epoch: int, *, oldest: int = 0, stop: bool = False
    ) -> None:
        await asyncio.sleep(self.rng.uniform(0, 0.5))
        self._task(attempt_id).trigger(checkpoint_id, epoch)

    async def notify_complete(self, attempt_id: AttemptId, checkpoint_id: int) -> None:
        await asyncio.sleep(self.rng.uniform(0, 5))  # its sinks publish
        self._task(attempt_id).confirm(checkpoint_id)
        if self.rng.random() < self.storage.weather.failures:
            raise RpcTimeout("the answer is lost")

    async def notify_aborted(self, attempt_id: AttemptId, checkpoint_id: int) -> None:
        await asyncio.sleep(self.rng.uniform(0, 0.5))
        self._task(attempt_id).abort(checkpoint_id)

    def decline(self, attempt: AttemptId, number: int, error: ErrorInfo) -> None:
        if self.coordinator.running and not self.coordinator.crashed.is_set():
            self.coordinator.decline(attempt, number, error)

    # --- what may happen ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        await self._coordinator_starts()
        await self.restart()

    async def restart(self) -> None:
        """Of all tasks, from the latest checkpoint."""
        self.stopped.clear()
        self._kill_tasks()
        self.coordinator.tasks_stopped()
        point = await self.coordinator.restore_point()
        restored: dict[TaskId, State] = {A: {}, B: {}}
        known: dict[TaskId, dict[str, StateHandle]] = {A: {}, B: {}}
        if point is not None:
            self.restores += 1
            restored = self.reader.read(self.storage.objects, point)
            known = {task.task_id: {file.path: file.handle for file in task.files} for task in point.tasks}
            for task in point.tasks:
                assert restored[task.task_id] == self.truth[point.checkpoint_id, task.attempt_id]
        fresh = {}
        for task in (A, B):
            self.attempts += 1
            fresh[task] = AttemptId(f"{self.attempts:032x}")
            self.tasks[fresh[task]] = PlayedTask(self, task, fresh[task], restored[task], known[task])
        self.coordinator.tasks_running(fresh)

    def _kill_tasks(self) -> None:
        for task in self.tasks.values():
            if self.rng.random() < 0.5:
                task.die()
            self.dead.append(task)  # else its uploads go on for a while, and come too late
        self.tasks = {}

    async def coordinator_dies(self) -> None:
        self.coordinator.crash(RuntimeError("killed"))
        await self.coordinator.aclose()
        await asyncio.sleep(TAKEOVER)
        self.options = replace(self.options, epoch=self.options.epoch + 1)
        await self._coordinator_starts()
        await self.restart()

    async def _coordinator_starts(self) -> None:
        while True:
            self.coordinator = self._new_coordinator()
            try:
                return await self.coordinator.start()
            except MinflinkError:
                await self.coordinator.aclose()
                await asyncio.sleep(1)

    async def request(self, kind: CheckpointKind = CheckpointKind.MANUAL) -> None:
        try:
            checkpoint = await self.coordinator.trigger(kind, forced=self.rng.random() < 0.5)
        except MinflinkError:
            return
        if kind is CheckpointKind.SAVEPOINT:
            await asyncio.sleep(self.rng.uniform(0, 20))  # it is being copied
            if any(path.endswith(f"chk-{checkpoint.checkpoint_id}/_metadata") for path in self.storage.objects):
                self.reader.read(self.storage.objects, checkpoint)
            self.coordinator.unpin(checkpoint.checkpoint_id)

    async def sweep(self) -> None:
        """By hand, with no grace at all."""
        try:
            found = await self.coordinator.orphans(before_ms=1)
            await self.location.delete_children([file.name for file in found.files])
        except MinflinkError:
            return

    # --- what must hold ----------------------------------------------------------------------------------------------

    def retained(self) -> list[CompletedCheckpoint]:
        return [decode(data) for path, data in sorted(self.storage.objects.items()) if path.endswith("/_metadata")]

    def check(self) -> None:
        """Every checkpoint in the storage restores byte for byte."""
        for checkpoint in self.retained():
            objects = tuple(self.storage.objects.get(self.location.child(f).path) for f in checkpoint.physical_files())
            known = self.verified.get(checkpoint.checkpoint_id, ())
            if len(known) == len(objects) and all(map(is_, known, objects)):
                continue  # not a byte of it was touched since
            self.verified[checkpoint.checkpoint_id] = objects
            found = self.reader.read(self.storage.objects, checkpoint)
            for task in checkpoint.tasks:
                assert found[task.task_id] == self.truth[checkpoint.checkpoint_id, task.attempt_id]

    def physical_files(self) -> set[str]:
        return {self.location.relative(path) for path in self.storage.objects if path.endswith(".seg")}

    async def come_to_rest(self) -> None:
        """The storage works, and more checkpoints are complete; nothing is left but what the retained ones name."""
        self.storage.weather = CALM
        if not self.coordinator.running or self.coordinator.crashed.is_set() or self.stopped.is_set():
            await self.restart()
        await asyncio.sleep(60)
        await self.restart()
        await asyncio.sleep(60)
        self.coordinator.tasks_stopped()
        self._kill_tasks()
        await asyncio.sleep(2 * self.options.orphan_grace)

    async def close(self) -> None:
        await self.coordinator.aclose()
        for task in [*self.dead, *self.tasks.values()]:
            task.die()
            if task.uploads:
                await asyncio.wait(task.uploads.values())
        self.reader.close()
