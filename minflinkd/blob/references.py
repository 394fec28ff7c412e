"""Reference counts of a cache's blobs (B15): who still needs a file. Pure."""

from __future__ import annotations

from collections import Counter

from minflinkd.blob.keys import BlobKey
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import JobId

Blob = tuple[JobId, BlobKey]


class NotReferenced(MinflinkError):
    """A blob was released more often than it was asked for: a bug in the caller."""

    code = "blob-not-referenced"


class References:
    def __init__(self) -> None:
        self._counts: Counter[Blob] = Counter()

    def count(self, blob: Blob) -> int:
        return self._counts[blob]

    def acquire(self, blob: Blob) -> None:
        self._counts[blob] += 1

    def release(self, blob: Blob) -> bool:
        """Whether nobody needs the blob any more. Raises NotReferenced.

        One of a forgotten job is released without effect, as a task may end after its job was forgotten.
        """
        job_id, key = blob
        if not self._counts[blob]:
            if all(job != job_id for job, _ in self._counts):
                return True
            raise NotReferenced(f"blob {key} of job {job_id} is not referenced")
        self._counts[blob] -= 1
        if not self._counts[blob]:
            del self._counts[blob]
            return True
        return False

    def forget_job(self, job_id: JobId) -> None:
        for blob in [blob for blob in self._counts if blob[0] == job_id]:
            del self._counts[blob]
