"""The sink of every job under test: it keeps the rows of each micro-batch in a file.

It runs in the session child. Which of the files count is decided by the test's process, from the checkpoints: a row
is committed if a complete checkpoint covers the micro-batch that wrote it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa

from minflinkd.jobgraph.api import SinkContext

DIRECTORY = "spark.minflinkd.testing.rows"  # the Spark setting that names the directory


def file_name(job_id: str, sink: str, attempt: str, epoch: int) -> str:
    """Return where the rows of a micro-batch are, relative to the directory."""
    return f"{job_id}/{sink}/{attempt}/{epoch:09d}.arrow"


class KeptRows:
    """`batch` is a DataFrame of Spark; only `taskmanager` imports pyspark."""

    def __init__(self, context: SinkContext) -> None:
        self._context = context

    def stage(self, batch: Any, epoch: int) -> str:
        directory = str(batch.sparkSession.conf.get(DIRECTORY))
        name = file_name(self._context.job_id, self._context.sink, self._context.attempt_id, epoch)
        target = Path(directory) / name
        target.parent.mkdir(parents=True, exist_ok=True)
        rows = batch.toArrow()
        written = target.with_suffix(".new")
        with pa.OSFile(str(written), "wb") as out, pa.ipc.new_file(out, rows.schema) as writer:
            writer.write_table(rows)
        os.replace(written, target)
        return name

    def commit(self, checkpoint_id: int, tokens: list[Any]) -> None: ...

    def abort(self, tokens: list[Any] | None) -> None: ...


def read(file: Path) -> Any:
    """Return the rows of a micro-batch as an Arrow table."""
    with pa.OSFile(str(file), "rb") as stored:
        return pa.ipc.open_file(stored).read_all()
