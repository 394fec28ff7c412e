"""What the sinks have published: rows by their numbers. Each row of a task has to appear once, and in its order."""

from __future__ import annotations

from collections.abc import Iterable

from minflinkd.runtime.ids import AttemptId, JobId, TaskId
from minflinkd.storage.publication import SinkTransaction, StagedFile
from tests.sim.protocol.journal import Violation


def unit(attempt_id: AttemptId, first: int, end: int) -> str:
    """Return the name of the file that an attempt stages with the rows from `first` up to `end`."""
    return f"{attempt_id}/{first}-{end}"


def transaction(job_id: JobId, task_id: TaskId, checkpoint_id: int, units: Iterable[str]) -> SinkTransaction:
    files = tuple(StagedFile(staged=name, final=name) for name in units)
    return SinkTransaction(job_id=job_id, sink=task_id, root="memory:///out", checkpoint_id=checkpoint_id, files=files)


class Published:
    def __init__(self) -> None:
        self._files: set[str] = set()
        self._rows: dict[tuple[str, str], int] = {}  # how many, from the first on

    def rows(self, job_id: str, task_id: str) -> int:
        return self._rows.get((job_id, task_id), 0)

    def publish(self, owed: SinkTransaction) -> None:
        """Make the files of a transaction appear, those that have not yet. Raises Violation."""
        for name in [file.staged for file in owed.files if file.staged not in self._files]:
            self._files.add(name)
            first, end = map(int, name.rpartition("/")[2].split("-"))
            key = owed.job_id, owed.sink
            if first < (rows := self._rows.get(key, 0)):
                raise Violation(f"rows of {owed.sink} are PUBLISHED TWICE: {name}, and {rows} are there already")
            if first > rows:
                raise Violation(f"rows of {owed.sink} are LOST: {name} appears, and only {rows} are there")
            self._rows[key] = end
