"""Turns the SDK's errors into the few kinds of storage errors, without credentials."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    DecodeError,
    HttpResponseError,
    ServiceRequestError,
    ServiceResponseError,
)

from minflinkd.storage.interface import (
    InvalidPath,
    ObjectExists,
    ObjectNotFound,
    PermissionDenied,
    StorageError,
    StorageFull,
    StorageUnavailable,
)
from minflinkd.storage.masking import Mask

_ACCESS = "give the identity a role on the container, such as Storage Blob Data Contributor, or check the credentials"
_STATUS: dict[int, tuple[type[StorageError], str]] = {
    401: (PermissionDenied, _ACCESS),
    403: (PermissionDenied, _ACCESS),
    404: (ObjectNotFound, ""),
    408: (StorageUnavailable, ""),
    429: (StorageUnavailable, ""),
}
_CODES: dict[str, tuple[type[StorageError], str]] = {
    "BlobAlreadyExists": (ObjectExists, ""),
    "ContainerNotFound": (StorageError, "create the container, or correct the URI"),  # must not look like an empty one
    "ContainerBeingDeleted": (StorageUnavailable, ""),
    "PendingCopyOperation": (StorageUnavailable, ""),
    "InvalidResourceName": (InvalidPath, ""),
    "InvalidUri": (InvalidPath, ""),
    "OutOfRangeInput": (InvalidPath, "shorten the name"),
    "LeaseIdMissing": (PermissionDenied, "somebody holds a lease on it: break the lease"),
    "LeaseIdMismatchWithBlobOperation": (PermissionDenied, "somebody holds a lease on it: break the lease"),
}
_GONE = ("InvalidBlockList", "InvalidBlobOrBlock")  # the upload's blocks were dropped, by another writer or by age


@contextmanager
def azure_errors(path: str, mask: Mask) -> Iterator[None]:
    """Turn every error of the block into a StorageError that names `path`.

    The traceback does not show the SDK's error, since its text is not masked.
    """
    try:
        yield
    except StorageError:
        raise
    except HttpResponseError as error:
        raise _refusal(path, error, mask) from None
    except (ServiceRequestError, ServiceResponseError, DecodeError, TimeoutError, OSError) as error:
        raise StorageUnavailable(f"abfs: {path}: {_text(error, mask)}") from None
    except (AzureError, ValueError) as error:  # e.g. a key that is not base64, which the text may show
        text = f"abfs: {path}: the credentials cannot be used: {type(error).__name__}"
        raise PermissionDenied(text, hint="check storage.abfs.*, docs/storage.md") from None


def code_of(error: HttpResponseError) -> str:
    """Return the service's error code; empty if the answer has none."""
    code = getattr(error, "error_code", None)
    return str(getattr(code, "value", code) or "")


def _refusal(path: str, error: HttpResponseError, mask: Mask) -> StorageError:
    status, code = error.status_code or 0, code_of(error)
    text = f"abfs: {path}: {code or 'refused'} (HTTP {status}): {_text(error, mask)}"
    if code in _GONE:
        return StorageUnavailable(text, hint="write it again", settled=True)
    if isinstance(error, ClientAuthenticationError):
        return PermissionDenied(text, hint=_ACCESS)
    if "no space left" in text or "ENOSPC" in text:
        return StorageFull(text, hint="free space there")
    by_status = _STATUS.get(status, (StorageUnavailable if status >= 500 or not status else StorageError, ""))
    kind, hint = _CODES.get(code, by_status)
    return kind(text, hint=hint)


def _text(error: BaseException, mask: Mask) -> str:
    """Return the first line; the others are request ids and times."""
    lines = mask(str(error)).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
