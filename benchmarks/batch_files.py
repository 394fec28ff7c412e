"""A sink that writes the rows of each micro-batch into one Parquet file, named after the query's version.

It consists of `put` and `show`. `BatchFiles` calls them in the two phases of an exactly-once sink; a query that is run
by hand calls one right after the other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet
from pyspark.sql import DataFrame


def put(batch: DataFrame, epoch: int, output: Path, version: str) -> str:
    """Write the rows to a file that is not visible yet, and return its name."""
    output.mkdir(parents=True, exist_ok=True)
    name = f"{version}-{epoch:06}.parquet"
    pyarrow.parquet.write_table(batch.toArrow(), output / f"_{name}")
    return name


def show(output: Path, name: str) -> None:
    staged = output / f"_{name}"
    if staged.exists():  # otherwise it was shown before
        staged.rename(output / name)


class BatchFiles:
    """An exactly-once sink, as described in docs/sinks.md."""

    def __init__(self, context: Any) -> None:
        self._output, self._version = Path(context.params["output"]), str(context.params["version"])

    def stage(self, batch: DataFrame, epoch: int) -> dict[str, str]:
        return {"name": put(batch, epoch, self._output, self._version)}

    def commit(self, checkpoint_id: int, tokens: list[dict[str, str]]) -> None:
        for token in tokens:
            show(self._output, token["name"])

    def abort(self, tokens: list[dict[str, str]] | None) -> None:
        staged = self._output.glob("_*") if tokens is None else [self._output / f"_{t['name']}" for t in tokens]
        for file in staged:
            file.unlink(missing_ok=True)
