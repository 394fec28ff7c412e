"""Writing to object stores: small objects with one request, larger ones in parts that are sent in parallel."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence

import msgspec

from minflinkd.runtime.errors import Conflict
from minflinkd.storage.interface import Entry, Storage, Writer
from minflinkd.storage.writing import Unbroken


class Part(msgspec.Struct, frozen=True):
    """A stored part; numbers start at 1. The backend wants to see `tag` again at the end."""

    number: int
    size: int  # bytes
    tag: str = ""


class MultipartStorage(Storage):
    """A backend that stores an object with one request, or part by part in an upload with an id.

    Every abstract method below is one step: it raises the kinds of StorageError, does not retry itself, and is safe to
    repeat, even after a lost answer.
    """

    part_size: int = 8 << 20  # bytes
    parts_at_once: int = 4  # of one writer; 1 if the backend needs parts in order

    @abstractmethod
    async def put(self, path: str, data: bytes, *, exclusive: bool = False) -> Entry:
        """Store a whole object, replacing an object of that name; with `exclusive`, raises ObjectExists instead."""

    @abstractmethod
    async def start_parts(self, path: str) -> str:
        """Begin an upload and return its id."""

    @abstractmethod
    async def put_part(self, path: str, upload: str, number: int, offset: int, data: bytes, *, last: bool) -> Part:
        """Store one part. All but the last have `part_size` bytes."""

    @abstractmethod
    async def finish_parts(self, path: str, upload: str, parts: Sequence[Part]) -> Entry:
        """Make an object from the parts, replacing an object of that name."""

    @abstractmethod
    async def drop_parts(self, path: str, upload: str) -> None:
        """Delete all of an upload. It is no error if it is unknown or finished."""

    async def create(self, path: str) -> Writer:
        return PartWriter(self, path)

    async def create_exclusive(self, path: str, data: bytes) -> None:
        await self.put(path, data, exclusive=True)

    async def rename(self, source: str, target: str) -> None:
        """Copy, then delete. Each is retried on its own: after the deletion, the whole would find no source."""
        if source == target:
            await self.stat(source)
            return
        await self.copy(source, target)
        await self.delete([source])


class PartWriter(Writer):
    """Collects `part_size` bytes and sends them while the next arrive, at most `parts_at_once` parts in parallel.

    Memory: (parts_at_once + 1) * part_size.
    """

    paced = True

    def __init__(self, storage: MultipartStorage, path: str) -> None:
        self._storage = storage
        self._path = path
        self._waiting = bytearray()
        self._upload: str | None = None
        self._offset = 0
        self._count = 0
        self._sending: set[asyncio.Task[Part]] = set()
        self._parts: list[Part] = []
        self._committed: Entry | None = None
        self._unbroken = Unbroken(path)
        self._closed = False

    async def append(self, data: bytes | memoryview) -> None:
        self._check_open()
        with self._unbroken.step():
            self._waiting += data
            while len(self._waiting) > self._storage.part_size:  # the last part is never empty
                piece = bytes(self._waiting[: self._storage.part_size])
                del self._waiting[: self._storage.part_size]
                await self._send(piece, last=False)

    async def commit(self) -> Entry:
        if self._committed is None:
            self._check_open()
            with self._unbroken.step():
                self._committed = await self._finish()
            self._closed = True
        return self._committed

    async def abort(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._waiting.clear()
        for task in self._sending:
            task.cancel()
        if self._sending:
            await asyncio.wait(self._sending)
        if self._upload is not None:
            upload = self._upload
            await self._storage.attempts("drop", self._path, lambda: self._storage.drop_parts(self._path, upload))

    async def _finish(self) -> Entry:
        storage, path, rest = self._storage, self._path, bytes(self._waiting)
        if self._upload is None:
            return await storage.attempts("put", path, lambda: storage.put(path, rest))
        upload = self._upload
        if rest:
            self._waiting.clear()
            await self._drain(0)  # the last part comes after all others, for backends that complete the object with it
            await self._send(rest, last=True)
        await self._drain(0)
        parts = sorted(self._parts, key=lambda part: part.number)
        return await storage.attempts("finish", path, lambda: storage.finish_parts(path, upload, parts))

    async def _send(self, data: bytes, *, last: bool) -> None:
        storage, path = self._storage, self._path
        if self._upload is None:
            self._upload = await storage.attempts("start", path, lambda: storage.start_parts(path))
        upload, number, offset = self._upload, self._count + 1, self._offset
        self._count, self._offset = number, offset + len(data)
        await self._drain(storage.parts_at_once - 1)
        step = storage.attempts("part", path, lambda: storage.put_part(path, upload, number, offset, data, last=last))
        task = asyncio.create_task(step, name=f"part {number} of {path}")
        task.add_done_callback(_take_note)
        self._sending.add(task)

    async def _drain(self, limit: int) -> None:
        """Wait until at most `limit` parts are being sent. Raises what a part raised."""
        while len(self._sending) > limit:
            done, self._sending = await asyncio.wait(self._sending, return_when=asyncio.FIRST_COMPLETED)
            self._parts += [task.result() for task in done]

    def _check_open(self) -> None:
        if self._closed:
            raise Conflict(f"the writer of {self._path} is closed")


def _take_note(task: asyncio.Task[Part]) -> None:
    """Mark a failure as retrieved, even if nobody waits for it: if several parts fail, only one is reported."""
    if not task.cancelled():
        task.exception()
