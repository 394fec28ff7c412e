"""What is uploaded: a file, or bytes. Each can be read from its beginning for every try of an upload."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from io import BufferedReader
from pathlib import Path
from typing import Protocol

from minflinkd.blob.incoming import SMALL
from minflinkd.blob.transfer import CHUNK
from minflinkd.storage.os_errors import os_errors


class Source(Protocol):
    async def digest(self) -> tuple[str, int]:
        """Return the SHA-256 in hex and the size in bytes of what a body would send now."""
        ...

    def body(self, size: int, progress: Callable[[int], None]) -> AsyncIterable[bytes]:
        """Return the first `size` bytes. Each iteration starts over, because aiohttp itself may repeat a request.

        Raises StorageError, and OSError if fewer bytes are left by then: another try finds what is there.
        """
        ...

    async def aclose(self) -> None: ...


def open_source(path: Path) -> FileSource | BytesSource:
    """Open a file for upload. A small file is read at once: each thread call costs as much as its transfer. Blocking.

    Raises StorageError.
    """
    with os_errors(path), ExitStack() as closing:
        file = closing.enter_context(path.open("rb"))
        data = file.read(SMALL + 1)
        if len(data) <= SMALL:
            return BytesSource(data)
        closing.pop_all()
        return FileSource(file)


class FileSource:
    """An open file that its owner may still be writing to. After a change, the next try hashes it again."""

    def __init__(self, file: BufferedReader) -> None:
        self._file = file
        self._hashed: tuple[int, int] | None = None  # size and time of the file when it was hashed
        self._sha256 = ""

    async def digest(self) -> tuple[str, int]:
        """Raises StorageError."""
        return await asyncio.to_thread(self._digest)

    def body(self, size: int, progress: Callable[[int], None]) -> AsyncIterable[bytes]:
        return _Body(self._read, size, progress)

    async def aclose(self) -> None:
        await asyncio.to_thread(self._file.close)

    def _digest(self) -> tuple[str, int]:
        with os_errors(self._file.name):
            status = os.fstat(self._file.fileno())
            found = (status.st_size, status.st_mtime_ns)
            if found != self._hashed:
                self._file.seek(0)
                self._sha256, self._hashed = hashlib.file_digest(self._file, "sha256").hexdigest(), found
            return self._sha256, status.st_size

    async def _read(self, offset: int, size: int) -> bytes:
        return await asyncio.to_thread(self._read_piece, offset, size)

    def _read_piece(self, offset: int, size: int) -> bytes:
        with os_errors(self._file.name):
            self._file.seek(offset)
            data = self._file.read(size)
        if not data:
            raise OSError(f"{self._file.name} became shorter while it was read")
        return data


class BytesSource:
    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    async def digest(self) -> tuple[str, int]:
        if len(self._data) <= SMALL:
            return _sha256_of(self._data), len(self._data)
        return await asyncio.to_thread(_sha256_of, self._data), len(self._data)

    def body(self, size: int, progress: Callable[[int], None]) -> AsyncIterable[bytes]:
        async def read(offset: int, length: int) -> bytes:
            return bytes(self._data[offset : offset + length])

        return _Body(read, size, progress)

    async def aclose(self) -> None:
        """Nothing to close."""


def _sha256_of(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


class _Body:
    def __init__(
        self, read: Callable[[int, int], Awaitable[bytes]], size: int, progress: Callable[[int], None]
    ) -> None:
        self._read = read
        self._size = size
        self._progress = progress

    async def __aiter__(self) -> AsyncIterator[bytes]:
        offset = 0
        while offset < self._size:
            self._progress(offset)
            data = await self._read(offset, min(CHUNK, self._size - offset))
            offset += len(data)
            yield data
