"""Keeps the last rows of a stream for inspection. At least once, and only as long as the attempt is known."""

from __future__ import annotations

import threading
from collections import deque

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody names it

from minflinkd.jobgraph.model import OutputMode, Sink
from minflinkd.rpc.messages import Collected, CollectedRow
from minflinkd.taskmanager.session.state.ledger import Ledger

ROWS = 100
_MOST_BYTES = 4 << 20  # of all rows together: they travel as one message


class CollectSink:
    """Keeps the last rows. Thread-safe. In output mode `complete`, each micro-batch replaces the one before."""

    reads_all = False
    ledger: Ledger | None = None

    def __init__(self, sink: Sink, mode: OutputMode) -> None:
        self._most = int(sink.options.get("rows", ROWS))
        self._replaces = mode is OutputMode.COMPLETE
        self._lock = threading.Lock()
        self._rows = deque[CollectedRow]()
        self._bytes = 0
        self._dropped = 0

    def write(self, frame: DataFrame, epoch: int) -> int:
        """Collect the last rows of a micro-batch. Only rows that can be kept come into this process."""
        count = frame.count()
        texts = frame.select(F.to_json(F.struct(*frame.columns)).alias("row")).tail(self._most)
        with self._lock:
            if self._replaces:
                self._rows.clear()
                self._bytes = self._dropped = 0
            self._dropped += count - len(texts)
            for text in texts:
                self._rows.append(CollectedRow(batch_id=epoch, row=text["row"]))
                self._bytes += len(text["row"])
            while len(self._rows) > self._most or self._bytes > _MOST_BYTES:
                self._bytes -= len(self._rows.popleft().row)
                self._dropped += 1
        return count

    def read(self) -> Collected:
        with self._lock:
            return Collected(rows=tuple(self._rows), dropped=self._dropped)
