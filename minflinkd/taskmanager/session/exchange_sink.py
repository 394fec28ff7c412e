"""The writing end of an exchange: a micro-batch as Arrow files, one a partition, before its entry appears (J8)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from minflinkd.taskmanager.exchange.log import DATA, DataFile
from minflinkd.taskmanager.session.ledger import Ledger

if TYPE_CHECKING:
    import pyarrow

WRITTEN = "name string, rows long, size long"


class ExchangeSink:
    """A sink beside those of the task's vertices. What it wrote is put into the log by whoever publishes the batch."""

    ledger: Ledger | None = None
    reads_all = True

    def __init__(self, directory: Path) -> None:
        self._write = arrow_writer(str(directory / DATA))
        self.files: tuple[DataFile, ...] = ()  # of the last micro-batch

    def write(self, frame: DataFrame, epoch: int) -> int:
        written = frame.mapInArrow(self._write, WRITTEN).collect()
        self.files = tuple(DataFile(row["name"], row["rows"], row["size"]) for row in written)
        return 0


def arrow_writer(directory: str) -> Callable[[Iterable[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    """Runs on Spark's workers. A file that no entry names, of a Spark task that was tried again, is nobody's."""

    def write(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import os
        import uuid

        import pyarrow

        name, rows, writer = f"{uuid.uuid4().hex}.arrow", 0, None
        path = f"{directory}/{name}"
        try:
            for batch in batches:
                if batch.num_rows == 0:
                    continue
                if writer is None:
                    writer = pyarrow.ipc.new_file(path, batch.schema)
                writer.write_batch(batch)
                rows += batch.num_rows
        finally:
            if writer is not None:
                writer.close()
        if rows:
            yield pyarrow.RecordBatch.from_pydict(
                {"name": [name], "rows": [rows], "size": [os.path.getsize(path)]},
                schema=pyarrow.schema(
                    [("name", pyarrow.string()), ("rows", pyarrow.int64()), ("size", pyarrow.int64())]
                ),
            )

    return write
