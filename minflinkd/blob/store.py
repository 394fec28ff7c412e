"""Blobs on the local disk (B5, B7): `<directory>/<job>/<key>`, each written whole and verified before it is used.

Blocking, so callers are in threads. Used by the server and by every TaskManager's cache.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import structlog

from minflinkd.blob.errors import BlobNotFound
from minflinkd.blob.files import BlobFile, Identity, open_directory, open_regular
from minflinkd.blob.incoming import Incoming
from minflinkd.blob.keys import Blob, BlobKey, BlobKind, owner_name, parse_owner
from minflinkd.runtime.errors import InvalidId
from minflinkd.runtime.ids import JobId
from minflinkd.storage.os_errors import os_errors

log = structlog.get_logger(__name__)

TRIES = 10  # when another thread moves or deletes at the same time
KEPT_ASIDE = 10  # number of corrupt files kept, the newest
_INCOMING = "incoming"
_CORRUPT = "corrupt"  # files moved aside, for a person to look at
TRUSTED = 60.0  # seconds for which a verified, unchanged file is sent without hashing it again
_GRANULARITY_NS = 20_000_000  # of file times: twice the longest tick of a kernel


class StoredFile(NamedTuple):
    """One file of the store, as a listing found it."""

    blob: Blob
    size: int
    modified_ms: int


class BlobStore:
    """The blobs of one process. Only parsed ids and keys become paths (B41), and no link is followed."""

    def __init__(self, directory: Path, *, durable: bool = True) -> None:
        """`durable`: PERMANENT blobs survive a crash of the machine. TRANSIENT ones are never recovered (B2)."""
        self.directory = directory
        self._durable = durable
        self.moved_aside = 0  # corrupt files
        self._verified: dict[Path, _Verified] = {}  # the identity of each file when its checksum was right
        self._receiving: weakref.WeakSet[Incoming] = weakref.WeakSet()

    def open(self) -> None:
        """Make the directories. Delete what a killed process was receiving. Raises StorageError."""
        with os_errors(self.directory):
            shutil.rmtree(self.directory / _INCOMING, ignore_errors=True)
            (self.directory / _INCOMING).mkdir(parents=True, exist_ok=True)

    def incoming(self, job_id: JobId | None, key: BlobKey, *, max_size: int | None = None) -> Incoming:
        temporary, target = self.directory / _INCOMING / secrets.token_hex(16), self.path(job_id, key)

        def placed(found: os.stat_result) -> None:
            # The rename changed only the file's ctime, so its age counts from its mtime.
            self._remember(target, found, age_ns=time.time_ns() - found.st_mtime_ns)

        incoming = Incoming(
            *(temporary, target, key.sha256),
            max_size=max_size,
            follow_links=False,
            durable=self._durable and key.is_permanent,
            on_placed=placed,
        )
        self._receiving.add(incoming)
        return incoming

    def get(self, job_id: JobId | None, key: BlobKey) -> Path:
        """Return the path of the verified file. Raises what `reader` raises."""
        self.reader(job_id, key).close()
        return self.path(job_id, key)

    def reader(self, job_id: JobId | None, key: BlobKey) -> BlobFile:
        """Return the verified file, open at its beginning. A corrupt file is moved aside and reported.

        A file is hashed on the first request and whenever it has changed. Raises BlobNotFound, StorageError.
        """
        path = self.path(job_id, key)
        with os_errors(path):
            for _ in range(TRIES):
                file = open_regular(path)
                if file is None:
                    raise BlobNotFound(f"there is no blob {key} of job {owner_name(job_id)}")
                good = False
                try:
                    good = self._is_known(file, path) or self._verify(file, job_id, key)
                    # Do this while it is open, so that its inode is not reused for another file.
                    if not good and self.move_aside(job_id, key, os.fstat(file.fileno())):
                        break
                finally:
                    if not good:
                        file.close()
                if good:
                    return file
            raise BlobNotFound(f"blob {key} of job {owner_name(job_id)} was corrupt and was moved aside")

    def verified_reader(self, job_id: JobId | None, key: BlobKey) -> BlobFile | None:
        """Like `reader`, but quick: None if the file would have to be hashed. Raises BlobNotFound, StorageError."""
        path = self.path(job_id, key)
        with os_errors(path):
            file = open_regular(path)
            if file is None:
                raise BlobNotFound(f"there is no blob {key} of job {owner_name(job_id)}")
            if self._is_known(file, path):
                return file
            file.close()
            return None

    def trusted(self, job_id: JobId | None, key: BlobKey, file: BlobFile) -> bool:
        """Whether the file is unchanged and was verified for this reader, or so recently that disk damage is unlikely.

        Not blocking.
        """
        verified = self._verified.get(self.path(job_id, key))
        if not file.hashed and (verified is None or verified.identity != file.found or verified.is_old()):
            return False
        return file.unchanged()

    def confirm(self, job_id: JobId | None, key: BlobKey, file: BlobFile) -> None:
        """The whole of `file` was found correct once more."""
        path, identity = self.path(job_id, key), Identity.of(os.fstat(file.fileno()))
        verified = self._verified.get(path)
        if verified is not None and verified.identity == identity:
            self._verified[path] = _Verified(identity, time.monotonic())

    def find(
        self,
        job_id: JobId | None,
        kind: BlobKind,
        sha256: str,
        accept: Callable[[BlobKey], bool] = lambda _: True,
    ) -> BlobKey | None:
        """Return the key under which this content is stored for this job, with its file verified."""
        for key in self.candidates(job_id, kind, sha256):
            if accept(key):
                with contextlib.suppress(BlobNotFound):
                    self.get(job_id, key)
                    return key
        return None

    def candidates(self, job_id: JobId | None, kind: BlobKind, sha256: str) -> list[BlobKey]:
        """Return the keys under which this content is stored for this job, unless the file is corrupt."""
        return sorted(key for key in self._keys(job_id) if (key.kind, key.sha256) == (kind, sha256))

    def owners(self) -> list[JobId | None]:
        """Return the owners of the blobs."""
        owners: list[JobId | None] = []
        with os_errors(self.directory), contextlib.suppress(FileNotFoundError):
            for name in sorted(os.listdir(self.directory)):
                with contextlib.suppress(InvalidId):
                    owners.append(parse_owner(name))
        return owners

    def keys(self, job_id: JobId | None) -> list[BlobKey]:
        return sorted(self._keys(job_id))

    def _keys(self, job_id: JobId | None) -> Iterator[BlobKey]:
        directory = self.directory / owner_name(job_id)
        with os_errors(directory), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for name in os.listdir(directory):
                with contextlib.suppress(InvalidId):
                    yield BlobKey.parse(name)

    def files(self, job_id: JobId | None) -> list[StoredFile]:
        """Return the stored files of a job, in the order of keys."""
        directory = self.directory / owner_name(job_id)
        files: list[StoredFile] = []
        with os_errors(directory), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for entry in os.scandir(directory):
                with contextlib.suppress(InvalidId, FileNotFoundError):
                    key, found = BlobKey.parse(entry.name), entry.stat(follow_symlinks=False)
                    files.append(StoredFile(Blob(job_id, key), found.st_size, found.st_mtime_ns // 1_000_000))
        return sorted(files, key=lambda file: file.blob.key)

    def delete(self, job_id: JobId | None, key: BlobKey) -> None:
        """Delete a blob. It is no error if it does not exist."""
        path = self.path(job_id, key)
        self._verified.pop(path, None)
        with os_errors(path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            directory = open_directory(path.parent)
            try:
                os.unlink(path.name, dir_fd=directory)
            finally:
                os.close(directory)

    def delete_job(self, job_id: JobId | None) -> None:
        """Delete all blobs of a job."""
        directory = self.directory / owner_name(job_id)
        for path in [path for path in list(self._verified) if path.parent == directory]:
            self._verified.pop(path, None)
        with os_errors(directory), contextlib.suppress(FileNotFoundError):
            if directory.is_symlink():
                directory.unlink()
                return
            for tries_left in reversed(range(TRIES)):
                try:
                    shutil.rmtree(directory)
                except FileNotFoundError:  # the directory, or a file in it that another thread has deleted
                    if not tries_left and directory.exists():
                        raise OSError(errno.EBUSY, "files of it are deleted all the time", str(directory)) from None
                if not directory.exists():
                    return

    def delete_temporaries(self, older_than: float) -> int:
        """Delete abandoned uploads: files of `incoming` that have not changed for `older_than` seconds."""
        live = {incoming.temporary.name for incoming in list(self._receiving)}
        limit, deleted = time.time() - older_than, 0
        with os_errors(self.directory), contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self.directory / _INCOMING):
                with contextlib.suppress(FileNotFoundError):
                    if entry.name not in live and entry.stat(follow_symlinks=False).st_mtime < limit:
                        os.unlink(entry.path)
                        deleted += 1
        return deleted

    def delete_empty(self) -> None:
        """Delete the empty directories of jobs."""
        with os_errors(self.directory):
            for job_id in self.owners():
                with contextlib.suppress(OSError):  # not empty
                    os.rmdir(self.directory / owner_name(job_id))

    def doubt(self, job_id: JobId | None, key: BlobKey) -> None:
        """Hash the file again when it is next requested."""
        self._verified.pop(self.path(job_id, key), None)

    def move_aside(self, job_id: JobId | None, key: BlobKey, found: os.stat_result) -> bool:
        """Keep the corrupt file `found` for a person to look at. False if another file has taken its place."""
        path = self.path(job_id, key)
        aside = self.directory / _CORRUPT / f"{path.parent.name}-{path.name}-{secrets.token_hex(4)}"
        with os_errors(path), contextlib.suppress(FileNotFoundError):  # another request was quicker
            if not os.path.samestat(os.lstat(path), found):
                return False
            self._verified.pop(path, None)
            aside.parent.mkdir(exist_ok=True)
            os.rename(path, aside)
            self.moved_aside += 1
            log.error("a corrupt blob was moved aside", blob=path.name, job=path.parent.name, aside=str(aside))
            _keep_newest(aside.parent, KEPT_ASIDE)
        return True

    def path(self, job_id: JobId | None, key: BlobKey) -> Path:
        """Return the path of the blob's file, whether or not it exists; nothing is verified. Raises InvalidId."""
        return self.directory / owner_name(job_id) / str(BlobKey.parse(str(key)))

    def _is_known(self, file: BlobFile, path: Path) -> bool:
        """Whether the file is the same as when its checksum was right."""
        file.found = Identity.of(os.fstat(file.fileno()))
        verified = self._verified.get(path)
        return verified is not None and verified.identity == file.found

    def _verify(self, file: BlobFile, job_id: JobId | None, key: BlobKey) -> bool:
        found = os.fstat(file.fileno())
        age_ns = time.time_ns() - max(found.st_mtime_ns, found.st_ctime_ns)  # before it is read
        if hashlib.file_digest(file, "sha256").hexdigest() != key.sha256:
            return False
        self._remember(self.path(job_id, key), found, age_ns=age_ns)
        file.found, file.hashed = Identity.of(found), True
        file.seek(0)
        return True

    def _remember(self, path: Path, found: os.stat_result, *, age_ns: int) -> None:
        """Remember a verified file, unless it was just written.

        Such a file could be written again without a change in its times, so it is not trusted.
        """
        if age_ns > _GRANULARITY_NS:
            self._verified[path] = _Verified(Identity.of(found), time.monotonic())


class _Verified(NamedTuple):
    identity: Identity
    at: float  # monotonic seconds

    def is_old(self) -> bool:
        return time.monotonic() - self.at > TRUSTED


def _keep_newest(directory: Path, many: int) -> None:
    """Delete all but the newest files, by the time at which they were moved here."""
    came = dict[str, int]()
    for entry in os.scandir(directory):
        with contextlib.suppress(FileNotFoundError):
            came[entry.path] = entry.stat(follow_symlinks=False).st_ctime_ns
    for path in sorted(came, key=came.__getitem__, reverse=True)[many:]:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
