"""Files of staged rows that have no other place than the attempt's directory, and the snapshots that cover them (C11).

Kafka's records and rows that replace others by key wait here until their checkpoint is complete.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4

from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.attempts.staging import waiting_directory


class StagedRowsGone(MinflinkError):
    """Rows that a checkpoint covers are not published, and their files are gone."""

    code = "sink-rows-gone"
    consequence = Consequence.RETRYABLE


class HeldFiles:
    """Those of one sink. A token has their names. `directory`: of the attempt."""

    def __init__(self, directory: str, sink: VertexId) -> None:
        self.own = Path(waiting_directory(directory, sink))
        self._restored = Path(waiting_directory(f"{directory}/checkpoint", sink))
        self._sink = sink

    def take(self, file: Path) -> str:
        """Keep a file that is on the same disk. Returns its new name, which no other file has."""
        name = f"{uuid4().hex}.parquet"
        file.rename(self.own / name)
        return name

    def path(self, name: str) -> str:
        """Return the path of a file below the attempt's directory, and in a snapshot."""
        return f"{waiting_directory('', self._sink)[1:]}/{name}"

    def find(self, name: str) -> Path:
        """Return where a file is: with those of this attempt, or with those that it was restored with.

        Raises StagedRowsGone.
        """
        for place in (self.own / name, self._restored / name):
            if place.exists():
                return place
        raise StagedRowsGone(
            f"sink {self._sink}: a checkpoint covers the rows in {name}, which are not published, but the file is gone",
            hint="did anybody delete files in the TaskManager's directory? Restart the job: its checkpoint has them",
        )

    def discard(self, names: Iterable[str]) -> None:
        for name in names:
            (self.own / name).unlink(missing_ok=True)

    def discard_restored(self) -> None:
        shutil.rmtree(self._restored, ignore_errors=True)
