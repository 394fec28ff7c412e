"""Decides which blobs of the BlobServer are needed, and which to delete (B2, B6, B16, B17, B19, B20).

Pure: no I/O, no clock.

A blob is needed while it is being received, belongs to an incomplete set, is referenced by a part of the daemon, or is
an artifact of a job that runs or can be recovered. A known blob that is not needed is staged. A rotation of the lists
*condemns* what is due. A condemned blob cannot be acquired until it is deleted. So a submission either comes before and
keeps the blob, or comes after and is told that it is gone. Keys are never reused, so no deletion can hit a later
upload. A directory that is deleted as a whole is condemned in the same way.

Before `jobs_known` nothing is condemned but transient blobs that their user deletes: a daemon that has not read its job
store does not know what is needed. And `rotate` condemns nothing while the records contradict each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from minflinkd.blob.errors import BlobInUse, BlobNotFound, BlobPermanent
from minflinkd.blob.keys import Blob, BlobKey, owner_name
from minflinkd.blob.staged import StagedLists
from minflinkd.runtime.ids import JobId
from minflinkd.runtime.machine import InvariantViolated

NAMED = 10  # blobs in the message about an invariant


class BlobState(StrEnum):
    """The state shown in the list of blobs."""

    RECEIVING = "receiving"
    UPLOADED = "uploaded"  # belongs to an incomplete set
    REFERENCED = "referenced"
    KEPT = "kept"  # belongs to a job with a record that cannot be read
    STAGED = "staged"
    CONDEMNED = "condemned"
    UNKNOWN = "unknown"  # not found by a cleanup yet; the next run stages it


@dataclass
class _OpenSet:
    touched: float
    blobs: set[Blob] = field(default_factory=set)
    coming: set[Blob] = field(default_factory=set)  # being received


class BlobLifecycle:
    """Tracks the blobs. All times are of one monotonic clock, in seconds."""

    def __init__(self, *, retention: float, now: float) -> None:
        self._retention = retention
        self._staged: StagedLists[Blob] = StagedLists(retention, now)
        self._receiving: Counter[Blob] = Counter()
        self._sets: dict[tuple[JobId | None, str], _OpenSet] = {}
        self._counts: Counter[Blob] = Counter()  # references of the daemon's parts
        self._held: dict[JobId, frozenset[BlobKey]] = {}  # one reference to each artifact
        self._kept: set[JobId] = set()
        self._condemned: dict[Blob, None] = {}
        self._ending: set[JobId] = set()  # their directories are being deleted
        self._jobs_known = False

    # --- inspection ----------------------------------------------------------------------------------------------

    def references(self, blob: Blob) -> int:
        return self._counts[blob] + self._is_artifact(blob)

    def state(self, blob: Blob) -> BlobState:
        if blob in self._condemned or blob.job_id in self._ending:
            return BlobState.CONDEMNED
        if self.references(blob):
            return BlobState.REFERENCED
        if self._receiving[blob]:
            return BlobState.RECEIVING
        if any(blob in uploaded.blobs for uploaded in self._sets.values()):
            return BlobState.UPLOADED
        if blob.job_id in self._kept:
            return BlobState.KEPT
        return BlobState.STAGED if blob in self._staged else BlobState.UNKNOWN

    def needed(self, blob: Blob) -> bool:
        return self.state(blob) in _NEEDED

    def can_be_had(self, blob: Blob) -> bool:
        """False once the blob is being deleted, whether its file still exists or not."""
        return blob not in self._condemned and blob.job_id not in self._ending

    def is_held(self, job_id: JobId | None) -> bool:
        """Whether the job runs, can be recovered, is being submitted, or has a record that cannot be read."""
        return job_id in self._held or job_id in self._kept

    def survives(self, blob: Blob) -> bool:
        """Whether a later daemon may need it, to recover its job."""
        return blob.is_permanent and (self._is_artifact(blob) or blob.job_id in self._kept)

    def ending(self) -> tuple[JobId, ...]:
        """Return the jobs with a directory that is being deleted, or could not be deleted."""
        return tuple(self._ending)

    def held(self) -> tuple[Blob, ...]:
        """Return the artifacts of all held jobs."""
        return tuple(Blob(job_id, key) for job_id, keys in self._held.items() for key in sorted(keys))

    @property
    def staged(self) -> int:
        return len(self._staged)

    @property
    def due_at(self) -> float:
        """When to call `rotate` next, unless something happens first."""
        expiries = [uploaded.touched + self._retention for uploaded in self._sets.values()]
        return min(self._staged.rotates_at, *expiries) if expiries else self._staged.rotates_at

    def check_invariants(self) -> None:
        """Raises InvariantViolated if a blob that is to be deleted, now or soon, is needed."""
        wrong = [
            f"{blob} is condemned, but has {self.references(blob)} references and {self._receiving[blob]} uploads"
            for blob in self._condemned
            if self.references(blob) or self._receiving[blob]
        ]
        wrong += [
            f"{blob} is staged, but also {self.state(blob)}"
            for blob in self._staged
            if self.state(blob) is not BlobState.STAGED
        ]
        if wrong:
            more = f"; and {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
            raise InvariantViolated(
                "; ".join(wrong[:NAMED]) + more,
                hint="restart the daemon: it learns from its job store again which blobs are needed",
            )

    # --- uploads -------------------------------------------------------------------------------------------------

    def receive(self, blob: Blob, upload_set: str | None, now: float) -> None:
        """Register an upload before its first byte is stored. Its set does not expire during the upload.

        Raises BlobInUse if the job is being deleted.
        """
        self.check_not_ending(blob.job_id)
        self._receiving[blob] += 1
        if upload_set is not None:
            self._sets.setdefault((blob.job_id, upload_set), _OpenSet(now)).coming.add(blob)

    def is_receiving(self, blob: Blob) -> bool:
        return bool(self._receiving[blob])

    def check_not_ending(self, job_id: JobId | None) -> None:
        """Raises BlobInUse if the job's directory is being deleted."""
        if job_id in self._ending:
            raise BlobInUse(f"the blobs of job {owner_name(job_id)} are being deleted", hint="use a new job id")

    def received(self, blob: Blob, upload_set: str | None, now: float) -> None:
        """The blob is stored. Without a set it is staged, and stays only if somebody acquires it in time."""
        self._end_of_receiving(blob)
        self._uploaded(blob, upload_set, now)

    def not_received(self, blob: Blob) -> None:
        """The upload failed and left nothing."""
        self._end_of_receiving(blob)

    def offered(self, blob: Blob, upload_set: str | None, now: float) -> bool:
        """Content that is already stored is uploaded again. False if it is being deleted."""
        if not self.can_be_had(blob):
            return False
        self._uploaded(blob, upload_set, now)
        return True

    def complete(self, job_id: JobId | None, upload_set: str, now: float) -> None:
        """The last blob of the set has come: stage all of them at once. May be repeated."""
        uploaded = self._sets.pop((job_id, upload_set), None)
        if uploaded is not None:
            self._stage(uploaded.blobs, now)

    def used(self, blob: Blob, now: float) -> None:
        """A transient blob that somebody reads is kept for another retention interval."""
        if not blob.is_permanent and blob in self._staged:
            self._staged.remove(blob)
            self._staged.add(blob)

    # --- references ----------------------------------------------------------------------------------------------

    def acquire(self, blob: Blob) -> None:
        """Take one reference. Raises BlobNotFound if the blob is being deleted."""
        if not self.can_be_had(blob):
            raise BlobNotFound(f"blob {blob} was deleted")
        self._counts[blob] += 1
        self._staged.remove(blob)

    def release(self, blob: Blob, now: float, *, at_once: bool = False) -> bool:
        """Give one reference back. Return whether to delete the blob now, which needs `at_once` and a count of 0.

        It is no error if the blob is not referenced because its job has ended meanwhile.
        """
        self._counts[blob] -= 1
        if self._counts[blob] <= 0:
            del self._counts[blob]
        if self.needed(blob) or not self.can_be_had(blob):
            return False
        if at_once and not blob.is_permanent:
            self._condemn(blob)
            return True
        self._stage([blob], now)
        return False

    def delete(self, blob: Blob) -> None:
        """Condemn a transient blob at once, because its user says so. Raises BlobPermanent, BlobInUse."""
        if blob.is_permanent:
            raise BlobPermanent(f"blob {blob.key} is permanent: it goes with its job", hint="cancel the job")
        if self._is_artifact(blob) or blob.job_id in self._kept or self._receiving[blob]:
            raise BlobInUse(f"blob {blob.key} is in use", hint="try again when its job has ended")
        if blob not in self._condemned:
            self._condemn(blob)

    # --- jobs ----------------------------------------------------------------------------------------------------

    def hold(self, job_id: JobId, keys: Iterable[BlobKey]) -> frozenset[BlobKey]:
        """Take one reference to each blob, on submission and again on every recovery. May be repeated.

        Blobs that are being deleted are not held. They are returned.
        """
        wanted = frozenset(keys)
        gone = frozenset(key for key in wanted if not self.can_be_had(Blob(job_id, key)))
        self._held[job_id] = wanted - gone
        self._kept.discard(job_id)
        for key in wanted - gone:
            self._staged.remove(Blob(job_id, key))
        return gone

    def keep(self, job_id: JobId) -> None:
        """The job's record cannot be read, so any of its blobs may be needed."""
        self._kept.add(job_id)
        self._staged.remove_where(lambda blob: blob.job_id == job_id)

    def let_go(self, job_id: JobId, now: float) -> None:
        """The job was inspected but not submitted."""
        keys = self._held.pop(job_id, frozenset())
        self._stage([Blob(job_id, key) for key in sorted(keys)], now)

    def failed(self, job_id: JobId, now: float) -> None:
        """The holder of the job's transient blobs is gone. Blobs with a copy stay as they are."""
        lost = [blob for blob in self._counts if blob.job_id == job_id and not blob.is_permanent]
        for blob in lost:
            del self._counts[blob]
        self._stage(lost, now)

    def end(self, job_id: JobId) -> None:
        """The job ended for good, or was never accepted. Its directory is being deleted until `ended`."""
        self._held.pop(job_id, None)
        self._kept.discard(job_id)
        for blob in [blob for blob in self._counts if blob.job_id == job_id]:
            del self._counts[blob]
        for name in [name for name in self._sets if name[0] == job_id]:
            del self._sets[name]
        self._staged.remove_where(lambda blob: blob.job_id == job_id)
        self._ending.add(job_id)

    def ended(self, job_id: JobId) -> None:
        """The job's directory is gone."""
        self._ending.discard(job_id)
        for blob in [blob for blob in self._condemned if blob.job_id == job_id]:
            del self._condemned[blob]

    # --- cleanup -------------------------------------------------------------------------------------------------

    def jobs_known(self) -> None:
        """Every job of the job store is now held or kept."""
        self._jobs_known = True

    def found(self, blobs: Iterable[Blob], now: float) -> None:
        """These blobs lie in a store. Stage those that nobody needs."""
        if self._jobs_known:
            self._stage(blobs, now)

    def rotate(self, now: float) -> tuple[Blob, ...]:
        """Return everything that is condemned, including what could not be deleted earlier.

        Raises InvariantViolated if something of it may be needed. Nothing has changed then.
        """
        self.check_invariants()
        for name, uploaded in list(self._sets.items()):
            if uploaded.coming:
                uploaded.touched = now
            if now - uploaded.touched >= self._retention:
                self.complete(*name, now)
        if self._jobs_known:
            for blob in self._staged.rotate(now):
                self._condemn(blob)
        return tuple(self._condemned)

    def deleted(self, blob: Blob) -> bool:
        """The blob is gone from both stores. Return whether this is the first report of it."""
        was_condemned = blob in self._condemned
        self._condemned.pop(blob, None)
        return was_condemned

    # --- parts ---------------------------------------------------------------------------------------------------

    def _is_artifact(self, blob: Blob) -> bool:
        return blob.job_id is not None and blob.key in self._held.get(blob.job_id, ())

    def _uploaded(self, blob: Blob, upload_set: str | None, now: float) -> None:
        self._staged.remove(blob)
        if upload_set is None:
            self._stage([blob], now)
            return
        uploaded = self._sets.setdefault((blob.job_id, upload_set), _OpenSet(now))
        uploaded.touched = now
        uploaded.blobs.add(blob)

    def _end_of_receiving(self, blob: Blob) -> None:
        self._receiving[blob] -= 1
        if self._receiving[blob] <= 0:
            del self._receiving[blob]
            for uploaded in self._sets.values():
                uploaded.coming.discard(blob)

    def _stage(self, blobs: Iterable[Blob], now: float) -> None:
        for blob in blobs:
            if self.state(blob) is BlobState.UNKNOWN:
                self._staged.add(blob)

    def _condemn(self, blob: Blob) -> None:
        self._counts.pop(blob, None)
        for uploaded in self._sets.values():
            uploaded.blobs.discard(blob)
        self._staged.remove(blob)
        self._condemned[blob] = None


_NEEDED = frozenset({BlobState.RECEIVING, BlobState.UPLOADED, BlobState.REFERENCED, BlobState.KEPT})
