"""A job whose tasks write their state into physical files, and everything that may happen to it (F11).

The coordinator, its store, its queue of deletions, PhysicalFileWriter and read_segments are real. The tasks are
simulated. They upload what the last confirmed checkpoint does not hold, and sometimes rewrite segments of older files
(F6).
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import replace
from operator import is_
from pathlib import Path

from minflinkd.checkpoint.causes import CheckpointFailed, CheckpointKind
from minflinkd.checkpoint.coordinator import CheckpointCoordinator
from minflinkd.checkpoint.metadata import CompletedCheckpoint, decode
from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.checkpoint.store import CheckpointStore
from minflinkd.checkpoint.turn import StorageTurn
from minflinkd.filemerging.reader import read_segments
from minflinkd.rpc.network import RpcTimeout
from minflinkd.rpc.snapshot import StateHandle
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.crash_points import CrashPoint
from minflinkd.runtime.errors import ErrorInfo, MinflinkError, NotFound
from minflinkd.runtime.ids import AttemptId, TaskId
from minflinkd.storage.location import Location
from tests.sim.checkpoint.played_task import PlayedTask, State
from tests.sim.checkpoint.weather import CALM, Line, Weather, WeatherStorage
from tests.unit.checkpoint.builders import JOB, A, B

STORM = Weather(failures=0.15, delay=1.5, lateness=3.0)
TAKEOVER = 12.0  # in seconds; listings are never out of date for so long, and a dead process's requests have ended
FILE_GONE = "checkpoint-file-not-retained"
OF_A_COORDINATOR = frozenset(
    [
        CrashPoint.METADATA,
        CrashPoint.COMPLETE,
        CrashPoint.NOTIFY,
        CrashPoint.NOTIFIED,
        CrashPoint.SUBSUME,
        CrashPoint.DELETED,
    ]
)
DEATHS = 0.02  # the chance that a coordinator dies at a point between two steps


class Killed(Exception):
    """The coordinator dies at this point."""


class Reader:
    """The real reader, on an event loop of its own. Virtual time stands still while it works in threads."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="reader")
        self._thread.start()

    def read(self, objects: Mapping[str, bytes], checkpoint: CompletedCheckpoint) -> dict[TaskId, State]:
        """Return the files that a restore from this checkpoint creates."""
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


