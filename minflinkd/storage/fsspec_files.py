"""Files of fsspec's file systems: written whole or not at all, created exclusively, renamed, deleted. All calls block.

fsspec itself promises none of this. Its `mv` is a copy and a deletion in many file systems, and its exclusive create
often looks first and writes then. So `WAYS` says for each class of file systems which of its operations are one step on
the server. A class that is not listed there is only read.
"""

from __future__ import annotations

import os
import posixpath
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeVar

from minflinkd.storage.interface import InvalidPath, NotSupported, StorageUnavailable
from minflinkd.storage.temporary import is_temporary, temporary_beside

T = TypeVar("T")

_ABANDONED = 3600.0  # seconds without a write until a temporary file's writer is considered dead
_VANISHED = 100  # how often a directory may be deleted during a write before it gives up
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "created", "modified", "Last-Modified")


class Way(ABC):
    """How the file systems of one class do what takes one step on their server."""

    @abstractmethod
    def inner(self, path: str) -> str:
        """Return the file system's own form of a path. Raises InvalidPath."""

    @abstractmethod
    def unlink(self, system: Any, path: str) -> None:
        """Delete a file, and never a directory."""

    @abstractmethod
    def rename(self, system: Any, source: str, target: str) -> None:
        """Rename a file in one step. Replaces a file of that name."""

    @abstractmethod
    def link(self, system: Any, source: str, target: str) -> None:
        """Give a file a second name in one step. Fails with an OSError if the name is taken."""

    def write(self, file: Any, data: bytes) -> None:
        file.write(data)

    @abstractmethod
    def flush(self, system: Any, file: Any) -> None:
        """Make the content of an open file durable."""

    def close(self, system: Any) -> None:
        """End the connection. A call that still waits for an answer fails."""
        return


class _Local(Way):
    """`local://`: the same directories as `file://`."""

    def inner(self, path: str) -> str:
        if not path.startswith("/"):
            raise InvalidPath(f"local: {path[:200]!r} is not an absolute path")
        return path

    def unlink(self, system: Any, path: str) -> None:
        os.unlink(path)

    def rename(self, system: Any, source: str, target: str) -> None:
        os.rename(source, target)

    def link(self, system: Any, source: str, target: str) -> None:
        os.link(source, target)

    def flush(self, system: Any, file: Any) -> None:
        file.flush()
        os.fsync(file.fileno())


class _Sftp(Way):
    """Uses OpenSSH's extensions, which other servers have, too. The plain rename of SFTP replaces nothing."""

    def inner(self, path: str) -> str:
        return "/" + path.partition("/")[2]

    def unlink(self, system: Any, path: str) -> None:
        system.ftp.remove(path)

    def rename(self, system: Any, source: str, target: str) -> None:
        _extended(system, "posix-rename@openssh.com", source, target)

    def link(self, system: Any, source: str, target: str) -> None:
        _extended(system, "hardlink@openssh.com", source, target)

    def write(self, file: Any, data: bytes) -> None:
        """Send 32 KiB after 32 KiB without waiting for answers, but for all of them before the last byte.

        Answers that paramiko finds while it waits for another one are lost, and with them an error.
        """
        file.set_pipelined(True)
        file.write(data[:-1])
        file.set_pipelined(False)
        file.write(data[-1:])

    def flush(self, system: Any, file: Any) -> None:
        file.flush()
        _extended(system, "fsync@openssh.com", file.handle)

    def close(self, system: Any) -> None:
        system.client.close()


WAYS: Final[Mapping[str, Way]] = {
    "fsspec.implementations.local.LocalFileSystem": _Local(),
    "fsspec.implementations.sftp.SFTPFileSystem": _Sftp(),
}


def way_of(scheme: str) -> Way | None:
    """Return how the file system of a scheme is written. None: it is only read."""
    from fsspec.registry import get_filesystem_class

    kind = get_filesystem_class(scheme)
    return WAYS.get(f"{kind.__module__}.{kind.__qualname__}")


def _extended(system: Any, request: str, *arguments: str | bytes) -> None:
    """Send a request that paramiko has no method for."""
    from paramiko.sftp import CMD_EXTENDED

    try:
        system.ftp._request(CMD_EXTENDED, request, *arguments)
    except OSError as error:
        if error.errno is None and "unsupported" in str(error):
            raise NotSupported(f"the server does not know {request}") from None
        raise


