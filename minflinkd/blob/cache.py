"""The BlobCache of a TaskManager (B8, B15). A blob is transferred once, however many tasks ask for it.

A file is hashed every time it is requested, so the next start of a task finds silent disk damage and fetches the file
again. A file larger than HASHED_ALWAYS is hashed only on the first request, and when its size, times or inode have
changed. Hashing it every time would delay the start of a task too much.
"""

from __future__ import annotations

import asyncio
import shutil
import weakref
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from minflinkd.blob.client import BlobClient
from minflinkd.blob.errors import BlobMismatch, BlobNotFound
from minflinkd.blob.filling import placed_or_discarded
from minflinkd.blob.ha_store import HaStore
from minflinkd.blob.incoming import Incoming
from minflinkd.blob.keys import Blob, BlobKey, owner_name
from minflinkd.blob.references import References
from minflinkd.blob.staged import StagedLists
from minflinkd.blob.store import BlobStore
from minflinkd.runtime.component import Component
from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.runtime.ids import JobId
from minflinkd.storage.location import Location

log = structlog.get_logger(__name__)

HASHED_ALWAYS = 64 * 1024 * 1024  # bytes; hashing them takes about 0.1 s
HA_PATIENCE = 10.0  # seconds that the HA store may lag behind LEAST_RATE before the server is asked
LEAST_RATE = 1024 * 1024  # bytes a second
HA_PAUSE = 60.0  # seconds for which the HA store is skipped after it was away or too slow


class BlobCacheClosed(MinflinkError):
    """The download was given up because the TaskManager ends."""

    code = "blob-cache-closed"
    consequence = Consequence.RETRYABLE


class _CopyUnreadable(Exception):
    """Wraps an error of the HA store, to tell it from an error of the local disk that the copy is written to."""

    def __init__(self, error: MinflinkError) -> None:
        super().__init__(str(error))
        self.away = error.consequence is Consequence.RETRYABLE


class _Copies(HaStore):
    async def read(self, job_id: JobId | None, key: BlobKey) -> AsyncIterator[bytes]:
        """Raises _CopyUnreadable."""
        try:
            async for piece in super().read(job_id, key):
                yield piece
        except MinflinkError as error:
            raise _CopyUnreadable(error) from error


@dataclass
class _Download:
    """`result` is set once the task has ended, for whatever reason."""

    task: asyncio.Task[None]
    result: asyncio.Future[Path]
    waiting: int = 0


@dataclass(frozen=True, kw_only=True)
class BlobCacheStatistics:
    """Counts since the start. Bytes count whole blobs."""

    hits: int = 0  # answered from the local disk
    shared: int = 0  # joined a download that was already under way
    from_ha: int = 0  # fetched from the HA store
    ha_bytes: int = 0
    from_server: int = 0  # fetched from the BlobServer
    server_bytes: int = 0
    ha_failures: int = 0  # copies in the HA store that were missing, corrupt, unreadable or too slow
    failures: int = 0  # not available anywhere
    corrupt: int = 0  # local files found damaged
    deleted: int = 0  # by the staged cleanup

    def metrics(self) -> dict[str, float]:
        """Return the counts as a TaskManager reports them: `blobs.hits`, ..."""
        return {f"blobs.{name}": float(value) for name, value in asdict(self).items()}


