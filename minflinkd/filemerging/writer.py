"""Writes the state files of one checkpoint one after another into physical files (F1, F2, F3)."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import xxhash

from minflinkd.filemerging.segments import CHUNK, HEADER
from minflinkd.rpc.snapshot import StateHandle
from minflinkd.runtime.crash_points import CrashPoint, reach
from minflinkd.runtime.errors import MinflinkError
from minflinkd.storage.interface import Writer
from minflinkd.storage.location import Location
from minflinkd.storage.os_errors import os_errors

DEFAULT_MAX_FILE_SIZE = 256 * 1024 * 1024  # bytes


class WriterClosed(MinflinkError):
    """The writer was committed or aborted, or an append failed. Only `abort` is possible now."""

    code = "physical-file-closed"


@dataclass
class FileCalls:
    """Requests that create and close physical files: their number, and the milliseconds they took together (F10)."""

    creates: int = 0
    create_ms: float = 0.0
    closes: int = 0
    close_ms: float = 0.0


class PhysicalFileWriter:
    """The physical files of one TaskManager and checkpoint. None exists before the first append.

    `root` is the job's checkpoint directory, and `name(n)` returns the n-th file's name in it. A file is finished when
    the next segment would make it exceed `max_file_size`. A larger segment gets its own file. With 0, each segment
    does. Appends may come from several tasks. Leaving the context without `commit` leaves nothing behind.
    """

    def __init__(
        self, root: Location, name: Callable[[int], str], *, max_file_size: int = DEFAULT_MAX_FILE_SIZE
    ) -> None:
        self._root = root
        self._name = name
        self._max = max_file_size
        self._lock = asyncio.Lock()
        self._usable = True
        self._committed = False
        self._sizes: dict[str, int] = {}  # of all files begun, finished or not
        self._given: set[str] = set()  # handed over to somebody who is responsible for them
        self._writer: Writer | None = None  # of the last file
        self._empty = True  # that file has no segment yet
        self._calls = FileCalls()

    @property
    def sizes(self) -> Mapping[str, int]:
        """Bytes by name, header included, of all files so far."""
        return dict(self._sizes)

    def take_calls(self) -> FileCalls:
        """Return the calls since this was last asked."""
        calls, self._calls = self._calls, FileCalls()
        return calls

    async def append(self, source: bytes | Path) -> StateHandle:
        """Add one state file. Raises StorageError; after that the writer accepts nothing more."""
        async with self._lock:
            if not self._usable:
                raise WriterClosed(f"the physical files in {self._root.uri} take no more segments")
            self._usable = False
            handle = await (self._append_file(source) if isinstance(source, Path) else self._append_bytes(source))
            self._usable = True
            return handle

    async def append_all(self, pieces: Sequence[tuple[bytes, str]]) -> list[StateHandle]:
        """Add small state files at once, given the bytes and checksum of each. Raises StorageError, like `append`."""
        async with self._lock:
            if not self._usable:
                raise WriterClosed(f"the physical files in {self._root.uri} take no more segments")
            self._usable = False
            handles: list[StateHandle] = []
            waiting: list[bytes] = []
            for data, digest in pieces:
                if waiting and self._is_full_for(len(data)):
                    await self._write(waiting)
                await self._room_for(len(data))
                handles.append(self._handle(len(data), digest))
                waiting.append(data)
            await self._write(waiting)
            self._usable = True
            return handles

    async def commit(self) -> tuple[str, ...]:
        """Make all files durable and visible, and return their names. Nothing can be added afterwards."""
        async with self._lock:
            if not self._committed:
                if not self._usable:
                    raise WriterClosed(f"the physical files in {self._root.uri} cannot be committed")
                self._usable = False
                await self._finish_file()
                self._committed = True
            return tuple(self._sizes)

    async def hand_over(self, names: Set[str]) -> None:
        """Make these files durable and visible. From then on, `abort` leaves them alone.

        Later appends go into another file. Raises WriterClosed, StorageError.
        """
        async with self._lock:
            if self._writer is not None and self._open_file in names:
                if not self._usable:
                    raise WriterClosed(f"the physical files in {self._root.uri} cannot be finished")
                self._usable = False
                await self._finish_file()
                self._usable = True
            self._given |= names

    async def abort(self) -> None:
        """Delete everything that was not handed over. After `commit` it does nothing. Idempotent."""
        async with self._lock:
            if self._committed:
                return
            self._usable = False
            try:
                if self._writer is not None:
                    await self._writer.abort()
            finally:
                if left := [name for name in self._sizes if name not in self._given]:
                    await self._root.delete_children(left)
                    for name in left:
                        del self._sizes[name]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.abort()

    async def _append_bytes(self, data: bytes) -> StateHandle:
        digest = await asyncio.to_thread(xxhash.xxh3_128_hexdigest, data) if len(data) > CHUNK else None
        writer = await self._room_for(len(data))
        await writer.append(data)
        return self._handle(len(data), digest or xxhash.xxh3_128_hexdigest(data))

    async def _append_file(self, path: Path) -> StateHandle:
        source = _StateFile(path)
        length = 0
        try:
            with os_errors(path):
                piece = await asyncio.to_thread(source.read)
            writer = await self._room_for(source.size)
            while piece:
                await writer.append(piece)
                length += len(piece)
                if source.at_end:
                    break
                with os_errors(path):
                    piece = await asyncio.to_thread(source.read)
        finally:
            if not source.at_end:
                await asyncio.to_thread(source.close)
        return self._handle(length, source.hasher.hexdigest())

    def _handle(self, length: int, digest: str) -> StateHandle:
        name = self._open_file
        handle = StateHandle(name, self._sizes[name], length, digest)
        self._sizes[name] += length
        self._empty = False
        return handle

    @property
    def _open_file(self) -> str:
        return next(reversed(self._sizes))

    async def _write(self, waiting: list[bytes]) -> None:
        if waiting and self._writer is not None:
            await self._writer.append(b"".join(waiting))
            waiting.clear()

    def _is_full_for(self, size: int) -> bool:
        return self._writer is not None and not self._empty and self._sizes[self._open_file] + size > self._max

    async def _room_for(self, size: int) -> Writer:
        if self._is_full_for(size):
            await self._finish_file()
            reach(CrashPoint.FILE)
        if self._writer is None:
            name = self._name(len(self._sizes))
            self._sizes[name] = 0
            began = time.monotonic()
            self._writer = await self._root.child(name).create()
            self._calls.creates += 1
            self._calls.create_ms += (time.monotonic() - began) * 1000
            await self._writer.append(HEADER)
            self._sizes[name] = len(HEADER)
            self._empty = True
        return self._writer

    async def _finish_file(self) -> None:
        if self._writer is not None:
            began = time.monotonic()
            await self._writer.commit()
            self._calls.closes += 1
            self._calls.close_ms += (time.monotonic() - began) * 1000
            self._writer = None


class _StateFile:
    """A local file, read and hashed in threads; a small one in a single thread call.

    Locked, because a cancelled append closes it while its last read may still be under way.
    """

    def __init__(self, path: Path) -> None:
        self.size = 0
        self.at_end = False
        self.hasher = xxhash.xxh3_128()
        self._path = path
        self._read = 0
        self._file: BinaryIO | None = None
        self._lock = threading.Lock()

    def read(self) -> bytes:
        with self._lock:
            if self.at_end:
                return b""
            if self._file is None:
                self._file = self._path.open("rb", buffering=0)
                self.size = os.fstat(self._file.fileno()).st_size
            data = self._file.read(CHUNK)
            self.hasher.update(data)
            self._read += len(data)
            if not data or self._read >= self.size:
                self._close()
            return data

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        self.at_end = True
        if self._file is not None:
            self._file.close()
