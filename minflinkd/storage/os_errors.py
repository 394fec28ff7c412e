"""Turns the operating system's errors into the few kinds of storage errors (S4), for code that uses local files."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from minflinkd.storage.interface import (
    InvalidPath,
    ObjectExists,
    ObjectNotFound,
    PermissionDenied,
    StorageError,
    StorageFull,
    StorageUnavailable,
)

_NO_SPACE = "free space there, or point the option at another file system"
_KINDS: dict[int, tuple[type[StorageError], str]] = {
    errno.ENOENT: (ObjectNotFound, ""),
    errno.ENOTDIR: (ObjectNotFound, ""),
    errno.EISDIR: (ObjectNotFound, "it is a directory"),
    errno.EEXIST: (ObjectExists, ""),
    errno.EACCES: (PermissionDenied, "give the process's user access to it"),
    errno.EPERM: (PermissionDenied, "give the process's user access to it"),
    errno.EROFS: (PermissionDenied, "the file system is mounted read-only"),
    errno.ENOSPC: (StorageFull, _NO_SPACE),
    errno.EDQUOT: (StorageFull, _NO_SPACE),
    errno.ENAMETOOLONG: (InvalidPath, "shorten the name"),
    errno.EINVAL: (InvalidPath, ""),
    errno.EIO: (StorageUnavailable, "look at the disk's health in the system log"),
    errno.ESTALE: (StorageUnavailable, ""),
    errno.EMFILE: (StorageUnavailable, "raise LimitNOFILE"),
    errno.ENFILE: (StorageUnavailable, ""),
    errno.ENOTCONN: (StorageUnavailable, ""),  # the process behind a mount has ended
    errno.ENETUNREACH: (StorageUnavailable, ""),
    errno.EHOSTUNREACH: (StorageUnavailable, ""),
    errno.EHOSTDOWN: (StorageUnavailable, ""),
}


def of_os_error(scheme: str, path: object, error: OSError) -> StorageError:
    """Return the matching storage error. `os_errors` handles paths that cannot be parsed."""
    kind, hint = _KINDS.get(error.errno or 0, (StorageError, ""))
    if isinstance(error, (ConnectionError, TimeoutError, socket.gaierror)):
        kind, hint = StorageUnavailable, ""
    text = error.strerror or str(error) or type(error).__name__
    return kind(f"{scheme}: {path}: {text}", hint=hint)


@contextmanager
def os_errors(path: object) -> Iterator[None]:
    """Turn every OSError of the block into a StorageError that names `path` and the cause."""
    try:
        yield
    except OSError as error:
        raise of_os_error("file", path, error) from error
    except ValueError as error:  # NUL in a path
        raise InvalidPath(f"file: {str(path)!r}: {error}") from error
