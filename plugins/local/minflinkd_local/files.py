"""Files on a POSIX file system, with blocking calls: written whole or not at all, read in pieces, listed in order.

Everything here runs in threads. An open file has a lock, because a cancelled caller closes it while its last call may
still be running.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from minflinkd.storage.interface import Entry
from minflinkd.storage.temporary import is_temporary, temporary_beside

T = TypeVar("T")

CHUNK = 1024 * 1024  # bytes
_ABANDONED = 3600.0  # seconds without a write until a temporary file's writer is considered dead
_NO_UNNAMED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.EPERM)  # EPERM: ext4, in a directory being deleted
_VANISHED = 100  # how often a directory may be deleted during a write before it gives up


class Draft:
    """A file being written. It has no name until it is published, so a killed process leaves nothing behind.

    If the file system has no unnamed files, it is a hidden one next to the target, and so it is briefly when it
    replaces another file. Hidden files that a killed process leaves are deleted with their directory, once they are
    old.
    """

    def __init__(self, path: str, *, unnamed: bool = True) -> None:
        self._path = path
        self._unnamed = unnamed
        self._lock = threading.Lock()
        self._temporary: str | None = None
        self._fd: int | None = None
        self._closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        with self._lock:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._descriptor(), rest) :]

    def publish(self, *, exclusive: bool = False) -> Entry:
        """Make the file durable and give it its name. With `exclusive`, raises FileExistsError if the name is taken."""
        with self._lock:
            fd = self._descriptor()
            os.fsync(fd)
            found = os.fstat(fd)
            in_directory(self._path, lambda: self._give_name(fd, exclusive))
            self._close()
            return _entry(self._path, found)

    def discard(self) -> None:
        """Discard the file. Idempotent; does nothing after `publish`."""
        with self._lock:
            self._close()

    def _give_name(self, fd: int, exclusive: bool) -> None:
        if self._temporary is None:
            try:
                _link_unnamed(fd, self._path)
                return
            except FileExistsError:
                if exclusive:
                    raise
            temporary = temporary_beside(self._path)
            _link_unnamed(fd, temporary)
            self._temporary = temporary
        if exclusive:
            try:
                os.link(self._temporary, self._path)
            except FileExistsError:
                if os.fstat(fd).st_nlink != 2:  # otherwise this link made it: NFS sent the request twice
                    raise
            return  # _close removes the temporary name
        os.rename(self._temporary, self._path)
        self._temporary = None

    def _open(self) -> int:
        if self._unnamed and hasattr(os, "O_TMPFILE") and os.path.isdir("/proc/self/fd"):
            directory = os.path.dirname(self._path)
            try:
                flags = os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC
                return in_directory(self._path, lambda: os.open(directory, flags, 0o666), sync=False)
            except OSError as error:
                if error.errno not in _NO_UNNAMED:
                    raise
        self._temporary = temporary = temporary_beside(self._path)
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
        return in_directory(self._path, lambda: os.open(temporary, flags, 0o666), sync=False)

    def _descriptor(self) -> int:
        if self._closed:
            raise OSError(errno.EBADF, "the writer is closed")
        if self._fd is None:
            self._fd = self._open()
        return self._fd

    def _close(self) -> None:
        self._closed = True
        if self._temporary is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._temporary)
            self._temporary = None
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class Reading:
    """Reads a range of a file piece by piece."""

    def __init__(self, path: str, offset: int, length: int | None) -> None:
        self._path = path
        self._offset = offset
        self._left = length
        self._lock = threading.Lock()
        self._fd: int | None = None
        self._closed = False

    def next(self) -> bytes:
        """Return the next piece; empty at the end of the range or the file. The first call opens the file."""
        data = self._read()
        if self._closed:
            self.close()
        return data

    def close(self) -> None:
        """Close the file. Does not wait for a call of `next` that hangs; that call closes the file when it returns."""
        self._closed = True
        if self._lock.acquire(blocking=False):
            try:
                if self._fd is not None:
                    os.close(self._fd)
                    self._fd = None
            finally:
                self._lock.release()

    def _read(self) -> bytes:
        with self._lock:
            if self._closed:
                return b""
            if self._fd is None:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
                if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                    raise IsADirectoryError(errno.EISDIR, "not a file")
            data = os.pread(self._fd, CHUNK if self._left is None else min(CHUNK, self._left), self._offset)
            self._offset += len(data)
            if self._left is not None:
                self._left -= len(data)
            return data


def entry(path: str) -> Entry:
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "not a file")
    return _entry(path, found)


def _entry(path: str, found: os.stat_result) -> Entry:
    return Entry(path, found.st_size, found.st_mtime_ns // 1_000_000, f"{found.st_ino}-{found.st_mtime_ns}")


def walk(directory: str) -> Iterator[Entry]:
    """Yield the files below `directory`, in the order of their paths.

    Files that vanish meanwhile are left out. Links to directories are not followed.
    """
    try:
        with os.scandir(directory) as found:
            below = [(item.name + "/" if item.is_dir(follow_symlinks=False) else item.name) for item in found]
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in sorted(below):  # with its slash a directory sorts where its files' paths do
        path = os.path.join(directory, name)
        if name.endswith("/"):
            yield from walk(path[:-1])
        elif not is_temporary(name):
            try:
                yield entry(path)
            except (FileNotFoundError, IsADirectoryError):
                continue


def rename(source: str, target: str) -> None:
    def move() -> None:
        try:
            os.rename(source, target)
        except FileNotFoundError as error:
            if not os.path.lexists(source):
                raise _SourceMissing from error
            raise

    try:
        in_directory(target, move)
    except _SourceMissing:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source) from None


def delete(path: str, below: str | None) -> None:
    directory = os.path.dirname(path)
    bound = os.path.dirname(directory) if below is None else below.rstrip("/")
    try:
        os.unlink(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (IsADirectoryError, PermissionError):  # POSIX allows either for a directory
        if os.path.isdir(path):
            _remove_empty(path)
        elif os.path.lexists(path):  # otherwise another process removed the directory between the two calls
            raise
    while directory.startswith(bound + "/"):
        try:
            os.rmdir(directory)
        except FileNotFoundError:
            pass
        except OSError:  # not empty or not ours: it stays, and so do its parents
            return
        directory = os.path.dirname(directory)


def sync(path: str) -> None:
    """Make the file and its name durable."""
    _fsync(path)
    _fsync(os.path.dirname(path))


class _SourceMissing(Exception):
    pass


def in_directory(path: str, action: Callable[[], T], *, sync: bool = True) -> T:
    """Run an action that needs the directory of `path`. Creates the directory whenever it is missing."""
    directory = os.path.dirname(path)
    for _ in range(_VANISHED):
        try:
            answer = action()
            break
        except FileNotFoundError:
            _make_directory(directory)
    else:
        answer = action()
    if sync:
        with contextlib.suppress(FileNotFoundError):  # the directory is already deleted, with the file
            _fsync(directory)
    return answer


def _make_directory(path: str) -> None:
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    _make_directory(parent)
    try:
        os.mkdir(path)
        _fsync(parent)
    except FileExistsError:
        with contextlib.suppress(FileNotFoundError):  # created by another process, and deleted again
            if not stat.S_ISDIR(os.stat(path).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, f"{path} is not a directory") from None
    except FileNotFoundError:
        pass  # the parent vanished; the caller tries again


def _remove_empty(directory: str) -> None:
    """Delete an empty directory tree, and old temporary files of killed writers in it."""
    for path, _, names in os.walk(directory, topdown=False):
        try:
            for name in names:
                if is_temporary(name):
                    _remove_old(os.path.join(path, name))
            os.rmdir(path)
        except OSError:
            continue  # not empty


def _remove_old(temporary: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        if os.stat(temporary).st_mtime < time.time() - _ABANDONED:
            os.unlink(temporary)


def _fsync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _link_unnamed(fd: int, path: str) -> None:
    directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:  # without dst_dir_fd Python calls link(2), which does not follow the link in /proc
        os.link(f"/proc/self/fd/{fd}", os.path.basename(path), dst_dir_fd=directory, follow_symlinks=True)
    finally:
        os.close(directory)
