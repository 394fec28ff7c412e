"""When a session child counts as aged."""

from __future__ import annotations

import pytest

from minflinkd.taskmanager.child.age import Figures, aged, sensible

BOUNDS = Figures(threads=10, open_files=20, memory=30 << 20)


def test_a_session_at_its_bounds_has_not_aged() -> None:
    """A session may reach a bound, but not pass it (R6a)."""
    assert aged(BOUNDS, BOUNDS) == ""


@pytest.mark.parametrize(
    ("figures", "reason"),
    [
        (Figures(11, 0, 0), "11 threads, more than 10"),
        (Figures(0, 21, 0), "21 open files, more than 20"),
        (Figures(0, 0, 31 << 20), "31 MiB of memory, more than 30 MiB"),
    ],
)
def test_each_bound_counts_alone_and_is_named(figures: Figures, reason: str) -> None:
    """The bounds are threads, descriptors and memory (R6a)."""
    assert aged(figures, BOUNDS) == reason


@pytest.mark.parametrize(
    ("fresh", "bounds"),
    [
        (Figures(6, 13, 20 << 20), BOUNDS),  # the bounds are one and a half times as large already
        (Figures(9, 0, 0), Figures(13, 20, 30 << 20)),
        (Figures(0, 15, 0), Figures(10, 22, 30 << 20)),
        (Figures(0, 0, 3 + (20 << 20)), Figures(10, 20, 4 + (30 << 20))),
    ],
)
def test_a_bound_that_a_fresh_session_nearly_passes_is_raised(fresh: Figures, bounds: Figures) -> None:
    """Each bound is at least one and a half times what a fresh session needs, in whole numbers.

    Otherwise each successor would be replaced at once (R6a).
    """
    assert sensible(BOUNDS, fresh) == bounds
