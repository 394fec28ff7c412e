"""Turns what S3 and its client raise into the few kinds of storage errors (S4)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
from botocore import exceptions as boto
from botocore.parsers import ResponseParserError

from minflinkd.storage.interface import (
    InvalidPath,
    ObjectExists,
    ObjectNotFound,
    PermissionDenied,
    StorageCorrupt,
    StorageError,
    StorageFull,
    StorageUnavailable,
)

_CREDENTIALS = "see storage.s3.access-key and secret-key, or the SDK's own chain: environment, profile, role"
_ALLOW = "allow it in the policy of the bucket or of the identity; without s3:ListBucket a missing object is forbidden"
_BUCKET = "create the bucket, or correct the URI"
_ROOM = "raise the quota, or free space"


class RangeBeyondEnd(StorageError):
    """A read begins at the object's end or after it."""


class WritersMet(StorageUnavailable):
    """A conditional write was refused because another one was under way."""


class UploadGone(StorageUnavailable):
    """The upload of a request was ended by somebody else or by an earlier request."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint, settled=True)


_BY_CODE: dict[str, tuple[type[StorageError], str]] = {
    "NoSuchKey": (ObjectNotFound, ""),
    "NoSuchVersion": (ObjectNotFound, ""),
    "NoSuchUpload": (UploadGone, "write it again; was it ended by somebody else, e.g. by a lifecycle rule?"),
    "NoSuchBucket": (StorageError, _BUCKET),  # not ObjectNotFound: a wrong bucket must not look like an empty one
    "PreconditionFailed": (ObjectExists, ""),
    "AccessDenied": (PermissionDenied, _ALLOW),
    "AuthorizationHeaderMalformed": (PermissionDenied, "see storage.s3.region"),
    "ExpiredToken": (PermissionDenied, _CREDENTIALS),
    "InvalidAccessKeyId": (PermissionDenied, _CREDENTIALS),
    "InvalidToken": (PermissionDenied, _CREDENTIALS),
    "RequestTimeTooSkewed": (PermissionDenied, "set the clock of this machine"),
    "SignatureDoesNotMatch": (PermissionDenied, _CREDENTIALS),
    "InvalidRange": (RangeBeyondEnd, ""),
    "InvalidBucketName": (InvalidPath, ""),
    "InvalidObjectName": (InvalidPath, ""),
    "InvalidURI": (InvalidPath, ""),
    "KeyTooLongError": (InvalidPath, "shorten the name to 1024 bytes"),
    "InsufficientStorage": (StorageFull, _ROOM),
    "QuotaExceeded": (StorageFull, _ROOM),
    "XMinioStorageFull": (StorageFull, _ROOM),
    "BadDigest": (StorageUnavailable, "the request was damaged on its way"),
    "IncompleteBody": (StorageUnavailable, ""),
    "RequestTimeout": (StorageUnavailable, ""),
    "XAmzContentSHA256Mismatch": (StorageUnavailable, "the request was damaged on its way"),
    "ConditionalRequestConflict": (WritersMet, ""),
    "OperationAborted": (StorageUnavailable, "another request for the same object"),
    "InternalError": (StorageUnavailable, ""),
    "RequestLimitExceeded": (StorageUnavailable, ""),
    "SlowDown": (StorageUnavailable, ""),
    "Throttling": (StorageUnavailable, ""),
    "ThrottlingException": (StorageUnavailable, ""),
}
_BY_STATUS: dict[int, tuple[type[StorageError], str]] = {  # a HEAD has only a status, no code
    401: (PermissionDenied, _CREDENTIALS),
    403: (PermissionDenied, _ALLOW),
    404: (ObjectNotFound, ""),
    408: (StorageUnavailable, ""),
    412: (ObjectExists, ""),
    416: (RangeBeyondEnd, ""),
    429: (StorageUnavailable, ""),
    501: (StorageError, "the store cannot do this"),
    507: (StorageFull, _ROOM),
}


@contextmanager
def s3_errors(path: str) -> Iterator[None]:
    """Turn every error of the block into a StorageError that names `path` and the cause."""
    try:
        yield
    except boto.ClientError as error:
        raise of_answer(path, error.response) from error
    except (boto.NoCredentialsError, boto.PartialCredentialsError, boto.CredentialRetrievalError) as error:
        raise PermissionDenied(f"s3: {path}: {error}", hint=_CREDENTIALS) from error
    except (boto.ProfileNotFound, boto.TokenRetrievalError, boto.SSOError) as error:
        raise PermissionDenied(f"s3: {path}: {error}", hint=_CREDENTIALS) from error
    except boto.ParamValidationError as error:
        raise InvalidPath(f"s3: {path}: {error}") from error
    except boto.FlexibleChecksumError as error:
        raise StorageCorrupt(f"s3: {path}: {error}") from error
    except (boto.ConnectionError, boto.HTTPClientError, boto.IncompleteReadError, ResponseParserError) as error:
        raise StorageUnavailable(f"s3: {path}: {error}") from error
    except boto.BotoCoreError as error:
        raise StorageError(f"s3: {path}: {type(error).__name__}: {error}") from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise StorageUnavailable(f"s3: {path}: {type(error).__name__}: {error}") from error


def of_answer(path: str, answer: dict[str, Any]) -> StorageError:
    """Return the error that an answer reports, or that one entry of the answer to a batch request reports."""
    error = answer.get("Error", {})
    code, text = str(error.get("Code", "")), str(error.get("Message", ""))
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    kind, hint = _BY_CODE.get(code) or _BY_STATUS.get(status) or _of_status(status)
    return kind(f"s3: {path}: {': '.join(part for part in (code, text) if part) or status}", hint=hint)


def _of_status(status: int) -> tuple[type[StorageError], str]:
    return (StorageUnavailable if status >= 500 else StorageError), ""
