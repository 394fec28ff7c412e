"""The TaskManager's own copies of snapshots: hard links made in the sync part, kept for task-local recovery (C14).

    snapshots/<job>/<task>/<checkpoint>/...     the files of Spark's checkpoint directory at the cut

A copy is complete once its checkpoint was acknowledged; it goes when a later one is confirmed, or with its job.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from minflinkd.rpc.snapshot import TaskSnapshot
from minflinkd.runtime.ids import JobId, TaskId, parse_job_id, parse_vertex_id


@dataclass
class LocalSnapshots:
    root: Path

    def __post_init__(self) -> None:
        self._complete: set[tuple[JobId, TaskId, int]] = set()

    def directory(self, job_id: JobId, task_id: TaskId, checkpoint_id: int) -> Path:
        """Ids are parsed before they become a path. Raises InvalidId."""
        return self.root / parse_job_id(job_id) / parse_vertex_id(task_id) / str(int(checkpoint_id))

    def completed(self, job_id: JobId, task_id: TaskId, checkpoint_id: int) -> None:
        self._complete.add((job_id, task_id, checkpoint_id))

    def lay_out(self, job_id: JobId, snapshot: TaskSnapshot, target: Path) -> bool:
        """Link an own, whole copy of the snapshot into `target`; False where there is none. Blocking.

        The files are immutable and were verified when they were linked, so that only presence and size are looked at.
        """
        if (job_id, snapshot.task_id, snapshot.checkpoint_id) not in self._complete:
            return False
        source = self.directory(job_id, snapshot.task_id, snapshot.checkpoint_id)
        whole = all(_link(source / file.path, target / file.path, file.handle.length) for file in snapshot.files)
        if not whole:
            shutil.rmtree(target, ignore_errors=True)
        return whole

    def forget(self, job_id: JobId, task_id: TaskId, checkpoint_id: int) -> None:
        """Blocking, idempotent."""
        self._complete.discard((job_id, task_id, checkpoint_id))
        shutil.rmtree(self.directory(job_id, task_id, checkpoint_id), ignore_errors=True)

    def forget_before(self, job_id: JobId, task_id: TaskId, checkpoint_id: int) -> None:
        """A later checkpoint is confirmed: the older copies go. Blocking."""
        known = self._complete.copy()  # in one step: other threads add and take away
        for older in [c for j, t, c in known if (j, t) == (job_id, task_id) and c < checkpoint_id]:
            self.forget(job_id, task_id, older)

    def forget_job(self, job_id: JobId) -> Path:
        """At once, and idempotent. What is returned is to be deleted; a job that comes back begins anew."""
        self._complete -= {key for key in self._complete.copy() if key[0] == job_id}
        gone = self.root / f".{parse_job_id(job_id)}-{uuid4().hex}"
        with suppress(FileNotFoundError):
            (self.root / job_id).rename(gone)
        return gone


def _link(source: Path, target: Path, size: int) -> bool:
    """Whether the file was there, and of this size."""
    try:
        if source.stat().st_size != size:
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(source, target)
    except FileNotFoundError:
        return False
    return True
