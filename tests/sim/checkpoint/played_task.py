"""A simulated task, which writes its state into physical files with the real writer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import Protocol

from minflinkd.checkpoint.causes import CheckpointNotPending
from minflinkd.checkpoint.coordinator import CheckpointCoordinator
from minflinkd.filemerging.segments import checksum, physical_file_name
from minflinkd.filemerging.writer import PhysicalFileWriter
from minflinkd.rpc.snapshot import StateFile, StateHandle, TaskSnapshot
from minflinkd.runtime.component import Crashed
from minflinkd.runtime.errors import ErrorInfo, MinflinkError
from minflinkd.runtime.ids import AttemptId, ResourceId, TaskId
from minflinkd.storage.location import Location
from tests.sim.checkpoint.weather import Line

State = dict[str, bytes]  # a task's files
SMALL_FILE = 300  # in bytes; so small that some snapshots have several physical files
RETRIES = 5
COMMON = tuple(bytes([number]) * (7 + 3 * number) for number in range(5))  # contents that disappear and come back


class Surroundings(Protocol):
    """What a task knows about the world."""

    rng: random.Random
    truth: dict[tuple[int, AttemptId], State]
    coordinator: CheckpointCoordinator

    def decline(self, attempt: AttemptId, number: int, error: ErrorInfo) -> None: ...


class PlayedTask:
    """One execution attempt, and the part of a TaskManager that works for it."""

    def __init__(
        self,
        world: Surroundings,
        task: TaskId,
        attempt: AttemptId,
        location: Location,
        state: State,
        known: dict[str, StateHandle],
    ) -> None:
        self.world, self.task, self.attempt, self.rng = world, task, attempt, world.rng
        self.resource = ResourceId(f"tm-{task}")
        self.line = Line(location.storage)
        self.location = Location(self.line, location.scheme, location.path)
        self.state, self.known = dict(state), known
        self.handles: dict[int, dict[str, StateHandle]] = {}  # of snapshots that are not confirmed
        self.uploads: dict[int, asyncio.Task[None]] = {}
        self.confirmed = 0

    def works(self) -> None:
        """Run a micro-batch. Files come and go, and small ones may return with an old content."""
        for _ in range(self.rng.randint(0, 4)):
            path = f"state/{self.rng.randint(0, 3)}"
            if self.rng.random() < 0.2:
                self.state.pop(path, None)
            else:
                unique = self.rng.random() < 0.3
                self.state[path] = self.rng.randbytes(self.rng.randint(0, 120)) if unique else self.rng.choice(COMMON)

    def trigger(self, number: int, epoch: int) -> None:
        if number not in self.uploads:
            self.works()
            self.world.truth[number, self.attempt] = dict(self.state)
            upload = self._upload(number, epoch, dict(self.state))
            self.uploads[number] = asyncio.create_task(upload, name=f"upload of {number} by {self.attempt}")

    async def _upload(self, number: int, epoch: int, state: State) -> None:
        await asyncio.sleep(self.rng.uniform(0, 3))
        known = dict(self.known)
        await asyncio.sleep(self.rng.uniform(0, self.rng.choice([1, 6])))  # the upload is large
        try:
            snapshot = await self._write(number, epoch, state, known)
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
        async with PhysicalFileWriter(self.location, name, max_file_size=SMALL_FILE) as writer:
            for path, data in sorted(state.items()):
                content = (len(data), checksum(data))
                handle = held.get(content)
                if handle is None or (handle.file in compacted and content not in written and self.rng.random() < 0.7):
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
        """Return older files whose live segments this snapshot rewrites."""
        files = sorted({handle.file for handle in handles})
        return (
            set(self.rng.sample(files, self.rng.randint(1, len(files)))) if files and self.rng.random() < 0.3 else set()
        )

    async def _acknowledge(self, snapshot: TaskSnapshot) -> bool:
        try:
            self.world.coordinator.acknowledge(snapshot)
        except CheckpointNotPending:  # it was refused, so this task has to delete the files
            for _ in range(RETRIES):
                try:
                    await self.location.delete_children(snapshot.physical_files)
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
        """Die in the middle of any work. Nothing is tidied up."""
        self.line.alive = False
        for upload in self.uploads.values():
            upload.cancel()
