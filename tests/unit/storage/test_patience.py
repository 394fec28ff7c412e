"""When a request is repeated, and when not (S4)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minflinkd.storage.options import CommonOptions
from minflinkd.storage.patience import Patience

OPTIONS = CommonOptions(request_timeout=10, deadline=60, retries=3, pause=1, longest_pause=3)


def test_pauses_double_up_to_the_longest_and_then_there_is_no_next_try() -> None:
    patience = Patience(OPTIONS, 0)
    assert [patience.failed(0, 0.5) for _ in range(5)] == [0.75, 1.5, 2.25, None, None]
    assert Patience(OPTIONS, 0).failed(0, 0) == 0.5


def test_a_pause_that_would_end_after_the_deadline_is_not_begun() -> None:
    patience = Patience(OPTIONS, 0)
    assert patience.failed(59.6, 0) is None
    assert Patience(OPTIONS, 0).failed(59.4, 0) == 0.5


def test_the_last_try_gets_what_is_left_of_the_deadline() -> None:
    patience = Patience(OPTIONS, 100)
    assert [patience.limit(now) for now in (100, 155, 160, 170)] == [10, 5, 0, 0]


def test_progress_begins_anew_and_rest_does_not_count() -> None:
    patience = Patience(OPTIONS, 0)
    for _ in range(3):
        patience.failed(0, 0)
    patience.progress(50)
    assert patience.failed(51, 0) == 0.5
    assert patience.left(51) == 59
    patience.rested(20)
    assert patience.left(71) == 59
    assert patience.failures == 1


@given(
    st.builds(
        CommonOptions,
        request_timeout=st.floats(0.01, 1000),
        deadline=st.floats(0.01, 1000),
        retries=st.integers(0, 50),
        pause=st.floats(0, 100),
        longest_pause=st.floats(0, 100),
    ),
    st.lists(st.tuples(st.floats(0, 1000), st.floats(0, 0.999)), max_size=60),
)
def test_tries_are_bounded_in_number_and_in_time(options: CommonOptions, tries: list[tuple[float, float]]) -> None:
    """However long each try takes, there are no more than the retries, and none begins after the deadline."""
    patience, now, made = Patience(options, 0), 0.0, 0
    for takes, chance in tries:
        assert now <= options.deadline
        made += 1
        now += min(takes, patience.limit(now))
        pause = patience.failed(now, chance)
        if pause is None:
            break
        assert pause <= options.longest_pause
        now += pause
    assert made <= options.retries + 1
    assert now <= options.deadline * 1.000001
