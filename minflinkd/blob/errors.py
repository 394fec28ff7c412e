"""What can go wrong with a blob, and the HTTP status for it."""

from __future__ import annotations

from minflinkd.runtime.errors import Conflict, Consequence, InvalidId, MinflinkError, NotFound
from minflinkd.storage.interface import StorageFull, StorageUnavailable


class BlobNotFound(NotFound):
    code = "blob-not-found"


class BlobTooLarge(MinflinkError):
    code = "blob-too-large"
    consequence = Consequence.REFUSED


class BlobMismatch(MinflinkError):
    """The received data is not what was announced. Another try may succeed."""

    code = "blob-checksum-mismatch"
    consequence = Consequence.RETRYABLE


class BlobServerBusy(MinflinkError):
    """As many transfers run and wait as allowed (B9). `retry_after`: seconds; 0 if the server names none."""

    code = "blob-server-busy"
    consequence = Consequence.RETRYABLE

    def __init__(self, message: str, *, hint: str = "", retry_after: float = 0.0) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class BlobPermanent(Conflict):
    """A user may not delete a permanent blob (B2)."""

    code = "blob-permanent"


class BlobInUse(Conflict):
    """The blob, or all blobs of its job, are held by somebody, so this is not allowed."""

    code = "blob-in-use"


class NotLeading(MinflinkError):
    """Another daemon leads, and only the leader deletes in the HA store."""

    code = "blob-not-leading"
    consequence = Consequence.FENCED


class BlobServerUnreachable(MinflinkError):
    code = "blob-server-unreachable"
    consequence = Consequence.RETRYABLE


class BlobUnauthorized(MinflinkError):
    code = "blob-unauthorized"
    consequence = Consequence.REFUSED


_STATUS: tuple[tuple[type[MinflinkError], int], ...] = (
    (InvalidId, 400),
    (BlobMismatch, 400),
    (BlobUnauthorized, 401),
    (NotFound, 404),
    (Conflict, 409),
    (BlobTooLarge, 413),
    (BlobServerBusy, 503),
    (StorageUnavailable, 503),
    (StorageFull, 507),
)


def http_status(error: MinflinkError) -> int:
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
