"""The same file at a second place: a hard link where the directory can make one, else a copy (C11)."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

# Another file system; one without links, or with no more of them for this file, or none to other users' files.
_CANNOT_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
# Not for these two files, or not on these file systems.
_CANNOT_COPY_INSIDE = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM, errno.EBADF})
_PIECE = 1 << 20  # bytes


def link_or_copy(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> int:
    """Returns the size in bytes. The source is a file that nobody changes; it may be deleted meanwhile, and is whole

    or not there then. Blocking. Raises OSError: FileNotFoundError without a source, FileExistsError with a target.
    """
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _CANNOT_LINK:
            raise
        return _copy(source, target)
    return os.stat(target).st_size


def _copy(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> int:
    with open(source, "rb", buffering=0) as read, open(target, "xb", buffering=0) as written:
        try:
            size = os.fstat(read.fileno()).st_size
            done = _copy_inside(read.fileno(), written.fileno(), size)
            while done < size and (piece := os.pread(read.fileno(), min(_PIECE, size - done), done)):
                done += os.pwrite(written.fileno(), piece, done)
        except BaseException:
            with suppress(OSError):
                Path(target).unlink()
            raise
    return done


def _copy_inside(source: int, target: int, size: int) -> int:
    """As much as the file system copies by itself (a server's own copy, shared blocks), which may be nothing."""
    done = 0
    try:
        while done < size and (copied := os.copy_file_range(source, target, size - done, done, done)):
            done += copied
    except (OSError, AttributeError) as error:  # the latter: not on this platform
        if isinstance(error, OSError) and error.errno not in _CANNOT_COPY_INSIDE:
            raise
    return done
