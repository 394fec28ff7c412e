"""Counts the rows that an attempt had read and written when each of its last micro-batches ended.

A checkpoint is cut between two micro-batches, and its counts must be those at the cut. Then rows that a restored
attempt processes again are counted only once. Rows written are known when a micro-batch ends; rows read a moment later,
when Spark reports them.
"""

from __future__ import annotations

from collections.abc import Mapping

from minflinkd.rpc.snapshot import NO_ROWS, RowCounts

KEPT = 256  # micro-batches; a cut is never that far before the last one


class AttemptRows:
    """The row counts of one attempt. Not thread-safe. Micro-batches must come in order, with Spark's numbers."""

    def __init__(self) -> None:
        self._read: dict[int, RowCounts] = {}  # micro-batch -> the sum up to and including it
        self._written: dict[int, RowCounts] = {}

    def wrote(self, epoch: int, rows: RowCounts) -> None:
        """Record the rows that a micro-batch has written and rejected."""
        _put(self._written, epoch, rows)

    def has_read(self, epoch: int, rows: Mapping[str, int]) -> None:
        """Record the rows that a micro-batch has read. One that is recorded already changes nothing."""
        _put(self._read, epoch, RowCounts(read=dict(rows)))

    def at(self, epoch: int) -> RowCounts:
        return _up_to(self._read, epoch) + _up_to(self._written, epoch)

    def is_awaited(self, epoch: int) -> bool:
        """Whether this attempt has processed the micro-batch and the rows read for it are not known yet."""
        return epoch in self._written and max(self._read, default=-1) < epoch


def _put(counts: dict[int, RowCounts], epoch: int, rows: RowCounts) -> None:
    if epoch <= max(counts, default=-1):
        return
    counts[epoch] = _up_to(counts, epoch) + rows
    if len(counts) > KEPT:
        del counts[min(counts)]


def _up_to(counts: dict[int, RowCounts], epoch: int) -> RowCounts:
    known = [number for number in counts if number <= epoch]
    return counts[max(known)] if known else NO_ROWS
