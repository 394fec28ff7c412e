"""Opens files and directories of blobs without following links (B41), and tells whether a file has changed.

Blocking, so callers are in threads.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from io import FileIO
from pathlib import Path
from typing import NamedTuple


class Identity(NamedTuple):
    """What changes when a file changes."""

    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> Identity:
        return cls(found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class BlobFile(FileIO):
    """An open, verified file of the store."""

    found: Identity  # the file's identity when it was verified
    hashed = False  # whether it was hashed for the reader that opened it

    def unchanged(self) -> bool:
        """Whether the file is unchanged since it was verified. Not blocking."""
        return self.found == Identity.of(os.fstat(self.fileno()))


def open_regular(path: Path) -> BlobFile | None:
    """Open a file. None if there is no file of that name, or it is something else: a link, a pipe, a directory."""
    try:
        directory = open_directory(path.parent)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(path.name, flags, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO):
            return None
        raise
    finally:
        os.close(directory)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    return BlobFile(descriptor, "rb")


def make_directory(path: Path, *, follow_links: bool, durable: bool) -> int:
    """Make the directory and return a descriptor of it. `durable`: its name is durable, too. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path)
        if durable:
            parent = open_directory(path.parent, follow_links=True)
            try:
                os.fsync(parent)
            finally:
                os.close(parent)
    return open_directory(path, follow_links=follow_links)


def open_directory(path: Path, *, follow_links: bool = False) -> int:
    """Raises NotADirectoryError for a link that must not be followed."""
    links = 0 if follow_links else os.O_NOFOLLOW
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | links | os.O_CLOEXEC)
