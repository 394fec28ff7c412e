"""How many partitions the state of a task has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minflinkd.jobmaster.scheduler.sizing import partitions_of

NUMBERS = st.integers(1, 64)


@pytest.mark.parametrize(
    ("parallelism", "desired", "highest", "recorded", "expected"),
    [
        (2, 2, None, 0, 2),
        (1, 4, None, 0, 4),  # slots are lacking; when they come, nothing has to be rewritten
        (2, 2, 8, 0, 8),
        (2, 2, None, 4, 4),  # it was wider before
        (4, 4, None, 2, 4),
        (2, 4, None, 2, 4),  # slots are lacking for what a user has asked for; it is rewritten now, not when they come
        (2, 2, 8, 4, 8),  # the job states another max-parallelism than before
    ],
)
def test_state_has_as_many_partitions_as_the_task_may_ever_need(
    parallelism: int, desired: int, highest: int | None, recorded: int, expected: int
) -> None:
    """A job's max-parallelism counts; otherwise what the state has, as long as it suffices (R20)."""
    assert partitions_of(parallelism, desired, highest, recorded) == expected


@given(NUMBERS, NUMBERS, st.none() | NUMBERS, st.integers(0, 64))
def test_each_slot_has_a_partition(parallelism: int, desired: int, highest: int | None, recorded: int) -> None:
    """More slots than partitions would be of no use (J6)."""
    desired = max(desired, parallelism)
    assert partitions_of(parallelism, desired, highest, recorded) >= parallelism


@given(st.lists(NUMBERS, min_size=1, max_size=8), st.integers(0, 64))
def test_state_is_rewritten_only_to_become_wider(widths: list[int], recorded: int) -> None:
    """To go on with fewer slots, or with as many as before, changes nothing of the state (H6)."""
    for width in widths:
        found = partitions_of(width, width, None, recorded)
        assert found == recorded if width <= recorded else found == width
        recorded = found
