"""A place in a storage: a backend and a path in it, so that callers join names, never strings."""

from __future__ import annotations

import posixpath
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Self

from minflinkd.storage.interface import (
    Entry,
    InvalidPath,
    ObjectNotFound,
    ObjectTooLarge,
    Storage,
    Writer,
    closable,
)

LARGEST_RECORD = 256 * 1024**2  # bytes; metadata of a checkpoint has some 500 for each file of its state


def relative_path(text: str) -> str:
    """Return `text` if it stays inside any directory that it is joined to. Raises InvalidPath."""
    parts = text.split("/")
    if not text or "\0" in text or any(part in ("", ".", "..") for part in parts):
        raise InvalidPath(f"{text[:120]!r} is not a relative path", hint="names joined by /, without . and ..")
    return text


@dataclass(frozen=True)
class Location:
    """An object or a directory. Immutable and cheap to create."""

    storage: Storage
    scheme: str
    path: str

    @property
    def uri(self) -> str:
        return f"{self.scheme}://{self.path}"

    @property
    def name(self) -> str:
        return posixpath.basename(self.path)

    def child(self, *names: str) -> Self:
        """Return a place below this one. Each name may be a relative path. Raises InvalidPath if it leads elsewhere."""
        path = self.path.rstrip("/")
        for name in names:
            path = f"{path}/{relative_path(name)}"
        return type(self)(self.storage, self.scheme, path)

    def relative(self, path: str) -> str:
        """Return the path of an object in this directory, relative to it. Raises InvalidPath."""
        prefix = self.path.rstrip("/") + "/"
        if not path.startswith(prefix):
            raise InvalidPath(f"{path!r} does not lie in {self.uri}")
        return path[len(prefix) :]

    def open_read(self, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        return self.storage.open_read(self.path, offset, length)

    async def read_bytes(self, at_most: int = LARGEST_RECORD) -> bytes:
        """Read a whole small object. Raises ObjectNotFound, and ObjectTooLarge if it has more than `at_most` bytes."""
        chunks, size = list[bytes](), 0
        async with aclosing(closable(self.open_read())) as pieces:
            async for chunk in pieces:
                chunks.append(chunk)
                size += len(chunk)
                if size > at_most:
                    raise ObjectTooLarge(f"{self.uri} has more than {at_most} bytes: it is no record of minflinkd's")
        return b"".join(chunks)

    async def create(self) -> Writer:
        return await self.storage.create(self.path)

    async def create_exclusive(self, data: bytes) -> None:
        """Raises ObjectExists."""
        await self.storage.create_exclusive(self.path, data)

    async def write_bytes(self, data: bytes) -> Entry:
        """Write a small object durably and as a whole, replacing an object of that name."""
        async with await self.storage.create(self.path) as writer:
            await writer.append(data)
            return await writer.commit()

    async def stat(self) -> Entry:
        """Raises ObjectNotFound."""
        return await self.storage.stat(self.path)

    async def exists(self) -> bool:
        try:
            await self.stat()
        except ObjectNotFound:
            return False
        return True

    def list(self) -> AsyncIterator[Entry]:
        """Yield every object below this directory, with its full path, which `relative` shortens."""
        return self.storage.list(self.path)

    async def rename(self, target: Self) -> None:
        """Raises ObjectNotFound."""
        await self.storage.rename(self.path, target.path)

    async def delete(self) -> None:
        """Delete this object, if it exists."""
        await self.storage.delete([self.path])

    async def delete_children(self, names: Iterable[str]) -> None:
        """Delete objects below this directory, and the directories below it that become empty."""
        await self.storage.delete([self.child(name).path for name in names], below=self.path)

    async def delete_tree(self, *, page: int = 1000) -> int:
        """Delete every object below this directory, and the directory. Returns the number of objects."""
        deleted, paths = 0, list[str]()
        async for entry in self.list():
            paths.append(entry.path)
            if len(paths) == page:
                await self.storage.delete(paths, below=self.path)
                deleted, paths = deleted + len(paths), []
        await self.storage.delete([*paths, self.path], below=self.path)
        return deleted + len(paths)
