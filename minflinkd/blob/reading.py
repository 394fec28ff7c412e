"""Opens and lists the BlobServer's blobs. A missing file is restored from the HA store first (B7)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from pathlib import Path

import structlog

from minflinkd.blob.depot import BlobDepot
from minflinkd.blob.errors import BlobMismatch, BlobNotFound
from minflinkd.blob.files import BlobFile
from minflinkd.blob.ha_store import HaStore
from minflinkd.blob.keys import Blob, owner_name
from minflinkd.blob.store import StoredFile
from minflinkd.blob.transfer import BlobInfo, finish
from minflinkd.storage.interface import ObjectNotFound

log = structlog.get_logger(__name__)

HASHERS = 2  # files at a time
PAGE = 1000  # blobs of a listing

Turn = Callable[[], AbstractAsyncContextManager[None]]  # held while a file is hashed or restored


class BlobReader:
    def __init__(self, depot: BlobDepot) -> None:
        self._depot = depot
        self._store = depot.store
        self._hashers = asyncio.Semaphore(HASHERS)

    async def path(self, blob: Blob) -> Path:
        """Return the path of the verified local file. Raises what `open` raises."""
        (await self.open(blob)).close()
        return self._store.path(*blob)

    async def open(self, blob: Blob, *, turn: Turn = nullcontext) -> BlobFile:
        """Return the verified local file, open. If it is missing, it is restored from the HA store (B7).

        Raises BlobNotFound, or StorageError if it is not known now whether there is a copy.
        """
        self._depot.check_can_be_had(blob)
        with suppress(BlobNotFound):
            if (file := await self._open_known(blob)) is not None:
                return file
        async with turn(), self._depot.lock(blob):
            self._depot.check_can_be_had(blob)
            try:
                return await self._open_hashed(blob)
            except BlobNotFound:
                if (copies := self._depot.copies_of(blob)) is None:
                    raise
            await self._restore(blob, copies)
            return await self._open_hashed(blob)

    async def open_local(self, blob: Blob, *, turn: Turn = nullcontext) -> BlobFile:
        """Like `open`, but without a look in the HA store, and whether or not the blob is being deleted."""
        if (file := await self._open_known(blob)) is not None:
            return file
        async with turn():
            return await self._open_hashed(blob)

    async def pages(self) -> AsyncIterator[list[BlobInfo]]:
        """Yield every local blob, in the order of jobs and keys. Blobs deleted meanwhile may be missing."""
        for owner in await self._depot.in_thread(self._store.owners):
            files = await self._depot.in_thread(self._store.files, owner)
            for first in range(0, len(files), PAGE):
                yield [self._info(file) for file in files[first : first + PAGE]]

    def _info(self, file: StoredFile) -> BlobInfo:
        job_id, key = file.blob
        return BlobInfo(
            job=owner_name(job_id),
            key=str(key),
            kind=key.kind.value,
            size=file.size,
            references=self._depot.lifecycle.references(file.blob),
            state=self._depot.lifecycle.state(file.blob).value,
            modified_ms=file.modified_ms,
        )

    async def _restore(self, blob: Blob, copies: HaStore) -> None:
        """Fetch the copy. Raises BlobNotFound if there is no good one, StorageError."""
        async with self._depot.incoming(blob) as incoming:
            try:
                await copies.fetch(*blob, incoming, threads=self._depot.threads)
            except (ObjectNotFound, BlobMismatch) as error:
                log.error("a blob has no good copy", blob=str(blob.key), job=blob.job_id, error=str(error))
                raise BlobNotFound(f"there is no good copy of blob {blob}") from error
            self._depot.check_can_be_had(blob)
            await finish(self._depot.in_thread(incoming.place))
        self._depot.copied.add(blob)

    async def _open_known(self, blob: Blob) -> BlobFile | None:
        """Return None if the file would have to be hashed. Raises BlobNotFound, StorageError."""
        return await self._depot.in_thread(self._store.verified_reader, *blob)

    async def _open_hashed(self, blob: Blob) -> BlobFile:
        """One request hashes the file. Others for this key wait and find it verified.

        Raises BlobNotFound, StorageError.
        """
        async with self._depot.lock("verification", blob):
            if (file := await self._open_known(blob)) is not None:
                return file
            async with self._hashers:
                opened = asyncio.ensure_future(self._depot.in_thread(self._store.reader, *blob))
                try:
                    return await asyncio.shield(opened)
                except asyncio.CancelledError:
                    # The thread cannot be cancelled, so wait for it, and close the file if it has opened one.
                    await asyncio.wait({opened})
                    if not opened.cancelled() and opened.exception() is None:
                        opened.result().close()
                    raise
