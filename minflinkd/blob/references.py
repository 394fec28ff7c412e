"""Reference counts of a cache (B15): whether a file, or a job's directory, is still needed. Pure."""

from __future__ import annotations

from collections import Counter

from minflinkd.blob.keys import Blob
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import JobId


class NotReferenced(MinflinkError):
    """A blob was released more often than it was acquired: a bug in the caller."""

    code = "blob-not-referenced"


class References:
    """A reference to a blob is also a reference to its job's directory."""

    def __init__(self) -> None:
        self._counts: Counter[Blob] = Counter()

    def count(self, blob: Blob) -> int:
        return self._counts[blob]

    def count_of_job(self, job_id: JobId | None) -> int:
        return sum(count for blob, count in self._counts.items() if blob.job_id == job_id)

    def acquire(self, blob: Blob) -> None:
        self._counts[blob] += 1

    def release(self, blob: Blob) -> bool:
        """Give one reference back. True if nobody needs the blob any more. Raises NotReferenced."""
        if not self._counts[blob]:
            raise NotReferenced(f"blob {blob} is not referenced")
        self._counts[blob] -= 1
        if self._counts[blob]:
            return False
        del self._counts[blob]
        return True
