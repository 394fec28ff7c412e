"""Staged cleanup as arithmetic (B16)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minflinkd.blob.staged import StagedLists

R = 100.0


def test_what_is_staged_goes_with_the_second_rotation() -> None:
    lists: StagedLists[str] = StagedLists(R, 0.0)
    lists.add("a")
    assert lists.rotate(99.9) == ()
    assert lists.rotate(100.0) == ()
    lists.add("b")
    assert lists.rotate(199.9) == ()
    assert lists.rotate(200.0) == ("a",)
    assert (lists.rotate(300.0), len(lists)) == (("b",), 0)


def test_what_is_needed_again_leaves_the_lists() -> None:
    lists: StagedLists[str] = StagedLists(R, 0.0)
    lists.add("first")
    lists.rotate(100.0)
    lists.add("second")
    lists.remove("first")
    lists.remove("second")
    lists.remove("never there")
    assert (lists.rotate(200.0), lists.rotate(300.0)) == ((), ())


def test_staging_twice_does_not_prolong_a_life() -> None:
    lists: StagedLists[str] = StagedLists(R, 0.0)
    lists.add("a")
    lists.rotate(100.0)
    lists.add("a")
    assert lists.rotate(200.0) == ("a",)


@given(
    staged=st.lists(st.floats(0, 1000), min_size=1, max_size=20),
    ticks=st.lists(st.floats(0.01, 3 * R), min_size=1, max_size=60),
    interval=st.floats(1, 500),
)
def test_a_life_is_one_to_two_intervals_however_often_the_cleanup_runs(
    staged: list[float], ticks: list[float], interval: float
) -> None:
    """A life is never shorter than one interval, and never longer than two if the cleanup runs in time (B16)."""
    lists: StagedLists[int] = StagedLists(interval, 0.0)
    now, waiting, lateness = 0.0, dict(enumerate(sorted(staged))), 0.0
    born: dict[int, float] = {}
    for tick in ticks:
        now += tick
        for item in [item for item, at in waiting.items() if at <= now]:
            waiting.pop(item)
            lists.add(item)
            born[item] = now
        lateness = max(lateness, now - lists.rotates_at)
        for item in lists.rotate(now):
            age = now - born.pop(item)
            assert age >= interval * (1 - 1e-9)
            assert age <= 2 * (interval + lateness) + 1e-6
    for item, at in born.items():
        assert item in lists
        assert now - at <= 2 * (interval + lateness) + 1e-6