class Draft:
    """A file being written: a hidden one beside its target, until it is published."""

    def __init__(self, way: Way, path: str) -> None:
        self.temporary = temporary_beside(path)
        self._way = way
        self._path = path
        self._file: Any = None
        self._size = 0

    def write(self, system: Any, data: bytes | bytearray | memoryview) -> None:
        if self._file is None:
            self._file = in_directory(system, self._path, lambda: system.open(self.temporary, "wb"))
        self._way.write(self._file, bytes(data))
        self._size += len(data)

    def publish(self, system: Any, *, exclusive: bool = False) -> Mapping[str, Any]:
        """Make the file durable and give it its name. With `exclusive`, raises FileExistsError if the name is taken.

        Returns what fsspec says of it. Its hidden name is left after an exclusive one.
        """
        self.write(system, b"")
        self._way.flush(system, self._file)
        self.close()
        found: Mapping[str, Any] = system.info(self.temporary)
        if found["size"] != self._size:
            raise StorageUnavailable(f"{self._path}: the server has {found['size']} of {self._size} bytes")
        if not exclusive:
            self._way.rename(system, self.temporary, self._path)
            return found
        try:
            self._way.link(system, self.temporary, self._path)
        except OSError as error:  # SFTP does not say why
            if kind(system, self._path) is None:
                raise
            raise FileExistsError(self._path) from error
        return found

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def discard(self, system: Any) -> None:
        with suppress(FileNotFoundError):
            self._way.unlink(system, self.temporary)


def kind(system: Any, path: str) -> str | None:
    """Return `file`, `directory` or another type; None if nothing is there.

    fsspec's own `exists` and `isdir` say no when the connection is lost.
    """
    try:
        return str(system.info(path)["type"])
    except (FileNotFoundError, NotADirectoryError):
        return None


def walk(system: Any, directory: str) -> Iterator[Mapping[str, Any]]:
    """Yield what fsspec says of the files below `directory`.

    fsspec's own `find` leaves out directories that cannot be read. A checkpoint in one of them would be overlooked.
    """
    for info in _list(system, directory):
        if info["type"] == "directory":
            yield from walk(system, str(info["name"]))
        elif not is_temporary(str(info["name"])):
            yield info


def rename(system: Any, way: Way, source: str, target: str) -> None:
    def move() -> None:
        try:
            way.rename(system, source, target)
        except FileNotFoundError as error:
            if kind(system, source) is None:
                raise _SourceMissing from error
            raise

    try:
        in_directory(system, target, move)
    except _SourceMissing:
        raise FileNotFoundError(source) from None


def delete(system: Any, way: Way, path: str, below: str | None) -> None:
    """Delete as `Storage.delete` says. `below` is in the file system's own form, as `path` is."""
    directory = posixpath.dirname(path)
    bound = posixpath.dirname(directory) if below is None else below.rstrip("/")
    try:
        way.unlink(system, path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError:  # it may be a directory
        found = kind(system, path)
        if found == "directory":
            _remove_empty(system, way, path)
        elif found is not None:
            raise
    while directory.startswith(bound + "/"):
        try:
            system.rmdir(directory)
        except FileNotFoundError:
            pass
        except OSError:  # not empty or not ours: it stays, and so do its parents
            return
        directory = posixpath.dirname(directory)


def in_directory(system: Any, path: str, action: Callable[[], T]) -> T:
    """Run an action that needs the directory of `path`. Creates the directory whenever it is missing."""
    for _ in range(_VANISHED):
        try:
            return action()
        except FileNotFoundError:
            _make_directory(system, posixpath.dirname(path))
    return action()


class _SourceMissing(Exception):
    pass


def _make_directory(system: Any, path: str) -> None:
    if kind(system, path) == "directory":
        return
    parent = posixpath.dirname(path)
    if parent != path:
        _make_directory(system, parent)
    try:
        system.mkdir(path, create_parents=False)
    except OSError:
        if kind(system, path) is None and kind(system, parent) is not None:
            raise  # otherwise another process made it, or removed its parent, which the caller tries again


def _remove_empty(system: Any, way: Way, directory: str) -> None:
    """Delete an empty directory tree, and old temporary files of killed writers in it."""
    for info in _list(system, directory):
        name = str(info["name"])
        if info["type"] == "directory":
            _remove_empty(system, way, name)
        elif is_temporary(name) and modified_ms(info) < (time.time() - _ABANDONED) * 1000:
            with suppress(FileNotFoundError):
                way.unlink(system, name)
    with suppress(OSError):  # not empty
        system.rmdir(directory)


def _list(system: Any, directory: str) -> list[Mapping[str, Any]]:
    """Return what is directly in a directory; nothing if it is none."""
    try:
        return [info for info in system.ls(directory, detail=True) if str(info["name"]) != directory]
    except (FileNotFoundError, NotADirectoryError):
        return []


def modified_ms(info: Mapping[str, Any]) -> int:
    """Return the time of the last change, which fsspec's file systems tell in many forms; 0 if it is unknown."""
    moment = next((info[name] for name in _TIMES if info.get(name) is not None), None)
    if isinstance(moment, datetime):
        return int(moment.timestamp() * 1000)
    if isinstance(moment, int | float):
        return int(moment * 1000)
    try:
        return int(parsedate_to_datetime(str(moment)).timestamp() * 1000)
    except ValueError:
        return 0
