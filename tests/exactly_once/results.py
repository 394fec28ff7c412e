"""What any reader of a sink's directory sees, compared row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.dataset

from minflinkd.jobgraph.model import Sink
from tests.lakes import Delta, read_iceberg

Row = tuple[tuple[str, Any], ...]


def read_sink(sink: Sink, directory: Path, columns: Sequence[str] | None = None) -> Counter[Row]:
    """Return the rows, each as often as it occurs. `columns`: of files, which of them; None: all."""
    if sink.format == "delta":
        return _counted(Delta(directory.parent).rows(directory.name))
    if sink.format == "iceberg":
        return _counted(read_iceberg(sink))
    partitioning = "hive" if sink.partition_by else None
    found = pyarrow.dataset.dataset(directory, format=sink.format, partitioning=partitioning)
    return _counted(found.to_table(columns=columns and list(columns)).to_pylist())


def _counted(rows: Iterable[Mapping[str, Any]]) -> Counter[Row]:
    return Counter(tuple(sorted((name, _in_utc(value)) for name, value in row.items())) for row in rows)


def _in_utc(value: Any) -> Any:
    """Return a time as the same one without a zone: tables have a zone where plain files have none."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    return value


def differences(found: Counter[Row], wanted: Counter[Row]) -> str:
    """Return "" if the two are equal, or how many rows are missing or surplus, with some of them."""
    told = []
    for what, rows in (("missing", wanted - found), ("surplus", found - wanted)):
        if rows:
            some = "; ".join(f"{count} x {dict(row)}" for row, count in list(rows.items())[:3])
            told.append(f"{rows.total()} of {wanted.total()} rows {what}, such as {some}")
    return "\n".join(told)
