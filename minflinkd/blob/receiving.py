"""Stores uploads in both stores, each content once (B1, B5)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import structlog

from minflinkd.blob.depot import BlobDepot
from minflinkd.blob.errors import BlobNotFound
from minflinkd.blob.filling import Filling, filling
from minflinkd.blob.incoming import Incoming
from minflinkd.blob.keys import Blob, BlobKey, BlobKind
from minflinkd.blob.reading import BlobReader, Turn
from minflinkd.blob.transfer import finish, in_chunks, pump
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import JobId
from minflinkd.storage.interface import Writer
from minflinkd.storage.parallel import for_each

log = structlog.get_logger(__name__)


class BlobReceiver:
    def __init__(self, depot: BlobDepot, reader: BlobReader) -> None:
        self._depot = depot
        self._reader = reader
        self._lifecycle = depot.lifecycle

    async def find(
        self, job_id: JobId | None, kind: BlobKind, sha256: str, upload_set: str | None, *, turn: Turn = nullcontext
    ) -> tuple[BlobKey, int] | None:
        """B1: Return the key and size of content that is already stored, or None. This counts as uploading it again."""
        for key in await self._depot.in_thread(self._depot.store.candidates, job_id, kind, sha256):
            blob = Blob(job_id, key)
            try:
                (await self._reader.open_local(blob, turn=turn)).close()
                if self._lifecycle.offered(blob, upload_set, self._depot.now()):
                    with await self._reader.open_local(blob, turn=turn) as file:  # it may have been deleted since
                        return key, os.fstat(file.fileno()).st_size
            except BlobNotFound:
                continue
        return None

    def complete(self, job_id: JobId | None, upload_set: str) -> None:
        self._lifecycle.complete(job_id, upload_set, self._depot.now())

    async def receive(self, blob: Blob, source: AsyncIterator[bytes], upload_set: str | None) -> BlobKey:
        """Store an upload, with a copy if the blob is PERMANENT. Return the key under which the content is now known.

        Leaves nothing behind if it raises BlobMismatch, BlobTooLarge, BlobInUse, StorageError or what `source` raises.
        """
        self._lifecycle.receive(blob, upload_set, self._depot.now())
        try:
            async with self._depot.incoming(blob) as incoming, self._copy(blob) as copy:
                async with filling(incoming, self._depot.threads) as local:
                    if copy is None:
                        async for piece in source:
                            await local.put(piece)
                    else:
                        await pump(in_chunks(_put_each(source, local)), copy.append)
                incoming.verify()
                return await finish(self._publish(blob, incoming, copy, upload_set))
        except BaseException:
            if self._lifecycle.is_receiving(blob):  # otherwise it was published after all
                self._lifecycle.not_received(blob)
            raise

    async def _publish(self, blob: Blob, incoming: Incoming, copy: Writer | None, upload_set: str | None) -> BlobKey:
        job_id, key = blob
        async with self._depot.lock(job_id, key.kind, key.sha256):
            self._lifecycle.check_not_ending(job_id)
            try:
                placed = copy is None and await self._depot.in_thread(self._place_if_new, blob, incoming)
            except BaseException:
                await self._forget(blob, copied=False)
                raise
            if not placed:
                known = await self.find(job_id, key.kind, key.sha256, upload_set)
                if known is not None:
                    self._lifecycle.not_received(blob)
                    return known[0]
                self._lifecycle.check_not_ending(job_id)
                try:
                    await self._commit(copy, incoming)
                    await self._depot.in_thread(incoming.place)
                except BaseException:
                    await self._forget(blob, copied=copy is not None)
                    raise
            if copy is not None:
                self._depot.copied.add(blob)
            self._lifecycle.received(blob, upload_set, self._depot.now())
            self._depot.uploads.stored(blob)
            return key

    def _place_if_new(self, blob: Blob, incoming: Incoming) -> bool:
        """Place the blob and return True, unless the content seems to be stored already. Blocking.

        Both are done here so that they take only one thread call.
        """
        for key in self._depot.store.candidates(blob.job_id, blob.key.kind, blob.key.sha256):
            if self._lifecycle.can_be_had(Blob(blob.job_id, key)):
                return False
        incoming.place()
        return True

    async def _commit(self, copy: Writer | None, incoming: Incoming) -> None:
        """Commit the copy before the local file is placed. So a local file always has a copy, even after a crash."""
        if copy is None:
            return  # placing it makes it durable

        async def sync() -> None:
            await self._depot.in_thread(incoming.sync)

        await for_each([sync, copy.commit], lambda step: step(), limit=2)

    async def _forget(self, blob: Blob, *, copied: bool) -> None:
        """Delete a blob that nobody was told about. The cleanup finds what cannot be deleted now."""
        try:
            await self._depot.in_thread(self._depot.store.delete, *blob)
            if copied and self._depot.ha_store is not None:
                await self._depot.ha_store.delete(*blob)
        except MinflinkError as error:
            log.warning("a failed upload is left to the cleanup", blob=str(blob.key), job=blob.job_id, error=str(error))

    @asynccontextmanager
    async def _copy(self, blob: Blob) -> AsyncIterator[Writer | None]:
        """Yield the writer of a PERMANENT blob's copy. It is aborted at the end unless it was committed."""
        if (copies := self._depot.copies_of(blob)) is None:
            yield None
            return
        writer = await copies.create(*blob)
        try:
            yield writer
        finally:
            if blob not in self._depot.copied:
                await finish(writer.abort())


async def _put_each(source: AsyncIterator[bytes], local: Filling) -> AsyncIterator[bytes]:
    async for piece in source:
        await local.put(piece)
        yield piece
