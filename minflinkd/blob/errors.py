"""What can go wrong with a blob, and what HTTP calls it."""

from __future__ import annotations

from minflinkd.runtime.errors import Consequence, InvalidId, MinflinkError, NotFound
from minflinkd.storage.interface import StorageFull


class BlobNotFound(NotFound):
    code = "blob-not-found"


class BlobTooLarge(MinflinkError):
    code = "blob-too-large"
    consequence = Consequence.REFUSED


class BlobMismatch(MinflinkError):
    """What arrived is not what was announced; another try may do better."""

    code = "blob-checksum-mismatch"
    consequence = Consequence.RETRYABLE


class BlobServerBusy(MinflinkError):
    """As many transfers run and wait as are allowed (B9)."""

    code = "blob-server-busy"
    consequence = Consequence.RETRYABLE


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
    (BlobTooLarge, 413),
    (BlobServerBusy, 503),
    (StorageFull, 507),
)


def http_status(error: MinflinkError) -> int:
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
