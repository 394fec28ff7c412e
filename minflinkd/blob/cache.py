"""The BlobCache of a TaskManager (B8, B15): a blob travels there once, however many tasks ask for it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import structlog

from minflinkd.blob.client import BlobClient
from minflinkd.blob.errors import BlobNotFound
from minflinkd.blob.ha_store import HaStore
from minflinkd.blob.keys import BlobKey, BlobKind
from minflinkd.blob.references import Blob, References
from minflinkd.blob.store import BlobStore, Incoming
from minflinkd.runtime.component import Component
from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.runtime.ids import JobId
from minflinkd.storage.location import Location

log = structlog.get_logger(__name__)


class BlobCacheClosed(MinflinkError):
    """The download was given up, as the job or the TaskManager ended."""

    code = "blob-cache-closed"
    consequence = Consequence.REFUSED


@dataclass(frozen=True)
class _Download:
    task: asyncio.Task[None]
    result: asyncio.Future[Path]


class BlobCache(Component):
    """Own disk, then the HA store, then the BlobServer. Never writes or deletes in the HA store."""

    def __init__(self, *, directory: Path, client: BlobClient, ha_store: Location | None = None) -> None:
        super().__init__("blob cache")
        self._store = BlobStore(directory)
        self._client = client
        self._ha = None if ha_store is None else HaStore(ha_store)
        self._references = References()
        self._downloads: dict[Blob, _Download] = {}

    async def get(self, job_id: JobId, key: BlobKey) -> Path:
        """The verified file; the caller holds one reference until it calls `release`, none where this raises.

        Raises BlobNotFound, BlobMismatch, BlobServerUnreachable, BlobCacheClosed, StorageError.
        """
        blob = (job_id, key)
        self._references.acquire(blob)
        try:
            return await asyncio.shield(self._download(blob).result)
        except BaseException:
            self._references.release(blob)
            raise

    def release(self, job_id: JobId, key: BlobKey) -> None:
        """Give one reference back. The file stays for the job's next task, until the job is forgotten."""
        self._references.release((job_id, key))

    def references(self, job_id: JobId, key: BlobKey) -> int:
        return self._references.count((job_id, key))

    async def forget_job(self, job_id: JobId) -> None:
        """The job ended for good: its files go, also one that is on its way."""
        self._references.forget_job(job_id)
        doomed = [download.task for (job, _), download in self._downloads.items() if job == job_id]
        for task in doomed:
            task.cancel()
        if doomed:
            await asyncio.wait(doomed)
        await asyncio.to_thread(self._store.delete_job, job_id)

    async def _start(self) -> None:
        await asyncio.to_thread(self._store.open)

    def _download(self, blob: Blob) -> _Download:
        if blob not in self._downloads:
            result = asyncio.get_running_loop().create_future()
            result.add_done_callback(lambda done: done.exception())  # seen, even where every caller has gone
            task = self.tasks.job(f"fetch {blob[1]}", self._fetch(blob, result))
            download = self._downloads[blob] = _Download(task, result)
            task.add_done_callback(lambda _: self._finish(blob, download))
        return self._downloads[blob]

    def _finish(self, blob: Blob, download: _Download) -> None:
        if not download.result.done():  # cancelled, perhaps before it began
            download.result.set_exception(BlobCacheClosed(f"the download of blob {blob[1]} was given up"))
        if self._downloads.get(blob) is download:
            del self._downloads[blob]

    async def _fetch(self, blob: Blob, result: asyncio.Future[Path]) -> None:
        try:
            path = await self._get(*blob)
        except Exception as error:
            result.set_exception(error)
        else:
            result.set_result(path)

    async def _get(self, job_id: JobId, key: BlobKey) -> Path:
        try:
            return await asyncio.to_thread(self._store.get, job_id, key)
        except BlobNotFound:
            pass
        incoming = self._store.incoming(job_id, key)
        try:
            if not await self._fetch_copy(job_id, key, incoming):
                await self._client.download(job_id, key, incoming)
            await asyncio.to_thread(incoming.place)
        finally:
            await asyncio.to_thread(incoming.discard)
        return await asyncio.to_thread(self._store.get, job_id, key)

    async def _fetch_copy(self, job_id: JobId, key: BlobKey, incoming: Incoming) -> bool:
        """Whether the HA store had a good copy."""
        if self._ha is None or key.kind is not BlobKind.PERMANENT:
            return False
        try:
            await self._ha.fetch(job_id, key, incoming)
        except MinflinkError as error:
            log.info("the HA store has no good copy; asking the server", blob=str(key), job=job_id, error=str(error))
            await asyncio.to_thread(incoming.restart)
            return False
        return True
