"""The TaskManager's own copies of snapshots: links made in the sync part, kept for task-local recovery (C14).

    snapshots/<job>/<task>/<checkpoint>/...     the files of Spark's checkpoint directory at the cut
                           <checkpoint>-fetched/...     the same, of a checkpoint that was fetched for a restore

A copy is complete once its snapshot was uploaded, or fetched for a restore. It is deleted when enough later checkpoints
are confirmed, or together with its job. If all copies together exceed their limit, the oldest are deleted first.

A restore takes each file from any of the task's copies, and fetches from the storage what none of them has.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import xxhash

from minflinkd.rpc.snapshot import StateFile, TaskSnapshot
from minflinkd.runtime.ids import JobId, TaskId, parse_job_id, parse_vertex_id
from minflinkd.runtime.system_user import SystemUser, call_as
from minflinkd.taskmanager.placing import link_or_copy

DEFAULT_MAX_SIZE = 10 * 1024**3  # bytes
_CHUNK = 1 << 20

Key = tuple[JobId, TaskId, int]  # the last part is the checkpoint


@dataclass(frozen=True)
class Copy:
    """A copy of one snapshot. `files` maps inodes to bytes, since copies of one task share most of their files."""

    key: Key
    files: Mapping[int, int]
    directory: Path = Path()


def beyond(copies: Sequence[Copy], max_size: int) -> list[Copy]:
    """Return the copies to delete so that the others use at most `max_size` bytes of disk. Pure.

    `copies` are ordered from the oldest to the newest, and the oldest go first. A copy that is too large on its own
    goes, so that it does not displace others.
    """
    gone: list[Copy] = []
    held: dict[int, int] = {}
    size = 0
    full = False
    for copy in reversed(copies):
        more = {inode: length for inode, length in copy.files.items() if inode not in held}
        alone = sum(copy.files.values())
        # The newest copy that no longer fits goes, and so do all older ones.
        full = full or (alone <= max_size < size + sum(more.values()))
        if full or alone > max_size:
            gone.append(copy)
            continue
        held |= more
        size += sum(more.values())
    return gone[::-1]


@dataclass
class LocalSnapshots:
    """Complete copies use at most `max_size` bytes of disk.

    With 0, none are kept and every restore uses the storage.
    """

    root: Path
    max_size: int = DEFAULT_MAX_SIZE
    user: SystemUser | None = (
        None  # of sessions (`taskmanager.run-as`); other methods run in threads that are this user
    )
    _complete: dict[Key, Copy] = field(default_factory=dict, init=False)  # in the order of completion
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)  # calls come from several threads

    def directory(self, job_id: JobId, task_id: TaskId, checkpoint_id: int) -> Path:
        """Return the directory of a snapshot. Parses ids before they become a path. Raises InvalidId."""
        return self.root / parse_job_id(job_id) / parse_vertex_id(task_id) / str(int(checkpoint_id))

    def completed(self, job_id: JobId, task_id: TaskId, checkpoint_id: int) -> None:
        """Note that the files are in the storage as well. Deletes older copies, or this one, if too large. Blocking."""
        self._add((job_id, task_id, checkpoint_id), self.directory(job_id, task_id, checkpoint_id))

    def _add(self, key: Key, directory: Path) -> None:
        copy = Copy(key, _inodes(directory), directory)
        with self._lock:
            before = self._complete.pop(key, copy)
            self._complete[key] = copy
            gone = [copy.key for copy in beyond([*self._complete.values()], self.max_size)]
        if before.directory != directory:
            shutil.rmtree(before.directory, ignore_errors=True)
        for each in gone:
            self.forget(*each)

    def size(self) -> int:
        """Return the bytes of disk that complete copies use. Files that their task still has are counted as well."""
        with self._lock:
            copies = [*self._complete.values()]
        held: dict[int, int] = {}
        for copy in copies:
            held.update(copy.files)
        return sum(held.values())

    def holds(self, job_id: JobId, task_id: TaskId, checkpoint_id: int) -> bool:
        return (job_id, task_id, checkpoint_id) in self._complete

    def lay_out(self, job_id: JobId, snapshot: TaskSnapshot, target: Path) -> frozenset[str]:
        """Link into `target` what copies of the task have of the snapshot. Return these paths. Blocking.

        Each file is checked against the checksum that it was uploaded with. So a file may come from the copy of another
        checkpoint: a standby, or a TaskManager that kept no copy of the last one, fetches only what has changed since.
        """
        sources = self._sources(job_id, snapshot)
        return frozenset(
            file.path
            for file in snapshot.files
            if any(_has(source, file) and _place(source, file, target) for source in sources)
        )

    def _sources(self, job_id: JobId, snapshot: TaskSnapshot) -> list[Path]:
        """Return the directories of the task's copies: first that of the snapshot itself, then from the newest."""
        with self._lock:
            copies = [copy for key, copy in self._complete.items() if key[:2] == (job_id, snapshot.task_id)]
        copies.sort(key=lambda copy: (copy.key[2] == snapshot.checkpoint_id, copy.key[2]), reverse=True)
        return [copy.directory for copy in copies]

    def reuse(self, job_id: JobId, before: TaskSnapshot, snapshot: TaskSnapshot, target: Path) -> frozenset[str]:
        """Link into `target` what the copy of `before` shares with a later snapshot. Return these paths. Blocking."""
        copy = self._complete.get((job_id, before.task_id, before.checkpoint_id))
        if copy is None:
            return frozenset()
        held = {file.path: file.handle.checksum for file in before.files}
        found = set[str]()
        for file in snapshot.files:
            if held.get(file.path) == file.handle.checksum:
                place = target / file.path
                place.parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):
                    link_or_copy(copy.directory / file.path, place)
                    found.add(file.path)
        return frozenset(found)

    def adopt(self, job_id: JobId, snapshot: TaskSnapshot, source: Path) -> None:
        """Keep a copy of what was fetched into `source`, so that another restore need not fetch it again. Blocking.

        The copy has a directory of its own: its number may be that of a checkpoint of another job, which this job
        started from, and clash with the task's own snapshot. If the disk cannot hold the copy, none is kept.
        """
        if self.max_size <= 0:
            return
        key = (job_id, snapshot.task_id, snapshot.checkpoint_id)
        self.forget(*key)
        target = self._fetched(*key)
        try:
            for file in snapshot.files:
                (target / file.path).parent.mkdir(parents=True, exist_ok=True)
                link_or_copy(source / file.path, target / file.path)
            self._add(key, target)
        except OSError:
            self.forget(*key)

    def forget(self, job_id: JobId, task_id: TaskId, checkpoint_id: int) -> None:
        """Delete the copies of a snapshot. Blocking, idempotent."""
        key = (job_id, task_id, checkpoint_id)
        with self._lock:
            self._complete.pop(key, None)
        for directory in (self.directory(*key), self._fetched(*key)):
            shutil.rmtree(directory, ignore_errors=True)

    def _fetched(self, job_id: JobId, task_id: TaskId, checkpoint_id: int) -> Path:
        directory = self.directory(job_id, task_id, checkpoint_id)
        return directory.with_name(f"{directory.name}-fetched")

    def confirmed(self, job_id: JobId, task_id: TaskId, checkpoint_id: int, *, retained: int = 1) -> None:
        """Keep only the `retained` latest copies up to this completed checkpoint. Blocking."""
        with self._lock:
            known = [c for j, t, c in self._complete if (j, t) == (job_id, task_id) and c <= checkpoint_id]
        for older in sorted(known)[:-retained]:
            self.forget(job_id, task_id, older)

    def forget_job(self, job_id: JobId) -> Path:
        """Forget a job at once, and return the directory that the caller must delete. Idempotent.

        A job that comes back starts afresh.
        """
        with self._lock:
            for key in [key for key in self._complete if key[0] == job_id]:
                del self._complete[key]
        gone = self.root / f".{parse_job_id(job_id)}-{uuid4().hex}"
        with suppress(FileNotFoundError):
            call_as(self.user, lambda: (self.root / job_id).rename(gone))
        return gone


def _inodes(directory: Path) -> dict[int, int]:
    return {found.st_ino: found.st_size for found in _files(str(directory))}


def _files(directory: str) -> Iterable[os.stat_result]:
    for path, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                yield os.stat(os.path.join(path, name))


def _has(source: Path, file: StateFile) -> bool:
    """Compare the size, before any file is read."""
    try:
        return (source / file.path).stat().st_size == file.handle.length
    except OSError:  # it cannot be read either; the storage has it
        return False


def _place(source: Path, file: StateFile, target: Path) -> bool:
    """Link the file into `target` if its content is the original one. Return whether it is there.

    A copy that cannot be read is none. A target that cannot be written is reported when the file is fetched instead.
    """
    place = target / file.path
    hasher = xxhash.xxh3_128()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(source / file.path, place)
        with place.open("rb", buffering=0) as opened:
            while piece := opened.read(_CHUNK):
                hasher.update(piece)
    except OSError:
        with suppress(OSError):
            place.unlink()
        return False
    if hasher.hexdigest() == file.handle.checksum:
        return True
    place.unlink()
    return False
