"""Blobs on the local disk (B5, B7): `<directory>/<job>/<key>`, each written whole and verified before it is used.

Blocking; callers are in threads. Used by the server and by every TaskManager's cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import threading
from pathlib import Path

import structlog

from minflinkd.blob.errors import BlobMismatch, BlobNotFound, BlobTooLarge
from minflinkd.blob.keys import BlobKey, BlobKind, owner_name
from minflinkd.runtime.errors import InvalidId
from minflinkd.runtime.ids import JobId
from minflinkd.storage.os_errors import os_errors

log = structlog.get_logger(__name__)

CHUNK = 1024 * 1024  # bytes
_INCOMING = "incoming"
_CORRUPT = "corrupt"  # what was moved aside, for a person to look at


class Incoming:
    """A blob that is being received. It gets its name when its checksum was found right, or never."""

    def __init__(self, temporary: Path, target: Path, sha256: str, *, max_size: int | None = None) -> None:
        self.size = 0  # bytes so far
        self._temporary = temporary
        self._target = target
        self._sha256 = sha256
        self._max_size = max_size
        self._hasher = hashlib.sha256()
        self._lock = threading.Lock()  # a cancelled caller discards while its last write may still be under way
        self._fd: int | None = None
        self._closed = False

    def write(self, data: bytes) -> None:
        """Raises BlobTooLarge, StorageError."""
        with self._lock, os_errors(self._temporary):
            fd = self._open()
            if self._max_size is not None and self.size + len(data) > self._max_size:
                raise BlobTooLarge(f"the blob is larger than {self._max_size} bytes", hint="raise blob.max-size")
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
            self._hasher.update(data)
            self.size += len(data)

    def restart(self) -> None:
        """Forget what was received."""
        with self._lock, os_errors(self._temporary):
            os.ftruncate(self._open(), 0)
            os.lseek(self._open(), 0, os.SEEK_SET)
            self._hasher = hashlib.sha256()
            self.size = 0

    def verify(self) -> None:
        """Raises BlobMismatch."""
        if (found := self._hasher.hexdigest()) != self._sha256:
            raise BlobMismatch(f"{self.size} bytes with SHA-256 {found} arrived instead of {self._sha256}")

    def place(self) -> Path:
        """Durable and visible, in one step. Raises BlobMismatch, StorageError."""
        self.verify()
        with self._lock, os_errors(self._target):
            os.fsync(self._open())
            self._target.parent.mkdir(parents=True, exist_ok=True)
            os.rename(self._temporary, self._target)
            self._close()
            _sync_directory(self._target.parent)
        return self._target

    def discard(self) -> None:
        """Idempotent; after `place` it does nothing."""
        with self._lock:
            self._close()
            with contextlib.suppress(FileNotFoundError):
                self._temporary.unlink()

    def _open(self) -> int:
        if self._closed:
            raise OSError("the blob is closed")
        if self._fd is None:
            self._fd = os.open(self._temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        return self._fd

    def _close(self) -> None:
        self._closed = True
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class BlobStore:
    """The blobs of one process. Nothing but parsed ids and keys becomes a path (B41)."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._verified: dict[Path, tuple[int, int, int]] = {}  # what the file was when its checksum was right

    def open(self) -> None:
        """Make the directories; what a killed process was receiving goes. Raises StorageError."""
        with os_errors(self.directory):
            shutil.rmtree(self.directory / _INCOMING, ignore_errors=True)
            (self.directory / _INCOMING).mkdir(parents=True, exist_ok=True)

    def incoming(self, job_id: JobId | None, key: BlobKey, *, max_size: int | None = None) -> Incoming:
        temporary = self.directory / _INCOMING / secrets.token_hex(16)
        return Incoming(temporary, self._path(job_id, key), key.sha256, max_size=max_size)

    def get(self, job_id: JobId | None, key: BlobKey) -> Path:
        """The verified file. A corrupt one is moved aside and reported. Raises BlobNotFound, StorageError.

        A file is hashed when it is first asked for and whenever it has changed since.
        """
        path = self._path(job_id, key)
        with os_errors(path):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except OSError as error:
                if isinstance(error, FileNotFoundError) or path.is_symlink():
                    raise BlobNotFound(f"there is no blob {key} of job {owner_name(job_id)}") from None
                raise
            with os.fdopen(descriptor, "rb") as file:
                found = os.fstat(file.fileno())
                identity = (found.st_ino, found.st_size, found.st_mtime_ns)
                if self._verified.get(path) == identity:
                    return path
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != key.sha256:
                self._move_aside(path)
                raise BlobNotFound(f"blob {key} of job {owner_name(job_id)} was corrupt and was moved aside")
            self._verified[path] = identity
            return path

    def find(self, job_id: JobId | None, kind: BlobKind, sha256: str) -> BlobKey | None:
        """The key under which this content is stored for this job already, with its file verified."""
        for key in self.keys(job_id):
            if (key.kind, key.sha256) == (kind, sha256):
                with contextlib.suppress(BlobNotFound):
                    self.get(job_id, key)
                    return key
        return None

    def keys(self, job_id: JobId | None) -> list[BlobKey]:
        directory = self.directory / owner_name(job_id)
        keys: list[BlobKey] = []
        with os_errors(directory), contextlib.suppress(FileNotFoundError):
            for name in sorted(os.listdir(directory)):
                with contextlib.suppress(InvalidId):
                    keys.append(BlobKey.parse(name))
        return keys

    def delete(self, job_id: JobId | None, key: BlobKey) -> None:
        """One that does not exist is no error."""
        path = self._path(job_id, key)
        self._verified.pop(path, None)
        with os_errors(path):
            path.unlink(missing_ok=True)

    def delete_job(self, job_id: JobId | None) -> None:
        """All blobs of a job."""
        directory = self.directory / owner_name(job_id)
        for path in [path for path in self._verified if path.parent == directory]:
            self._verified.pop(path, None)
        with os_errors(directory), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(directory)

    def _path(self, job_id: JobId | None, key: BlobKey) -> Path:
        return self.directory / owner_name(job_id) / str(BlobKey.parse(str(key)))

    def _move_aside(self, path: Path) -> None:
        aside = self.directory / _CORRUPT / f"{path.parent.name}-{path.name}-{secrets.token_hex(4)}"
        aside.parent.mkdir(exist_ok=True)
        os.rename(path, aside)
        log.error("a corrupt blob was moved aside", blob=path.name, job=path.parent.name, aside=str(aside))


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
