"""Where either side of the connection leaves and finds the blobs of large messages (`blob.offloading`).

The daemon uses the BlobServer in its process. A TaskManager uploads to it and fetches through its cache, so what a
deployment shares with an earlier one is already on its disk.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Protocol

from minflinkd.blob.cache import BlobCache
from minflinkd.blob.client import BlobClient
from minflinkd.blob.errors import BlobNotFound
from minflinkd.blob.keys import BlobKey, BlobKind
from minflinkd.runtime.ids import JobId
from minflinkd.storage.os_errors import os_errors


class LocalBlobs(Protocol):
    """The BlobServer as others in its process use it. All methods raise MinflinkError."""

    async def put(self, job_id: JobId | None, data: bytes, kind: BlobKind) -> BlobKey: ...

    async def read(self, job_id: JobId | None, key: BlobKey) -> bytes: ...

    async def release(self, job_id: JobId | None, key: BlobKey, *, at_once: bool = False) -> None: ...


class DaemonExchange:
    """Deployments are PERMANENT, so that TaskManagers fetch them from the HA store. All else is TRANSIENT (B2)."""

    def __init__(self, blobs: LocalBlobs) -> None:
        self._blobs = blobs

    async def leave(self, job_id: JobId, data: bytes, *, lasting: bool) -> BlobKey:
        return await self._blobs.put(job_id, data, BlobKind.PERMANENT if lasting else BlobKind.TRANSIENT)

    async def find(self, job_id: JobId, key: BlobKey) -> bytes:
        return await self._blobs.read(job_id, key)

    async def sent(self, job_id: JobId, key: BlobKey, *, arrived: bool) -> None:
        """Release the blob.

        A message still on its way is lost then, unless it arrives while a PERMANENT blob is staged.
        """
        await self._blobs.release(job_id, key, at_once=True)

    async def received(self, job_id: JobId, key: BlobKey) -> None:
        """Release the blob.

        Only blobs of TaskManagers arrive here: TRANSIENT, for one message each, deleted on delivery.
        """
        await self._blobs.release(job_id, key, at_once=True)


class TaskManagerExchange:
    def __init__(self, client: BlobClient, cache: BlobCache) -> None:
        self._client = client
        self._cache = cache

    async def leave(self, job_id: JobId, data: bytes, *, lasting: bool) -> BlobKey:
        return await self._client.put_bytes(job_id, data, BlobKind.TRANSIENT)

    async def find(self, job_id: JobId, key: BlobKey) -> bytes:
        if not key.is_permanent:
            return await self._client.get_bytes(job_id, key)
        path = await self._cache.get(job_id, key)
        try:
            with os_errors(path):
                data = await asyncio.to_thread(path.read_bytes)
                # User code may run as the owner of the cache (`taskmanager.run-as`). This is a message to us.
                if hashlib.sha256(data).hexdigest() != key.sha256:
                    raise BlobNotFound(f"blob {key} of job {job_id} was changed while it was read")
                return data
        finally:
            self._cache.release(job_id, key)

    async def sent(self, job_id: JobId, key: BlobKey, *, arrived: bool) -> None:
        """Delete a blob that did not arrive.

        One that arrived was deleted there; otherwise the BlobServer cleans up later.
        """
        if not arrived:
            await self._client.delete(job_id, key)

    async def received(self, job_id: JobId, key: BlobKey) -> None:
        """Nothing to do: the daemon deletes its own blobs."""
