"""A sink whose user code gets each micro-batch. A python sink that stages and commits is a `CommittingSink`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame

from minflinkd.taskmanager.session.state.ledger import Ledger


class PythonSink:
    """Calls a user's function(batch, epoch). At least once: a restore may repeat a micro-batch, with other rows."""

    ledger: Ledger | None = None
    reads_all = False

    def __init__(self, function: Callable[[DataFrame, int], Any]) -> None:
        self._function = function

    def write(self, frame: DataFrame, epoch: int) -> None:
        self._function(frame, epoch)
