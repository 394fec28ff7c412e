"""What any reader of a sink's directory sees, compared row by row."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset

from minflinkd.jobgraph.model import Sink

Row = tuple[tuple[str, Any], ...]


def read_sink(sink: Sink, directory: Path) -> Counter[Row]:
    """Return the rows, each as often as it occurs."""
    partitioning = "hive" if sink.partition_by else None
    found = pyarrow.dataset.dataset(directory, format=sink.format, partitioning=partitioning)
    return Counter(tuple(sorted(row.items())) for row in found.to_table().to_pylist())


def differences(found: Counter[Row], wanted: Counter[Row]) -> str:
    """Return "" if the two are equal, or how many rows are missing or surplus, with some of them."""
    told = []
    for what, rows in (("missing", wanted - found), ("surplus", found - wanted)):
        if rows:
            some = "; ".join(f"{count} x {dict(row)}" for row, count in list(rows.items())[:3])
            told.append(f"{rows.total()} of {wanted.total()} rows {what}, such as {some}")
    return "\n".join(told)
