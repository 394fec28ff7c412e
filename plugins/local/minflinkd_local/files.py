"""Files on a POSIX file system, in plain blocking calls: written whole or not at all, read in pieces, listed in order.

Everything here runs in threads; an open file has a lock, since a cancelled caller closes it while its last call may
still be under way.
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
_ABANDONED = 3600.0  # seconds without a write, after which a temporary file's writer is taken for dead
_NO_UNNAMED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.EPERM)  # the last: ext4, as a directory is deleted
_VANISHED = 100  # times that a directory may be deleted under a writer before it gives up


class Draft:
    """A file being written that has no name until it is published, so that a killed process leaves nothing.

    Where the file system has no unnamed files, it is a hidden one beside the target; so it is for a moment when it
    replaces another. What a killed process leaves of these goes with the directory, once it is old.
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
        """Durable, whole, under its name. Raises FileExistsError where `exclusive` lost."""
        with self._lock:
            fd = self._descriptor()
            os.fsync(fd)
            found = os.fstat(fd)
            in_directory(self._path, lambda: self._give_name(fd, exclusive))
            self._close()
            return _entry(self._path, found)

    def discard(self) -> None:
        """Idempotent; after `publish` it does nothing."""
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
                if os.fstat(fd).st_nlink != 2:  # else it is there by this very link: NFS asked twice
                    raise
            return  # the temporary name goes with _close
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
    """A range of a file, read piece by piece."""

    def __init__(self, path: str, offset: int, length: int | None) -> None:
        self._path = path
        self._offset = offset
        self._left = length
        self._lock = threading.Lock()
        self._fd: int | None = None
        self._closed = False

    def next(self) -> bytes:
        """The next piece; empty at the end of the range or of the file. Opens the file when first called."""
        data = self._read()
        if self._closed:
            self.close()
        return data

    def close(self) -> None:
        """Does not wait for a call of `next` that hangs: the file is closed when that comes back."""
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
    """Files below `directory` in the order of their paths. What vanishes meanwhile is left out; no links to
    directories are followed."""
    try:
        with os.scandir(directory) as found:
            below = [(item.name + "/" if item.is_dir(follow_symlinks=False) else item.name) for item in found]
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in sorted(below):  # with its slash a directory stands where its files' paths do
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
        elif os.path.lexists(path):  # else another process removed the directory between the two calls
            raise
    while directory.startswith(bound + "/"):
        try:
            os.rmdir(directory)
        except FileNotFoundError:
            pass
        except OSError:  # not empty, or not ours: it stays, and so do those above
            return
        directory = os.path.dirname(directory)


def sync(path: str) -> None:
    """The file and its name."""
    _fsync(path)
    _fsync(os.path.dirname(path))


class _SourceMissing(Exception):
    pass


def in_directory(path: str, action: Callable[[], T], *, sync: bool = True) -> T:
    """Do what needs the directory of `path`, which is made when it is missing, however often it vanishes."""
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
        with contextlib.suppress(FileNotFoundError):  # deleted already, file and all
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
        with contextlib.suppress(FileNotFoundError):  # made by another, and vanished again
            if not stat.S_ISDIR(os.stat(path).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, f"{path} is not a directory") from None
    except FileNotFoundError:
        pass  # the one above it vanished; either way the caller tries again


def _remove_empty(directory: str) -> None:
    """With what killed writers have left in it."""
    for path, _, names in os.walk(directory, topdown=False):
        try:
            for name in names:
                if is_temporary(name):
                    _remove_old(os.path.join(path, name))
            os.rmdir(path)
        except OSError:
            continue  # holds something


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
    try:  # without a directory's descriptor Python calls link(2), which does not follow /proc's link
        os.link(f"/proc/self/fd/{fd}", os.path.basename(path), dst_dir_fd=directory, follow_symlinks=True)
    finally:
        os.close(directory)