class BlobCache(Component):
    """Looks on the local disk, then in the HA store, then at the BlobServer. Never writes or deletes in the HA store.

    A blob that nobody holds is deleted after one to two retention intervals (seconds; B16). Everything is deleted when
    the cache closes. What an earlier cache left in `directory` is deleted at the start, because nobody knows who held
    it.
    """

    def __init__(
        self,
        *,
        directory: Path,
        client: BlobClient,
        ha_store: Location | None = None,
        retention: float = 3600.0,
        cleanup_interval: float = 3600.0,
    ) -> None:
        super().__init__("blob cache")
        self._store = BlobStore(directory, durable=False)  # the next cache begins with an empty directory
        self._client = client
        self._ha = None if ha_store is None else _Copies(ha_store)
        self._ha_again_at = float("-inf")
        self._retention = retention
        self._cleanup_interval = cleanup_interval
        self._references = References()
        self._staged: StagedLists[Blob] = StagedLists(retention, 0.0)
        self._downloads: dict[Blob, _Download] = {}
        self._locks: weakref.WeakValueDictionary[object, asyncio.Lock] = weakref.WeakValueDictionary()
        self._counts: defaultdict[str, int] = defaultdict(int)

    def look_in(self, ha_store: Location) -> None:
        """Use this HA store from now on."""
        if self._ha is None or self._ha.root != ha_store:
            self._ha, self._ha_again_at = _Copies(ha_store), float("-inf")

    async def get(self, job_id: JobId | None, key: BlobKey) -> Path:
        """Return the verified file. The caller holds one reference until it calls `release`; none if this raises.

        Cancelling a caller leaves the download to the others that wait for it. Cancelling the last one ends the
        download. Raises BlobNotFound, BlobMismatch, BlobServerUnreachable, BlobServerBusy, BlobCacheClosed,
        StorageError.
        """
        blob = Blob(job_id, key)
        self._references.acquire(blob)
        self._staged.remove(blob)
        try:
            return await self._wait(blob)
        except BaseException:
            self.release(job_id, key)
            raise

    def release(self, job_id: JobId | None, key: BlobKey) -> None:
        """Give one reference back. The file stays for a while, for the job's next task. Raises NotReferenced."""
        blob = Blob(job_id, key)
        if self._references.release(blob):
            self._staged.add(blob)

    def references(self, job_id: JobId | None, key: BlobKey) -> int:
        return self._references.count(Blob(job_id, key))

    async def forget_job(self, job_id: JobId) -> None:
        """The job has ended or moved elsewhere. Delete at once what nobody holds, including downloads under way."""
        doomed = [
            download
            for blob, download in list(self._downloads.items())
            if blob.job_id == job_id and not self._references.count(blob)
        ]
        for download in doomed:
            download.task.cancel()
        if doomed:
            await asyncio.wait([download.task for download in doomed])
        await self._delete(Blob(job_id, key) for key in await asyncio.to_thread(self._store.keys, job_id))

    def statistics(self) -> BlobCacheStatistics:
        return BlobCacheStatistics(**self._counts, corrupt=self._store.moved_aside)

    # --- lifecycle ---------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        await asyncio.to_thread(shutil.rmtree, self._store.directory, ignore_errors=True)
        await asyncio.to_thread(self._store.open)
        self._staged = StagedLists(self._retention, _now())
        self.tasks.loop("cleanup", self._keep_clean)

    async def _stop(self) -> None:
        await asyncio.to_thread(shutil.rmtree, self._store.directory, ignore_errors=True)

    # --- downloads ---------------------------------------------------------------------------------------------------

    async def _wait(self, blob: Blob) -> Path:
        if blob in self._downloads:
            self._counts["shared"] += 1
        download = self._download(blob)
        download.waiting += 1
        try:
            return await asyncio.shield(download.result)
        finally:
            download.waiting -= 1
            if not download.waiting and not download.result.done():
                self._leave(blob, download)
                download.task.cancel()

    def _download(self, blob: Blob) -> _Download:
        if blob not in self._downloads:
            result = asyncio.get_running_loop().create_future()
            result.add_done_callback(lambda done: done.exception())  # mark it as retrieved, even if no caller is left
            fetching = self._fetch(blob, result)
            try:
                task = self.tasks.job(f"fetch {blob.key}", fetching)
            except RuntimeError:
                raise BlobCacheClosed(f"blob {blob.key} is not fetched: the TaskManager ends") from None
            download = self._downloads[blob] = _Download(task, result)
            task.add_done_callback(lambda _: self._finish(blob, download))
        return self._downloads[blob]

    def _finish(self, blob: Blob, download: _Download) -> None:
        if not download.result.done():  # cancelled, perhaps before it began
            download.result.set_exception(BlobCacheClosed(f"the download of blob {blob.key} was given up"))
        self._leave(blob, download)

    def _leave(self, blob: Blob, download: _Download) -> None:
        """Whoever asks next starts a new download."""
        if self._downloads.get(blob) is download:
            del self._downloads[blob]

    async def _fetch(self, blob: Blob, result: asyncio.Future[Path]) -> None:
        try:
            path = await self._find(*blob)
        except Exception as error:
            self._counts["failures"] += 1
            result.set_exception(error)
        else:
            result.set_result(path)

    async def _find(self, job_id: JobId | None, key: BlobKey) -> Path:
        async with self._lock(job_id):
            pass  # wait until deletions are done; from here on, referenced files are not deleted
        try:
            path = await asyncio.to_thread(self._own, job_id, key)
        except BlobNotFound:
            return await self._from_ha(job_id, key) or await self._from_server(job_id, key)
        self._counts["hits"] += 1
        return path

    def _own(self, job_id: JobId | None, key: BlobKey) -> Path:
        """Return the local file. Blocking. Raises BlobNotFound, StorageError."""
        with suppress(FileNotFoundError, NotADirectoryError):
            if self._store.path(job_id, key).stat().st_size <= HASHED_ALWAYS:
                self._store.doubt(job_id, key)
        return self._store.get(job_id, key)

    async def _from_ha(self, job_id: JobId | None, key: BlobKey) -> Path | None:
        """Fetch from the HA store. None if it has no good copy: whatever is wrong there, the server may have one.

        Raises StorageError for errors of the local disk.
        """
        if self._ha is None or not key.is_permanent or _now() < self._ha_again_at:
            return None
        incoming = self._store.incoming(job_id, key)
        try:
            await self._read_copy(self._ha, job_id, key, incoming)
            path = await asyncio.to_thread(incoming.place)
        except (_CopyUnreadable, BlobMismatch, TimeoutError) as error:
            self._counts["ha_failures"] += 1
            slow = isinstance(error, TimeoutError)
            if slow or (isinstance(error, _CopyUnreadable) and error.away):
                self._ha_again_at = _now() + HA_PAUSE
            why = f"it came too slowly: {incoming.size} bytes" if slow else str(error)
            log.info("the HA store has no good copy; asking the server", blob=str(key), job=job_id, error=why)
            return None
        finally:
            await asyncio.to_thread(incoming.discard)
        self._counts["from_ha"] += 1
        self._counts["ha_bytes"] += incoming.size
        return path

    async def _read_copy(self, ha: HaStore, job_id: JobId | None, key: BlobKey, incoming: Incoming) -> None:
        """Raises _CopyUnreadable, BlobMismatch, TimeoutError, and StorageError for errors of the local disk."""
        began = _now()
        async with asyncio.timeout_at(began + HA_PATIENCE) as limit:
            await ha.fetch(
                *(job_id, key, incoming),
                progress=lambda size: limit.reschedule(began + HA_PATIENCE + size / LEAST_RATE),
            )

    async def _from_server(self, job_id: JobId | None, key: BlobKey) -> Path:
        async with placed_or_discarded(self._store.incoming(job_id, key)) as incoming:
            await self._client.download(job_id, key, incoming)
            path = await asyncio.to_thread(incoming.place)
        self._counts["from_server"] += 1
        self._counts["server_bytes"] += incoming.size
        return path

    # --- cleanup -----------------------------------------------------------------------------------------------------

    async def _keep_clean(self) -> None:
        while True:
            await asyncio.sleep(max(0.0, min(self._cleanup_interval, self._staged.rotates_at - _now())))
            await self.clean()

    async def clean(self) -> None:
        """Run the cleanup once: delete what is due, and stage what nobody holds and nobody has staged."""
        now = _now()
        self._counts["deleted"] += await self._delete(self._staged.rotate(now))
        await asyncio.to_thread(self._store.delete_temporaries, self._retention)
        for job_id in await asyncio.to_thread(self._store.owners):
            for key in await asyncio.to_thread(self._store.keys, job_id):
                if not self._references.count(Blob(job_id, key)):
                    self._staged.add(Blob(job_id, key))

    async def _delete(self, blobs: Iterable[Blob]) -> int:
        """Delete the files that nobody holds, and then the empty directories. Return the number of files."""
        by_job = defaultdict[JobId | None, list[BlobKey]](list)
        for job_id, key in blobs:
            by_job[job_id].append(key)
        deleted = 0
        for job_id, keys in by_job.items():
            async with self._lock(job_id):
                # Decide under the lock: whoever asks for one of them from now on waits until it is gone.
                doomed = [key for key in keys if not self._references.count(Blob(job_id, key))]
                for key in doomed:
                    self._staged.remove(Blob(job_id, key))
                await asyncio.to_thread(self._delete_files, job_id, doomed)
                deleted += len(doomed)
        return deleted

    def _delete_files(self, job_id: JobId | None, keys: list[BlobKey]) -> None:
        """Delete files. The next run finds what cannot be deleted. Blocking."""
        for key in keys:
            try:
                self._store.delete(job_id, key)
            except MinflinkError as error:
                log.warning("a blob that nobody needs could not be deleted", blob=str(key), error=str(error))
        if not self._references.count_of_job(job_id):
            with suppress(OSError):  # another blob is staged there
                (self._store.directory / owner_name(job_id)).rmdir()

    def _lock(self, job_id: JobId | None) -> asyncio.Lock:
        return self._locks.setdefault(job_id, asyncio.Lock())


def _now() -> float:
    return asyncio.get_running_loop().time()
