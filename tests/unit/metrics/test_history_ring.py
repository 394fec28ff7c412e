"""The ring and a subject's past, against dictionaries that forget nothing (E16)."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from math import isclose
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from minflinkd.metrics.history.encoding import NUMBER, SHARE, SHORT_TIME, UNKNOWN
from minflinkd.metrics.history.ring import Ring
from minflinkd.metrics.history.series import FINE_KEPT, FINE_MS, JOB, PER_MINUTE, TASK, Layout, Series, last
from minflinkd.metrics.history.track import Resolution, Track

SMALL = Layout("small", (Series("rate"), Series("share", SHARE), Series("count", fold=last, whole=True)))


@given(st.floats(-1e12, 1e15, allow_nan=False))
def test_a_number_is_kept_to_a_tenth_of_a_percent(value: float) -> None:
    """What is too small for that is 0."""
    found = NUMBER.table[NUMBER.encode(value)]
    assert found is not None
    assert isclose(found, value, rel_tol=0.0011, abs_tol=6.2e-5)


@given(st.integers(-1024, 1024))
def test_small_whole_numbers_are_exact(value: int) -> None:
    assert NUMBER.table[NUMBER.encode(value)] == value


@given(st.integers(1, 36_000_000))
def test_short_times_are_kept_to_four_percent(ms: int) -> None:
    found = SHORT_TIME.table[SHORT_TIME.encode(ms / 1000)]
    assert found is not None
    assert isclose(found, ms / 1000, rel_tol=0.04)


def test_zero_and_nothing_are_told_apart() -> None:
    for codec in (NUMBER, SHORT_TIME, SHARE):
        assert codec.table[codec.encode(0.0)] == 0.0
        for nothing in (None, float("nan"), float("inf")):
            assert codec.encode(nothing) == UNKNOWN
            assert codec.table[UNKNOWN] is None


def test_what_was_read_is_encoded_as_before() -> None:
    """So values may be stored and read again and again."""
    for codec in (NUMBER, SHORT_TIME, SHARE):
        size = 1 << (16 if codec.wide else 8)
        assert len(codec.table) == size
        for code in range(size):
            value = codec.table[code]
            assert value is None or value == 0.0 or codec.encode(value) == code


@given(
    st.integers(0, 10**9),
    st.lists(st.tuples(st.integers(-70, 70), st.integers(1, 255)), max_size=200),
    st.integers(1, 100),
)
def test_a_ring_has_the_last_rows(origin: int, steps: list[tuple[int, int]], capacity: int) -> None:
    """Whatever the order in which they are put, and however far apart."""
    ring, oracle, slot = Ring(SMALL, capacity), dict[int, list[int]](), origin
    for step, code in steps:
        slot = max(0, slot + step)
        codes = [code * 257, code, 65535 - code]
        newest = max(oracle, default=slot)
        if slot > newest - capacity:
            oracle[slot] = codes
        ring.put(slot, codes)
    newest = max(oracle, default=origin)
    kept = {at: codes for at, codes in oracle.items() if at > newest - capacity}
    start, stop = max(0, newest - capacity - 10), newest + 10
    wanted = [[kept.get(at, [UNKNOWN] * 3)[number] for at in range(start, stop)] for number in range(3)]
    assert [list(column) for column in ring.columns(start, stop)] == wanted


@given(st.lists(st.tuples(st.integers(1, 30), st.floats(0, 1000)), min_size=1, max_size=60))
def test_a_minute_is_made_of_its_rows(steps: list[tuple[int, float]]) -> None:
    """A rate of a minute is the mean of what is known of it, a state is the last one."""
    track, rows, slot = Track(SMALL), dict[int, float](), 100 * PER_MINUTE
    for step, value in steps:
        slot += step
        rows[slot] = value
        track.put(slot, [value, 0.5, round(value)])
    for minute in range(100, slot // PER_MINUTE + 1):
        of_it = [value for at, value in rows.items() if at // PER_MINUTE == minute]
        rate, share, count = (track.values(Resolution.COARSE, n, minute, minute + 1)[0] for n in range(3))
        if not of_it:
            assert (rate, share, count) == (None, None, None)
            continue
        assert rate is not None
        assert isclose(rate, sum(of_it) / len(of_it), rel_tol=0.003, abs_tol=1e-4)
        assert share == 0.5
        assert count == round(of_it[-1])


def _filled(layout: Layout) -> Track:
    track = Track(layout)
    values: Sequence[float] = [123.4] * len(layout.series)
    for slot in range(24 * FINE_KEPT + PER_MINUTE):
        track.put(slot, values)
    return track


def _bytes_of(track: Any) -> int:
    """Return the bytes of a past and all that belongs to it alone."""
    seen, left, size = set[int](), [track], 0
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, type | Layout):
            continue
        seen.add(id(one))
        size += sys.getsizeof(one)
        left += gc.get_referents(one)
    return size


def test_a_task_takes_less_than_50_kb_in_a_day() -> None:
    """And a job about half as much (E16)."""
    of_task, of_job = _bytes_of(_filled(TASK)), _bytes_of(_filled(JOB))
    assert 40_000 < of_task < 50_000
    assert of_job < 27_000


def test_a_new_task_takes_little() -> None:
    """Short jobs by the hundred do not take a day's memory each."""
    track = Track(TASK)
    track.put(1, [1.0] * len(TASK.series))
    assert _bytes_of(track) < 5_000


def test_an_hour_and_a_day_are_kept() -> None:
    track = _filled(TASK)
    end = 24 * FINE_KEPT + PER_MINUTE
    fine = track.values(Resolution.FINE, 0, end - FINE_KEPT - 5, end)
    assert [value is None for value in fine] == [True] * 5 + [False] * FINE_KEPT
    minute = (end - 1) // PER_MINUTE
    coarse = track.values(Resolution.COARSE, 0, minute - 1444, minute + 1)
    assert sum(value is not None for value in coarse) == 1440
    assert track.last_ms == (end - 1) * FINE_MS
