"""The copies of PERMANENT blobs in the HA store: a directory of any storage backend, `<job>/<key>` in it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from minflinkd.blob.keys import BlobKey, owner_name
from minflinkd.blob.store import Incoming
from minflinkd.runtime.ids import JobId
from minflinkd.storage.interface import Writer
from minflinkd.storage.location import Location


@dataclass(frozen=True)
class HaStore:
    """The server writes, serves from and deletes here; a cache only reads (B8)."""

    root: Location

    async def create(self, job_id: JobId | None, key: BlobKey) -> Writer:
        return await self._place(job_id, key).create()

    async def fetch(self, job_id: JobId | None, key: BlobKey, incoming: Incoming) -> None:
        """Raises StorageError, BlobMismatch."""
        async for piece in self._place(job_id, key).open_read():
            await asyncio.to_thread(incoming.write, piece)
        incoming.verify()

    async def delete(self, job_id: JobId | None, key: BlobKey) -> None:
        await self._place(job_id, key).delete()

    async def delete_job(self, job_id: JobId | None) -> None:
        await self.root.child(owner_name(job_id)).delete_tree()

    def _place(self, job_id: JobId | None, key: BlobKey) -> Location:
        return self.root.child(owner_name(job_id), str(key))
