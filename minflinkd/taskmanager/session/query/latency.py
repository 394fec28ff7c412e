"""What is told of rows in real-time mode while a batch runs (T5): how many, and how long they were on their way. Pure.

`RealTimeSource.java` counts latencies in buckets: one for each millisecond below 8, then four for each power of two. So
a quantile is at most a quarter too high.
"""

from __future__ import annotations

from collections.abc import Sequence

from minflinkd.rpc.messages import LATENCY_BOUNDS, RealTimeFigures

_SINGLE = 8  # buckets of one millisecond
_PER_POWER = 4


def upper_ms(bucket: int) -> int:
    """Return the longest latency that is counted in a bucket, in milliseconds."""
    if bucket < _SINGLE:
        return bucket
    power, part = divmod(bucket - _SINGLE, _PER_POWER)
    width = 2 << power  # of the buckets from 8 << power on
    return (_SINGLE << power) + (part + 1) * width - 1


def quantile(counts: Sequence[int], share: float) -> int | None:
    """Return the latency below which this share of all rows is, rounded up to its bucket; None if there are no rows."""
    rows = sum(counts)
    wanted, found = max(1, round(rows * share)), 0
    for bucket, count in enumerate(counts):
        found += count
        if rows and found >= wanted:
            return upper_ms(bucket)
    return None


def below_bounds(counts: Sequence[int]) -> list[int]:
    """Return how many rows had a latency below each of LATENCY_BOUNDS, and how many there are.

    Each bound is one of the buckets, so these numbers are exact.
    """
    ends = [upper_ms(bucket) for bucket in range(len(counts))]
    found = [sum(n for n, end in zip(counts, ends, strict=True) if end < bound) for bound in LATENCY_BOUNDS]
    return [*found, sum(counts)]


def figures(text: str, before: RealTimeFigures | None, seconds: float) -> RealTimeFigures:
    """Return what is told after what `Control.figures` has answered, `seconds` after what was told `before`.

    `text`: the rows that were read since the attempt began, the last pause in microseconds (-1: none yet), and since
    the last time the sum of all latencies in milliseconds, and the counts.
    """
    rows, pause, waited, *counts = map(int, text.split())
    earlier = before.latency_counts if before is not None and before.latency_counts else (0,) * len(counts)
    return RealTimeFigures(
        rows=rows,
        rows_per_second=round((rows - (before.rows if before is not None else 0)) / seconds, 1) if seconds > 0 else 0.0,
        p50_ms=quantile(counts, 0.5),
        p99_ms=quantile(counts, 0.99),
        longest_ms=quantile(counts, 1.0),
        latency_counts=tuple(a + b for a, b in zip(earlier, below_bounds(counts), strict=False)),
        latency_sum_ms=(before.latency_sum_ms if before is not None else 0) + waited,
        cut_pause_ms=pause / 1000 if pause >= 0 else None,
    )
