"""Manages the daemon's blobs in both stores (B5, B7, B16, B17). Carries out what `lifecycle` decides.

An upload is registered before its first byte is stored, and a blob is condemned before its file is touched. So nothing
here needs a lock against the cleanup. Locks only keep two requests from restoring or publishing the same blob at once.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from functools import partial
from io import FileIO
from pathlib import Path
from typing import ParamSpec, TypeVar

import structlog

from minflinkd.blob.errors import BlobMismatch, BlobNotFound, NotLeading
from minflinkd.blob.files import BlobFile
from minflinkd.blob.filling import Filling, filling, placed_or_discarded
from minflinkd.blob.ha_store import HaStore
from minflinkd.blob.incoming import Incoming
from minflinkd.blob.keys import Blob, BlobKey, BlobKind, owner_name
from minflinkd.blob.lifecycle import BlobLifecycle
from minflinkd.blob.store import BlobStore, StoredFile
from minflinkd.blob.transfer import CHUNK, BlobInfo, finish, in_chunks, pump
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import JobId
from minflinkd.storage.interface import ObjectNotFound, StorageUnavailable, Writer
from minflinkd.storage.os_errors import os_errors
from minflinkd.storage.parallel import for_each

log = structlog.get_logger(__name__)

DELETIONS = 8  # at a time
LAST_LOOK = 10.0  # seconds at shutdown, to find out which copies are good
THREADS = 16  # for work that waits for the disk
HASHERS = 2  # files at a time
PAGE = 1000  # blobs of a listing

Turn = Callable[[], AbstractAsyncContextManager[None]]  # held while a file is hashed or restored
P = ParamSpec("P")
T = TypeVar("T")


class BlobDepot:
    """`leads`: whether this process may delete in the HA store, which other processes use as well."""

    def __init__(
        self,
        *,
        store: BlobStore,
        ha_store: HaStore | None,
        lifecycle: BlobLifecycle,
        clock: Clock,
        max_size: int | None,
        leads: Callable[[], bool],
    ) -> None:
        self.store = store
        self.lifecycle = lifecycle
        self.deleted = 0  # blobs, by the cleanup
        self._ha = ha_store
        self._clock = clock
        self._max_size = max_size
        self._leads = leads
        self.threads = _Threads(THREADS, "blob")
        self._hashers = asyncio.Semaphore(HASHERS)
        self._copied: set[Blob] = set()  # blobs with a copy in the HA store that was written or seen
        self._locks: weakref.WeakValueDictionary[object, asyncio.Lock] = weakref.WeakValueDictionary()

    async def in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Like `asyncio.to_thread`, but in the depot's own threads."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, partial(call, *args, **kwargs))

    # --- uploads -------------------------------------------------------------------------------------------------

    async def find(
        self, job_id: JobId | None, kind: BlobKind, sha256: str, upload_set: str | None, *, turn: Turn = nullcontext
    ) -> tuple[BlobKey, int] | None:
        """B1: Return the key and size of content that is already stored, or None. This counts as uploading it again."""
        for key in await self.in_thread(self.store.candidates, job_id, kind, sha256):
            try:
                blob = Blob(job_id, key)
                (await self._open(blob, turn)).close()
                if self.lifecycle.offered(blob, upload_set, self._clock.monotonic()):
                    with await self._open(blob, turn) as file:  # it may have been deleted since
                        return key, os.fstat(file.fileno()).st_size
            except BlobNotFound:
                continue
        return None

    def complete(self, job_id: JobId | None, upload_set: str) -> None:
        self.lifecycle.complete(job_id, upload_set, self._clock.monotonic())

    async def receive(self, blob: Blob, source: AsyncIterator[bytes], upload_set: str | None) -> BlobKey:
        """Store an upload, with a copy if the blob is PERMANENT. Return the key under which the content is now known.

        Leaves nothing behind if it raises BlobMismatch, BlobTooLarge, BlobInUse, StorageError or what `source` raises.
        """
        self.lifecycle.receive(blob, upload_set, self._clock.monotonic())
        try:
            async with self._incoming(blob) as incoming, self._copy(blob) as copy:
                async with filling(incoming, self.threads) as local:
                    if copy is None:
                        async for piece in source:
                            await local.put(piece)
                    else:
                        await pump(in_chunks(_put_each(source, local)), copy.append)
                incoming.verify()
                return await finish(self._publish(blob, incoming, copy, upload_set))
        except BaseException:
            if self.lifecycle.is_receiving(blob):  # otherwise it was published after all
                self.lifecycle.not_received(blob)
            raise

    async def _publish(self, blob: Blob, incoming: Incoming, copy: Writer | None, upload_set: str | None) -> BlobKey:
        job_id, key = blob
        async with self._lock(job_id, key.kind, key.sha256):
            self.lifecycle.check_not_ending(job_id)
            try:
                placed = copy is None and await self.in_thread(self._place_if_new, blob, incoming)
            except BaseException:
                await self._forget(blob, copied=False)
                raise
            if not placed:
                known = await self.find(job_id, key.kind, key.sha256, upload_set)
                if known is not None:
                    self.lifecycle.not_received(blob)
                    return known[0]
                self.lifecycle.check_not_ending(job_id)
                try:
                    await self._commit(copy, incoming)
                    await self.in_thread(incoming.place)
                except BaseException:
                    await self._forget(blob, copied=copy is not None)
                    raise
            if copy is not None:
                self._copied.add(blob)
            self.lifecycle.received(blob, upload_set, self._clock.monotonic())
            return key

    def _place_if_new(self, blob: Blob, incoming: Incoming) -> bool:
        """Place the blob and return True, unless the content seems to be stored already. Blocking.

        Both are done here so that they take only one thread call.
        """
        for key in self.store.candidates(blob.job_id, blob.key.kind, blob.key.sha256):
            if self.lifecycle.can_be_had(Blob(blob.job_id, key)):
                return False
        incoming.place()
        return True

    async def _commit(self, copy: Writer | None, incoming: Incoming) -> None:
        """Commit the copy before the local file is placed. So a local file always has a copy, even after a crash."""
        if copy is None:
            return  # placing it makes it durable

        async def sync() -> None:
            await self.in_thread(incoming.sync)

        await for_each([sync, copy.commit], lambda step: step(), limit=2)

    async def _forget(self, blob: Blob, *, copied: bool) -> None:
        """Delete a blob that nobody was told about. The cleanup finds what cannot be deleted now."""
        try:
            await self.in_thread(self.store.delete, *blob)
            if copied and self._ha is not None:
                await self._ha.delete(*blob)
        except MinflinkError as error:
            log.warning("a failed upload is left to the cleanup", blob=str(blob.key), job=blob.job_id, error=str(error))

    # --- downloads -----------------------------------------------------------------------------------------------

    async def path(self, blob: Blob) -> Path:
        """Return the path of the verified local file. Raises what `reader` raises."""
        (await self.reader(blob)).close()
        return self.store.path(*blob)

    async def reader(self, blob: Blob, *, turn: Turn = nullcontext) -> BlobFile:
        """Return the verified local file, open. If it is missing, it is restored from the HA store (B7).

        Raises BlobNotFound, or StorageError if it is not known now whether there is a copy.
        """
        self._check_can_be_had(blob)
        with suppress(BlobNotFound):
            if (file := await self._open_known(blob)) is not None:
                return file
        async with turn(), self._lock(blob):
            self._check_can_be_had(blob)
            try:
                return await self._open_hashed(blob)
            except BlobNotFound:
                if self._ha is None or not blob.is_permanent:
                    raise
            async with self._incoming(blob) as incoming:
                try:
                    await self._ha.fetch(*blob, incoming, threads=self.threads)
                except (ObjectNotFound, BlobMismatch) as error:
                    log.error("a blob has no good copy", blob=str(blob.key), job=blob.job_id, error=str(error))
                    raise BlobNotFound(f"there is no good copy of blob {blob}") from error
                self._check_can_be_had(blob)
                await finish(self.in_thread(incoming.place))
            self._copied.add(blob)
            return await self._open_hashed(blob)

    async def _open(self, blob: Blob, turn: Turn) -> BlobFile:
        """Open the verified local file. Raises BlobNotFound, StorageError."""
        if (file := await self._open_known(blob)) is not None:
            return file
        async with turn():
            return await self._open_hashed(blob)

    async def _open_known(self, blob: Blob) -> BlobFile | None:
        """Like `_open`, but return None if the file would have to be hashed."""
        return await self.in_thread(self.store.verified_reader, *blob)

    async def _open_hashed(self, blob: Blob) -> BlobFile:
        """One request hashes the file. Others for this key wait and find it verified. Raises what `_open` raises."""
        async with self._lock("verification", blob):
            if (file := await self._open_known(blob)) is not None:
                return file
            async with self._hashers:
                opened = asyncio.ensure_future(self.in_thread(self.store.reader, *blob))
                try:
                    return await asyncio.shield(opened)
                except asyncio.CancelledError:
                    # The thread cannot be cancelled, so wait for it, and close the file if it has opened one.
                    await asyncio.wait({opened})
                    if not opened.cancelled() and opened.exception() is None:
                        opened.result().close()
                    raise

    async def mend_copy(self, blob: Blob) -> None:
        """If the HA store's copy is missing or corrupt, write it again from the good local file."""
        if self._ha is None or not self._leads():
            return
        if await self._ha.is_good(*blob):
            self._copied.add(blob)
            return
        log.error("a blob's copy in the HA store is missing or corrupt", blob=str(blob.key), job=blob.job_id)
        file = await self.reader(blob)
        try:
            async with await self._ha.create(*blob) as writer:
                while piece := await self.in_thread(_read_on, file, self.store.path(*blob)):
                    await writer.append(piece)
                if not self.lifecycle.can_be_had(blob):
                    return
                await writer.commit()
        finally:
            file.close()
        self._copied.add(blob)
        log.info("a blob's copy in the HA store was written again", blob=str(blob.key), job=blob.job_id)

    async def pages(self) -> AsyncIterator[list[BlobInfo]]:
        """Yield every local blob, in the order of jobs and keys. Blobs deleted meanwhile may be missing."""
        for owner in await self.in_thread(self.store.owners):
            files = await self.in_thread(self.store.files, owner)
            for first in range(0, len(files), PAGE):
                yield [self._info(file) for file in files[first : first + PAGE]]

    def _info(self, file: StoredFile) -> BlobInfo:
        job_id, key = file.blob
        return BlobInfo(
            job=owner_name(job_id),
            key=str(key),
            kind=key.kind.value,
            size=file.size,
            references=self.lifecycle.references(file.blob),
            state=self.lifecycle.state(file.blob).value,
            modified_ms=file.modified_ms,
        )

    # --- deletion ------------------------------------------------------------------------------------------------

    async def delete(self, blob: Blob) -> None:
        """Delete a transient blob now. Idempotent. Raises BlobPermanent, BlobInUse, StorageError."""
        self.lifecycle.delete(blob)
        await self._delete(blob)
        self.lifecycle.deleted(blob)

    async def delete_condemned(self, blobs: Iterable[Blob]) -> None:
        """Delete the blobs that the lifecycle condemned. What cannot be deleted now stays condemned and is retried."""

        async def delete(blob: Blob) -> None:
            try:
                await self._delete(blob)
            except MinflinkError as error:
                log.warning("a blob cannot be deleted yet", blob=str(blob.key), job=blob.job_id, error=str(error))
            else:
                self.deleted += self.lifecycle.deleted(blob)  # count it once, even if two runs deleted it

        await for_each(blobs, delete, limit=DELETIONS)

    async def _delete(self, blob: Blob) -> None:
        async with self._lock(blob):  # otherwise a restoration under way would bring it back
            if self._ha is not None and blob.is_permanent:
                self._check_leads()
                await self._ha.delete(*blob)
            await self.in_thread(self.store.delete, *blob)
            self._copied.discard(blob)

    async def delete_job(self, job_id: JobId) -> None:
        """Delete the job's whole directory in both stores. Idempotent. Raises StorageError; repeat the call then."""
        self.lifecycle.end(job_id)
        async with self._lock(job_id):
            self.lifecycle.end(job_id)
            await self._delete_directory(job_id)

    async def _delete_directory(self, job_id: JobId) -> None:
        await self.in_thread(self.store.delete_job, job_id)
        if self._ha is not None:
            self._check_leads()
            await self._ha.delete_job(job_id)
        self._copied = {blob for blob in self._copied if blob.job_id != job_id}
        self.lifecycle.ended(job_id)

    # --- cleanup -------------------------------------------------------------------------------------------------

    async def look_around(self, retention: float) -> None:
        """Stage what lies in the stores and nobody needs. Delete the remains of broken uploads and deletions."""
        await self._finish_deletions()
        await self.in_thread(self.store.delete_temporaries, retention)
        await self.in_thread(self.store.delete_empty)
        sizes = dict[Blob, int]()
        for owner in await self.in_thread(self.store.owners):
            files = await self.in_thread(self.store.files, owner)
            sizes |= {file.blob: file.size for file in files}
            self.lifecycle.found([file.blob for file in files], self._clock.monotonic())
        if self._ha is not None:
            await self._look_at_copies(self._ha, sizes)

    async def _finish_deletions(self) -> None:
        """Finish deletions of jobs that met an error or lost their caller."""
        for job_id in self.lifecycle.ending():
            try:
                async with self._lock(job_id):
                    # Skip it if it was done meanwhile, or if another job with this id has come.
                    if job_id in self.lifecycle.ending() and not self.lifecycle.is_held(job_id):
                        await self._delete_directory(job_id)
            except MinflinkError as error:
                log.warning("the blobs of a job cannot be deleted yet", job=job_id, error=str(error))

    async def _look_at_copies(self, ha_store: HaStore, sizes: Mapping[Blob, int]) -> None:
        """Check the copies. `sizes`: of the local files; a copy of a different size is read and checked."""
        before, seen = frozenset(self._copied), set[Blob]()
        async for blob, size in ha_store.blobs():
            if sizes.get(blob, size) == size:
                seen.add(blob)
            self.lifecycle.found([blob], self._clock.monotonic())
        self._copied = (self._copied - before) | seen
        for blob in self.lifecycle.held():
            # Check again for each blob, because mending one takes long.
            if blob in self._copied or not self.lifecycle.survives(blob):
                continue
            try:
                await self.mend_copy(blob)
            except MinflinkError as error:
                log.warning(
                    "the copy of a blob is looked at again later",
                    blob=str(blob.key),
                    job=blob.job_id,
                    error=str(error),
                )

    def close(self) -> None:
        """Stop the threads. Nothing is read or written any more."""
        self.threads.shutdown(wait=False)

    async def clear(self) -> None:
        """On an orderly exit, empty the local store, except for what a job needs and the HA store may lack."""
        needed = set[Blob]()
        for owner in await self.in_thread(self.store.owners):
            files = await self.in_thread(self.store.files, owner)
            needed |= {file.blob for file in files if self.lifecycle.survives(file.blob)}
        needed -= await self._good_copies(needed)
        for owner in await self.in_thread(self.store.owners):
            await self.in_thread(self._clear, owner, {blob.key for blob in needed if blob.job_id == owner})

    async def _good_copies(self, blobs: Collection[Blob]) -> frozenset[Blob]:
        """Return the blobs with a copy that was just read and is right. Incomplete if reading takes too long."""
        ha_store, good = self._ha, set[Blob]()
        if ha_store is None:
            return frozenset()

        async def look_at(blob: Blob) -> None:
            try:
                if await ha_store.is_good(*blob):
                    good.add(blob)
            except MinflinkError as error:
                log.warning("the copy of a blob cannot be read", blob=str(blob.key), job=blob.job_id, error=str(error))

        try:
            async with asyncio.timeout(LAST_LOOK):
                await for_each(blobs, look_at, limit=DELETIONS)
        except TimeoutError:
            log.info("local blobs are kept, as their copies were not read in time", blobs=len(blobs) - len(good))
        return frozenset(good)

    def _clear(self, owner: JobId | None, needed: Collection[BlobKey]) -> None:
        if not needed:
            self.store.delete_job(owner)
            return
        for key in self.store.keys(owner):
            if key not in needed:
                self.store.delete(owner, key)

    # --- parts ---------------------------------------------------------------------------------------------------

    def _check_can_be_had(self, blob: Blob) -> None:
        if not self.lifecycle.can_be_had(blob):
            raise BlobNotFound(f"blob {blob} was deleted")

    def _check_leads(self) -> None:
        if not self._leads():
            raise NotLeading("only the leader deletes in the HA store")

    def _incoming(self, blob: Blob) -> AbstractAsyncContextManager[Incoming]:
        return placed_or_discarded(self.store.incoming(*blob, max_size=self._max_size))

    @asynccontextmanager
    async def _copy(self, blob: Blob) -> AsyncIterator[Writer | None]:
        """Yield the writer of a PERMANENT blob's copy. It is aborted at the end unless it was committed."""
        if self._ha is None or not blob.is_permanent:
            yield None
            return
        writer = await self._ha.create(*blob)
        try:
            yield writer
        finally:
            if blob not in self._copied:
                await finish(writer.abort())

    def _lock(self, *what: object) -> asyncio.Lock:
        return self._locks.setdefault(what, asyncio.Lock())


class _Threads(ThreadPoolExecutor):
    """The depot's own threads, separate from the pool that the whole daemon shares."""

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        try:
            return super().submit(call, *args, **kwargs)
        except RuntimeError:
            raise StorageUnavailable("the blob server ends") from None


async def _put_each(source: AsyncIterator[bytes], local: Filling) -> AsyncIterator[bytes]:
    async for piece in source:
        await local.put(piece)
        yield piece


def _read_on(file: FileIO, path: Path) -> bytes:
    with os_errors(path):
        return file.read(CHUNK)
