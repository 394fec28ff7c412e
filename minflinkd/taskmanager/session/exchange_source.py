"""The reading end of an exchange: a streaming source whose offset is the sequence number of the next entry (J8).

It holds at every barrier by itself, until the file that releases it is there (C2), and moves only for entries that say
something: a barrier that was passed costs no micro-batch.

Spark asks it on a process of its own, and reads on its workers, which may not have minflinkd: everything here is sent
by value, and imports what it needs where it needs it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow

FORMAT = "minflinkd_exchange"
NOTHING = {"directory": "", "control": "", "first": "0", "position": "0", "hold": "true", "partitions": "1"}
"""Options with which a plan is analysed, and nothing is read."""


class DataFiles(InputPartition):
    """Arrow files that one Spark task reads."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths


class ExchangeReader(DataSourceStreamReader):
    """Options: `directory` of the log; `control`, the attempt's own for it; `first`, the log's first entry; `position`

    of a query without offsets; `hold` at barriers; `partitions` to read with.
    """

    def __init__(self, options: dict[str, str]) -> None:
        self._directory = options["directory"]
        self._restored = f"{options['control']}/restored"
        self._released = f"{options['control']}/released"
        self._first = int(options["first"])
        self._position = int(options["position"])
        self._hold = options["hold"] == "true"
        self._partitions = int(options["partitions"])

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's interface
        return {"position": self._position}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802
        position = end = int(start["position"])
        while (entry := self._entry(position)) is not None:
            if entry["kind"] == "barrier":
                left_over = position < self._first  # of an earlier attempt: nobody releases it any more
                if self._hold and not left_over and not self._is_released(entry["checkpoint_id"]):
                    break
                position += 1
            else:
                position += 1
                end = position
        # Up to a barrier that holds the position is exactly its own; what lies between is barriers that were passed.
        return {"position": end}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[DataFiles]:
        files = []
        for position in range(int(start["position"]), int(end["position"])):
            entry = self._entry(position)
            if entry is None:
                raise RuntimeError(f"entry {position} of an exchange is gone: {self._directory}")
            files += [
                (int(file["size"]), f"{self._place(position)}/data/{file['name']}") for file in entry.get("files", ())
            ]
        if not files:
            return [DataFiles([])]
        shares: list[tuple[int, list[str]]] = [(0, []) for _ in range(min(self._partitions, len(files)))]
        for size, path in sorted(files, reverse=True):  # the largest first, to the one that has least
            least = min(range(len(shares)), key=lambda i: shares[i][0])
            shares[least] = (shares[least][0] + size, [*shares[least][1], path])
        return [DataFiles(paths) for _, paths in shares]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow

        paths: list[str] = vars(partition)["paths"]  # its class came by value, and is another one than here
        for path in paths:
            with pyarrow.memory_map(path) as source:
                reader = pyarrow.ipc.open_file(source)
                for index in range(reader.num_record_batches):
                    yield reader.get_batch(index)

    def _place(self, position: int) -> str:
        return self._restored if position < self._first else self._directory

    def _entry(self, position: int) -> dict[str, Any] | None:
        import json

        try:
            with open(f"{self._place(position)}/entries/{position:012d}", "rb") as file:
                entry: dict[str, Any] = json.load(file)
                return entry
        except FileNotFoundError:
            return None

    def _is_released(self, checkpoint_id: int) -> bool:
        import os

        return os.path.exists(f"{self._released}/{checkpoint_id}")


class ExchangeSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        raise NotImplementedError("the schema is the upstream task's")

    def streamReader(self, schema: StructType) -> ExchangeReader:  # noqa: N802
        return ExchangeReader({name: value for name, value in self.options.items()})  # noqa: C416 - no dict of ours


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
