"""Checkpoints of a job in a directory on a local disk, made without a coordinator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from minflinkd.checkpoint import layout
from minflinkd.checkpoint.metadata import CompletedCheckpoint, encode
from minflinkd.filemerging.segments import checksum
from minflinkd.runtime.ids import JobId
from tests.files import files_below
from tests.unit.checkpoint.builders import A1, JOB, A, completed, name, snapshot


@dataclass(frozen=True)
class StoredCheckpoints:
    """The directory of one job's checkpoints."""

    directory: Path
    job_id: JobId = JOB

    def put(self, file: str, data: bytes = b"x") -> str:
        path = self.directory / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return file

    def checkpoint(self, number: int, *, reuses: Sequence[str] = ()) -> CompletedCheckpoint:
        """Write a checkpoint with one physical file of its own, which also refers to the files in `reuses`."""
        taken = snapshot(number, A, A1, reuses=tuple(reuses), digest=checksum(b"x"))
        made = replace(completed(number, taken), job_id=self.job_id)
        self.put(name(number, A1))
        self.put(layout.metadata_file(number), encode(made))
        return made

    def files(self) -> set[str]:
        return {str(path.relative_to(self.directory)) for path in files_below(self.directory)}
