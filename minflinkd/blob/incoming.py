"""A blob that is being received, on the local disk (B5): whole and verified, or not at all."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

from minflinkd.blob.errors import BlobMismatch, BlobTooLarge
from minflinkd.blob.files import make_directory
from minflinkd.storage.os_errors import os_errors

SMALL = 64 * 1024  # bytes that are hashed faster than a thread can be reached
TRIES = 10  # when a cleanup deletes the directory at the same time


class Incoming:
    """A blob that is being received. It gets its name only once its checksum was found correct."""

    def __init__(
        self,
        temporary: Path,
        target: Path,
        sha256: str,
        *,
        max_size: int | None = None,
        follow_links: bool = True,
        durable: bool = True,
        on_placed: Callable[[os.stat_result], None] = lambda _: None,
    ) -> None:
        """`follow_links`: whether the target's directory may be reached through a link.

        `durable`: whether a placed blob also survives a crash of the machine.
        """
        self.size = 0  # bytes so far
        self.temporary = temporary
        self._target = target
        self._sha256 = sha256
        self._max_size = max_size
        self._follow_links = follow_links
        self._durable = durable
        self._on_placed = on_placed
        self._hasher = hashlib.sha256()
        self._lock = threading.Lock()  # a cancelled caller may discard while its last write is still under way
        self._fd: int | None = None
        self._waiting: list[bytes] = []  # hashed, but not written yet
        self._synced = False
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether it was placed or discarded."""
        return self._closed

    def keep(self, data: bytes) -> bool:
        """Keep data small enough to wait for the thread call that follows anyway. False if it is too large.

        Not blocking.
        """
        size = self.size + len(data)
        limit = SMALL if self._max_size is None else min(SMALL, self._max_size)
        if size > limit or self._fd is not None or self._closed:
            return False
        self._waiting.append(data)
        self._hasher.update(data)
        self.size = size
        return True

    def write(self, data: bytes) -> None:
        """Append `data`. Raises BlobTooLarge, StorageError."""
        with self._lock, os_errors(self.temporary):
            fd = self._open()
            if self._max_size is not None and self.size + len(data) > self._max_size:
                raise BlobTooLarge(f"the blob is larger than {self._max_size} bytes", hint="raise blob.max-size")
            self._synced = False
            _write(fd, data, self.size)  # overwrites the rest of a piece that was written only in part
            self._hasher.update(data)
            self.size += len(data)

    def restart(self) -> None:
        """Discard what was received, and begin again."""
        with self._lock, os_errors(self.temporary):
            self._waiting.clear()
            os.ftruncate(self._open(), 0)
            self._hasher = hashlib.sha256()
            self._synced = False
            self.size = 0

    def verify(self) -> None:
        """Check the checksum. Raises BlobMismatch."""
        if (found := self._hasher.hexdigest()) != self._sha256:
            raise BlobMismatch(f"{self.size} bytes with SHA-256 {found} arrived instead of {self._sha256}")

    def sync(self) -> None:
        """Make the written data durable and make the directory, so that `place` is quick. Raises StorageError."""
        with self._lock, os_errors(self.temporary):
            self._sync()
            os.close(self._make_directory())

    def place(self) -> Path:
        """Make the blob durable and visible at its target, in one step. Raises BlobMismatch, StorageError."""
        self.verify()
        with self._lock, os_errors(self._target):
            self._sync()
            for tries_left in reversed(range(TRIES)):
                try:
                    self._rename()
                    break
                except FileNotFoundError:  # a cleanup deleted the empty directory
                    if not tries_left:
                        raise
            self._on_placed(os.fstat(self._open()))
            self._close()
        return self._target

    def _rename(self) -> None:
        directory = self._make_directory()
        try:
            os.rename(self.temporary, self._target.name, dst_dir_fd=directory)
            if self._durable:
                os.fsync(directory)
        finally:
            os.close(directory)

    def _make_directory(self) -> int:
        """Make and open the directory. A cleanup may delete it between the two calls, because it is empty."""
        for _ in range(TRIES - 1):
            with contextlib.suppress(FileNotFoundError):
                return self._try_directory()
        return self._try_directory()

    def _try_directory(self) -> int:
        return make_directory(self._target.parent, follow_links=self._follow_links, durable=self._durable)

    def discard(self) -> None:
        """Delete the temporary file. Idempotent; does nothing after `place`."""
        with self._lock:
            self._close()
            with contextlib.suppress(FileNotFoundError):
                self.temporary.unlink()

    def _open(self) -> int:
        if self._closed:
            raise OSError(errno.EBADF, "the blob is closed")
        if self._fd is None:
            fd = os.open(self.temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            try:
                _write(fd, b"".join(self._waiting), 0)
            except BaseException:
                os.close(fd)
                os.unlink(self.temporary)  # the next try writes everything that waits
                raise
            self._fd = fd
            self._waiting.clear()
        return self._fd

    def _sync(self) -> None:
        if not self._synced:
            fd = self._open()
            if os.fstat(fd).st_size > self.size:  # the rest of a piece that was written only in part
                os.ftruncate(fd, self.size)
            if self._durable:
                os.fsync(fd)
            self._synced = True

    def _close(self) -> None:
        self._closed = True
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _write(fd: int, data: bytes, at: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(fd, rest, at)
        rest, at = rest[written:], at + written
