"""What is told of rows while a batch runs in real-time mode (T5)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minflinkd.rpc.messages import LATENCY_BOUNDS, RealTimeFigures
from minflinkd.taskmanager.session.query.latency import below_bounds, figures, quantile, upper_ms

BUCKETS = 88


def bucket(ms: int) -> int:
    """Return the first bucket that is not below a latency."""
    return next(number for number in range(BUCKETS) if upper_ms(number) >= ms)


def test_buckets_follow_each_other_and_become_wider() -> None:
    """One for each millisecond below 8, then four for each power of two (T5)."""
    bounds = [upper_ms(number) for number in range(BUCKETS)]
    assert bounds[:13] == [0, 1, 2, 3, 4, 5, 6, 7, 9, 11, 13, 15, 19]
    assert bounds == sorted(set(bounds))
    assert bounds[-1] > 2 * 3600 * 1000


@given(st.lists(st.integers(0, 7_000_000), min_size=1, max_size=200), st.sampled_from([0.5, 0.99, 1.0]))
def test_a_quantile_is_at_most_a_quarter_too_high(latencies: list[int], share: float) -> None:
    counts = [0] * BUCKETS
    for latency in latencies:
        counts[bucket(latency)] += 1
    exact = sorted(latencies)[max(1, round(len(latencies) * share)) - 1]
    told = quantile(counts, share)
    assert told is not None
    assert exact <= told <= max(7, exact * 1.25)


def test_figures_are_of_the_time_since_the_last_ones() -> None:
    """Without rows there is no latency. There is no pause before a batch has ended (T5)."""
    counts = ["0"] * BUCKETS
    nothing = (0,) * (len(LATENCY_BOUNDS) + 1)
    first = figures(f"10 -1 0 {' '.join(counts)}", None, 2.0)
    assert first == RealTimeFigures(rows=10, rows_per_second=5.0, latency_counts=nothing)
    counts[1], counts[8] = "99", "1"
    second = figures(f"110 83500 108 {' '.join(counts)}", first, 1.0)
    assert second == RealTimeFigures(
        rows=110,
        rows_per_second=100.0,
        p50_ms=1,
        p99_ms=1,
        longest_ms=9,
        latency_counts=(0, 99, 99, 99, *[100] * 14),
        latency_sum_ms=108,
        cut_pause_ms=pytest.approx(83.5),
    )
    third = figures(f"210 83500 108 {' '.join(counts)}", second, 1.0)
    assert (third.latency_counts[1], third.latency_counts[-1], third.latency_sum_ms) == (198, 200, 216)


@given(st.lists(st.integers(0, 100_000), max_size=200))
def test_rows_below_a_bound_are_counted_exactly(latencies: list[int]) -> None:
    """Prometheus adds them up over time, so no error may add up with them (T5)."""
    counts = [0] * BUCKETS
    for latency in latencies:
        counts[bucket(latency)] += 1
    exact = [sum(latency < bound for latency in latencies) for bound in LATENCY_BOUNDS]
    assert below_bounds(counts) == [*exact, len(latencies)]
