"""Sinks that write each micro-batch at once, without a commit: at least once.

They are Spark's own batch writers (kafka, jdbc without a key), the console, and functions of users. A python sink that
stages and commits is a `CommittingSink`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame

from minflinkd.jobgraph.model import Sink
from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.session.sinks.databases.connections import writer_options
from minflinkd.taskmanager.session.state.ledger import Ledger


class WriterSink:
    ledger: Ledger | None = None
    reads_all = False  # kafka's writer reads the frame twice

    def __init__(self, sink: Sink, encode: Callable[[DataFrame], DataFrame]) -> None:
        """`encode`: makes what is written from the rows."""
        self._sink = sink
        self._encode = encode

    def write(self, frame: DataFrame, epoch: int) -> None:
        options = writer_options(self._sink.options) if self._sink.format == "jdbc" else self._sink.options
        self._encode(frame).write.format(self._sink.format).options(**options).mode("append").save()


class ConsoleSink:
    """Prints into the session's log, which `minflinkd logs` shows."""

    ledger: Ledger | None = None
    reads_all = False

    def __init__(self, vertex_id: VertexId, sink: Sink) -> None:
        self._vertex_id = vertex_id
        self._rows = int(sink.options.get("numRows", "20"))
        self._width = 0 if sink.options.get("truncate", "true").lower() == "false" else 20  # 0: whole values

    def write(self, frame: DataFrame, epoch: int) -> None:
        text = frame._jdf.showString(self._rows, self._width, False)
        print(f"sink {self._vertex_id}, micro-batch {epoch}:\n{text}", flush=True, file=sys.stdout)  # noqa: T201


class PythonSink:
    """Calls a user's function(batch, epoch). A restore may repeat a micro-batch, with other rows."""

    ledger: Ledger | None = None
    reads_all = False

    def __init__(self, function: Callable[[DataFrame, int], Any]) -> None:
        self._function = function

    def write(self, frame: DataFrame, epoch: int) -> None:
        self._function(frame, epoch)
