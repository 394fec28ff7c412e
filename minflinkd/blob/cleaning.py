"""Deletes blobs in both stores, as `lifecycle` decides (B16, B17, B19).

Nothing is deleted because it is due while the lifecycle contradicts itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import structlog

from minflinkd.blob.depot import BlobDepot
from minflinkd.blob.keys import Blob, BlobKey
from minflinkd.blob.mending import CopyMender
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import JobId
from minflinkd.runtime.machine import InvariantViolated
from minflinkd.storage.parallel import for_each

log = structlog.get_logger(__name__)

DELETIONS = 8  # at a time


class BlobCleaner:
    """`retention`: seconds for which what nobody needs is kept at least."""

    def __init__(self, depot: BlobDepot, mender: CopyMender, *, retention: float) -> None:
        self.deleted = 0  # blobs that were due
        self._depot = depot
        self._mender = mender
        self._retention = retention
        self._lifecycle = depot.lifecycle

    # --- what somebody asks for ----------------------------------------------------------------------------------

    async def delete(self, blob: Blob) -> None:
        """Delete a transient blob now. Idempotent. Raises BlobPermanent, BlobInUse, StorageError."""
        self._lifecycle.delete(blob)
        await self._delete(blob)
        self._lifecycle.deleted(blob)

    async def delete_job(self, job_id: JobId) -> None:
        """Delete the job's whole directory in both stores. Idempotent. Raises StorageError; repeat the call then."""
        self._lifecycle.end(job_id)
        async with self._depot.lock(job_id):
            self._lifecycle.end(job_id)
            await self._delete_directory(job_id)

    # --- what is due ---------------------------------------------------------------------------------------------

    async def clean_up(self) -> None:
        """Stage what lies in the stores and nobody needs, finish deletions, and delete what is due. Never raises."""
        try:
            await self._look_around()
        except MinflinkError as error:
            log.warning("the cleanup of blobs is tried again later", error=str(error))
        await self.rotate()

    async def rotate(self) -> float:
        """Delete what is due (B16). Return the time at which to call this again.

        If the lifecycle contradicts itself, a blob that seems due may be needed. Then nothing is deleted: a full disk
        can be cleared later, a lost artifact cannot. All else goes on, and the next rotation looks again.
        """
        try:
            due = self._lifecycle.rotate(self._depot.now())
        except InvariantViolated as error:
            log.error(
                "no blob is deleted, because what is known of the blobs is contradictory: a bug in minflinkd",
                error=error.message,
                hint=error.hint,
            )
            return self._depot.now() + self._retention
        await self.delete_condemned(due)
        return self._lifecycle.due_at

    async def delete_condemned(self, blobs: Iterable[Blob]) -> None:
        """Delete the blobs that the lifecycle condemned. What cannot be deleted now stays condemned and is retried."""

        async def delete(blob: Blob) -> None:
            try:
                await self._delete(blob)
            except MinflinkError as error:
                log.warning("a blob cannot be deleted yet", blob=str(blob.key), job=blob.job_id, error=str(error))
            else:
                self.deleted += self._lifecycle.deleted(blob)  # count it once, even if two runs deleted it

        await for_each(blobs, delete, limit=DELETIONS)

    async def clear(self) -> None:
        """On an orderly exit, empty the local store, except for what a job needs and the HA store may lack."""
        needed, store = set[Blob](), self._depot.store
        for owner in await self._depot.in_thread(store.owners):
            files = await self._depot.in_thread(store.files, owner)
            needed |= {file.blob for file in files if self._lifecycle.survives(file.blob)}
        needed -= await self._mender.good(needed)
        for owner in await self._depot.in_thread(store.owners):
            await self._depot.in_thread(self._clear, owner, {blob.key for blob in needed if blob.job_id == owner})

    # --- parts ---------------------------------------------------------------------------------------------------

    async def _look_around(self) -> None:
        """Stage what lies in the stores and nobody needs. Delete the remains of broken uploads and deletions."""
        store, counted = self._depot.store, set(self._depot.uploads.kept())
        await self._finish_deletions()
        await self._depot.in_thread(store.delete_temporaries, self._retention)
        await self._depot.in_thread(store.delete_empty)
        sizes = dict[Blob, int]()
        for owner in await self._depot.in_thread(store.owners):
            files = await self._depot.in_thread(store.files, owner)
            sizes |= {file.blob: file.size for file in files}
            self._lifecycle.found([file.blob for file in files], self._depot.now())
        self._depot.uploads.gone(counted - sizes.keys())  # a corrupt file was moved aside
        await self._mender.mend_held(sizes)

    async def _finish_deletions(self) -> None:
        """Finish deletions of jobs that met an error or lost their caller."""
        for job_id in self._lifecycle.ending():
            try:
                async with self._depot.lock(job_id):
                    # Skip it if it was done meanwhile, or if another job with this id has come.
                    if job_id in self._lifecycle.ending() and not self._lifecycle.is_held(job_id):
                        await self._delete_directory(job_id)
            except MinflinkError as error:
                log.warning("the blobs of a job cannot be deleted yet", job=job_id, error=str(error))

    async def _delete(self, blob: Blob) -> None:
        async with self._depot.lock(blob):  # otherwise a restoration under way would bring it back
            if (copies := self._depot.copies_of(blob)) is not None:
                self._depot.check_leads()
                await copies.delete(*blob)
            await self._depot.in_thread(self._depot.store.delete, *blob)
            self._depot.copied.discard(blob)
            self._depot.uploads.gone([blob])

    async def _delete_directory(self, job_id: JobId) -> None:
        await self._depot.in_thread(self._depot.store.delete_job, job_id)
        if self._depot.ha_store is not None:
            self._depot.check_leads()
            await self._depot.ha_store.delete_job(job_id)
        self._depot.copied = {blob for blob in self._depot.copied if blob.job_id != job_id}
        self._depot.uploads.gone_with(job_id)
        self._lifecycle.ended(job_id)

    def _clear(self, owner: JobId | None, needed: Collection[BlobKey]) -> None:
        """Blocking."""
        if not needed:
            self._depot.store.delete_job(owner)
            return
        for key in self._depot.store.keys(owner):
            if key not in needed:
                self._depot.store.delete(owner, key)
