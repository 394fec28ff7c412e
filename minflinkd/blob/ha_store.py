"""The copies of PERMANENT blobs in the HA store: `<job>/<key>` in a directory of any storage backend."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from minflinkd.blob.filling import fill
from minflinkd.blob.incoming import Incoming
from minflinkd.blob.keys import Blob, BlobKey, owner_name, parse_owner
from minflinkd.runtime.errors import InvalidId
from minflinkd.runtime.ids import JobId
from minflinkd.storage.interface import ObjectNotFound, Writer
from minflinkd.storage.location import Location


@dataclass(frozen=True)
class HaStore:
    """The server writes, serves from and deletes here; a cache only reads (B8)."""

    root: Location

    async def create(self, job_id: JobId | None, key: BlobKey) -> Writer:
        return await self._place(job_id, key).create()

    async def fetch(
        self,
        job_id: JobId | None,
        key: BlobKey,
        incoming: Incoming,
        *,
        threads: Executor | None = None,
        progress: Callable[[int], object] = lambda _: None,
    ) -> None:
        """Fetch the copy and verify it; see `filling.fill`. Raises StorageError, BlobMismatch."""
        await fill(incoming, self.read(job_id, key), threads=threads, progress=progress)
        incoming.verify()

    def read(self, job_id: JobId | None, key: BlobKey) -> AsyncIterator[bytes]:
        """Yield the copy as it arrives, not verified. Raises StorageError."""
        return self._place(job_id, key).open_read()

    async def is_good(self, job_id: JobId | None, key: BlobKey) -> bool:
        """Read the copy and hash it. False if there is none, or if it does not match the key. Raises StorageError."""
        hasher = hashlib.sha256()
        try:
            async for piece in self.read(job_id, key):
                await asyncio.to_thread(hasher.update, piece)
        except ObjectNotFound:
            return False
        return hasher.hexdigest() == key.sha256

    async def blobs(self) -> AsyncIterator[tuple[Blob, int]]:
        """Yield the blobs with copies, and their sizes. All else below the root is ignored. Raises StorageError."""
        async for entry in self.root.list():
            owner, _, name = self.root.relative(entry.path).partition("/")
            try:
                blob = Blob(parse_owner(owner), BlobKey.parse(name))
            except InvalidId:
                continue
            yield blob, entry.size

    async def delete(self, job_id: JobId | None, key: BlobKey) -> None:
        await self._place(job_id, key).delete()

    async def delete_job(self, job_id: JobId | None) -> None:
        await self.root.child(owner_name(job_id)).delete_tree()

    def _place(self, job_id: JobId | None, key: BlobKey) -> Location:
        return self.root.child(owner_name(job_id), str(key))
