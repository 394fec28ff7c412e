"""What users have uploaded that no job has taken over, so that it counts for them (E46). No I/O.

An upload counts from its first byte, at the size that is announced for it or that has arrived, until its job's record
names it, or it is deleted. This is in memory: what lies there when a daemon starts counts for nobody, and is deleted
unless a job takes it over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from minflinkd.blob.keys import Blob, BlobKey
from minflinkd.runtime.ids import JobId


@dataclass(frozen=True)
class Upload:
    blob: Blob
    user: str
    size: int  # bytes


class Uploads:
    """`admit` is asked before a user has so many more bytes, and raises if they may not."""

    def __init__(self, admit: Callable[[str, int], None]) -> None:
        self._admit = admit
        self._coming: dict[Blob, Upload] = {}
        self._stored: dict[Blob, Upload] = {}

    def all(self) -> tuple[Upload, ...]:
        return (*self._coming.values(), *self._stored.values())

    @contextmanager
    def receiving(self, blob: Blob, user: str, announced: int | None) -> Iterator[Callable[[int], None]]:
        """Count an upload while it is received. Yields what is told how many bytes have arrived in all.

        `user`: empty for a process of the cluster, which has no quota. Raises what `admit` raises, and so does what it
        yields: more bytes may arrive than were announced, or nothing was announced.
        """
        if not user:
            yield lambda _: None
            return
        self._admit(user, announced or 0)
        self._coming[blob] = Upload(blob, user, announced or 0)

        def arrived(size: int) -> None:
            upload = self._coming[blob]
            if size > upload.size:
                self._admit(user, size - upload.size)
                self._coming[blob] = replace(upload, size=size)

        try:
            yield arrived
        finally:
            self._coming.pop(blob, None)

    def stored(self, blob: Blob) -> None:
        """The whole blob is stored, so it counts until it is gone."""
        if (upload := self._coming.get(blob)) is not None:
            self._stored[blob] = upload

    def taken_over(self, job_id: JobId, keys: Iterable[BlobKey]) -> None:
        """The record of the job names these blobs: they count as the job's."""
        for key in keys:
            self._stored.pop(Blob(job_id, key), None)

    def gone(self, blobs: Iterable[Blob]) -> None:
        for blob in blobs:
            self._stored.pop(blob, None)

    def gone_with(self, job_id: JobId) -> None:
        """All blobs of the job are deleted."""
        self.gone([blob for blob in self._stored if blob.job_id == job_id])

    def kept(self) -> Collection[Blob]:
        """Return the blobs that are stored and count."""
        return tuple(self._stored)