class MergingWorld:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        random.seed(seed)  # for the jitter of retries
        self.storage = WeatherStorage(self.rng)
        self.storage.on_change = self._changed
        self.storage.slow = "/_metadata"
        self.location = Location(self.storage, "memory", f"/c/{JOB}")
        self.options = CheckpointOptions(
            interval=self.rng.choice([1.0, 3.0]),
            timeout=self.rng.choice([12.0, 25.0]),
            max_concurrent=self.rng.randint(1, 4),
            num_retained=self.rng.choice([1, 1, 2, 3]),
            tolerable_failed=3,
            orphan_grace=self.rng.choice([6.0, 20.0, 60.0]),
        )
        self.truth: dict[tuple[int, AttemptId], State] = {}
        self.tasks: dict[AttemptId, PlayedTask] = {}
        self.dead: list[PlayedTask] = []
        self.turn = StorageTurn(f"job {JOB}")
        self.line = Line(self.storage)
        self.mortal = False  # whether coordinators die between steps
        self.reader = Reader()
        self.named: dict[str, frozenset[str]] = {}  # physical files, by the path of the metadata that names them
        self.gone: list[str] = []  # those that did not exist at some moment
        self.verified: dict[int, tuple[bytes | None, ...]] = {}
        self.restores = self.attempts = 0
        self.stopped = asyncio.Event()  # set when the tasks have to be restarted
        self.coordinator = self._new_coordinator()

    def _new_coordinator(self) -> CheckpointCoordinator:
        return CheckpointCoordinator(
            options=self.options,
            store=CheckpointStore(
                replace(self.location, storage=self.line), job_id=JOB, epoch=self.options.epoch, turn=self.turn
            ),
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
        self,
        attempt_id: AttemptId,
        checkpoint_id: int,
        epoch: int,
        *,
        oldest: int = 0,
        stop: bool = False,
        full: bool = False,
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
        """Restart all tasks from the latest checkpoint."""
        self.stopped.clear()
        self._kill_tasks()
        self.coordinator.tasks_stopped()
        try:
            point = await self.coordinator.restore_point()
        except CheckpointFailed:  # it is not settled yet which checkpoint is the latest
            self.stopped.set()
            return
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
            self.tasks[fresh[task]] = PlayedTask(self, task, fresh[task], self.location, restored[task], known[task])
        self.coordinator.tasks_running(fresh)

    def _kill_tasks(self) -> None:
        for task in self.tasks.values():
            if self.rng.random() < 0.5:
                task.die()
            self.dead.append(task)  # without `die`, its uploads go on for a while and come too late
        self.tasks = {}

    def reaches(self, point: CrashPoint) -> None:
        """The coordinator may die at this point. `go_on` then starts the next one."""
        if not self.mortal or not self.coordinator.running or point not in OF_A_COORDINATOR:
            return
        if self.rng.random() < DEATHS:
            if self.rng.random() < 0.5:
                asyncio.get_running_loop().call_later(self.rng.uniform(0, 2), self._kill, self.coordinator)
                return
            self.coordinator.crash(Killed(point))
            raise asyncio.CancelledError  # the code that reached this point goes no further

    def _kill(self, coordinator: CheckpointCoordinator) -> None:
        if self.mortal and coordinator.running:
            coordinator.crash(Killed())

    async def coordinator_dies(self) -> None:
        self.coordinator.crash(Killed())
        await self._coordinator_follows()

    async def _coordinator_follows(self) -> None:
        """Start the next coordinator, in the same daemon or in another.

        In another daemon, with the next epoch, nothing is known of this one.
        """
        await self.coordinator.aclose()
        if self.storage.weather.lateness:  # a store cannot be rebuilt from objects that are not listed yet
            await asyncio.sleep(TAKEOVER)
        if self.rng.random() < 0.5:
            self.line.alive = False
            self.line, self.turn = Line(self.storage), StorageTurn(f"job {JOB}")
            await asyncio.sleep(TAKEOVER)
            self.options = replace(self.options, epoch=self.options.epoch + 1)
        await self._coordinator_starts()
        await self.restart()

    async def go_on(self) -> None:
        """Go on after a coordinator has died or tasks have failed."""
        while self.coordinator.crashed.is_set() or self.stopped.is_set():
            if self.coordinator.crashed.is_set():
                await self._coordinator_follows()
            else:
                await self.restart()

    async def a_taskmanager_dies(self) -> None:
        """A TaskManager dies. It takes a while until that is noticed."""
        if self.tasks:
            attempt = self.rng.choice(list(self.tasks))
            self.tasks[attempt].die()
            self.dead.append(self.tasks.pop(attempt))
            await asyncio.sleep(self.rng.uniform(0, 4))
            self.stopped.set()

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
        """Sweep by hand, without any grace period."""
        try:
            found = await self.coordinator.orphans(before_ms=1)
            await self.location.delete_children([file.name for file in found.files])
        except MinflinkError:
            return

    # --- what must hold ----------------------------------------------------------------------------------------------

    def _changed(self, path: str) -> None:
        """Check that each file that metadata names exists at every moment."""
        if path.endswith("/_metadata"):
            data = self.storage.objects.get(path)
            files = decode(data).physical_files() if data is not None else frozenset()
            self.named[path] = frozenset(self.location.child(file).path for file in files)
            self.gone += [f"{path} came without {file}" for file in self.named[path] - self.storage.objects.keys()]
        elif path not in self.storage.objects:
            self.gone += [f"{path} went before {named}" for named, files in self.named.items() if path in files]

    def retained(self) -> list[CompletedCheckpoint]:
        return [decode(data) for path, data in sorted(self.storage.objects.items()) if path.endswith("/_metadata")]

    def check(self) -> None:
        """Check that every checkpoint in the storage restores byte for byte, and that tasks missed no file."""
        assert not self.gone, self.gone
        cause = self.coordinator.crash_cause
        assert cause is None or isinstance(cause, Killed), f"the coordinator broke its own rules: {cause}"
        for record in self.coordinator.statistics().history:
            assert record.error is None or record.error.code != FILE_GONE, record.error
        for checkpoint in self.retained():
            objects = tuple(self.storage.objects.get(self.location.child(f).path) for f in checkpoint.physical_files())
            known = self.verified.get(checkpoint.checkpoint_id, ())
            if len(known) == len(objects) and all(map(is_, known, objects)):
                continue  # no byte of it has changed since
            self.verified[checkpoint.checkpoint_id] = objects
            for task in checkpoint.tasks:
                found = {file.path: self._segment(file.handle) for file in task.files}
                assert found == self.truth[checkpoint.checkpoint_id, task.attempt_id]

    def _segment(self, handle: StateHandle) -> bytes:
        data = self.storage.objects.get(self.location.child(handle.file).path, b"")
        return data[handle.offset : handle.offset + handle.length]

    def physical_files(self) -> set[str]:
        return {self.location.relative(path) for path in self.storage.objects if path.endswith(".seg")}

    async def come_to_rest(self) -> None:
        """Repair the storage and complete more checkpoints, until nothing is left but what the retained ones name."""
        self.storage.weather = CALM
        self.mortal = False
        await self.go_on()
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
