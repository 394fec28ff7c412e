"""How many rows an attempt had read and written when each of its last micro-batches was over.

A checkpoint is cut between two micro-batches, and its counts must be those of the cut: what a restored attempt
processes again is then counted once. Rows written are known when a micro-batch is over, rows read a moment later, from
Spark.
"""

from __future__ import annotations

from collections.abc import Mapping

from minflinkd.rpc.snapshot import NO_ROWS, RowCounts

KEPT = 256  # micro-batches; a cut is never so far before the last one


class AttemptRows:
    """Not thread-safe. Micro-batches are told in their order, by the numbers that Spark gives them."""

    def __init__(self) -> None:
        self._read: dict[int, RowCounts] = {}  # up to and with this micro-batch
        self._written: dict[int, RowCounts] = {}

    @property
    def latest(self) -> RowCounts:
        return _up_to(self._read, None) + _up_to(self._written, None)

    def wrote(self, epoch: int, rows: Mapping[str, int]) -> None:
        _put(self._written, epoch, RowCounts(written=dict(rows)))

    def has_read(self, epoch: int, rows: Mapping[str, int]) -> None:
        """A micro-batch that is known already changes nothing."""
        _put(self._read, epoch, RowCounts(read=dict(rows)))

    def at(self, epoch: int) -> RowCounts:
        return _up_to(self._read, epoch) + _up_to(self._written, epoch)

    def is_awaited(self, epoch: int) -> bool:
        """This attempt has processed the micro-batch, and what was read for it is not known yet."""
        return epoch in self._written and max(self._read, default=-1) < epoch


def _put(counts: dict[int, RowCounts], epoch: int, rows: RowCounts) -> None:
    if epoch <= max(counts, default=-1):
        return
    counts[epoch] = _up_to(counts, None) + rows
    if len(counts) > KEPT:
        del counts[min(counts)]


def _up_to(counts: dict[int, RowCounts], epoch: int | None) -> RowCounts:
    known = [number for number in counts if epoch is None or number <= epoch]
    return counts[max(known)] if known else NO_ROWS
