"""The same file in a second place: a hard link if the directory supports it, otherwise a copy (C11)."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

# Another file system, or one without links, or with too many for this file, or with none to other users' files.
_CANNOT_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
# Not possible for these two files, or on these file systems.
_CANNOT_COPY_INSIDE = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM, errno.EBADF})
_PIECE = 1 << 20  # bytes


def link_or_copy(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> int:
    """Link or copy a file, and return its size in bytes. Blocking.

    Nobody changes the source. It may be deleted meanwhile; then it was copied whole, or is not found. Raises OSError:
    FileNotFoundError without a source, FileExistsError if there is a target.
    """
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _CANNOT_LINK:
            raise
        return _copy(source, target)
    return os.stat(target).st_size


def link_or_copy_durably(source: Path, target: Path) -> None:
    """Link or copy a file, so that it outlives a loss of power. Makes the target's directory. Raises as above."""
    made = [target.parent, *(parent for parent in target.parents if not parent.exists())]
    target.parent.mkdir(parents=True, exist_ok=True)
    link_or_copy(source, target)
    _flush(target, os.O_RDONLY)
    for directory in dict.fromkeys([*made, *(directory.parent for directory in made[1:])]):
        _flush(directory, os.O_RDONLY | os.O_DIRECTORY)


def _flush(place: Path, flags: int) -> None:
    opened = os.open(place, flags)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


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
    """Copy as much as the file system can itself (a copy within a server, shared blocks). Return the bytes copied."""
    done = 0
    try:
        while done < size and (copied := os.copy_file_range(source, target, size - done, done, done)):
            done += copied
    except (OSError, AttributeError) as error:  # AttributeError: not on this platform
        if isinstance(error, OSError) and error.errno not in _CANNOT_COPY_INSIDE:
            raise
    return done
