"""Restart strategies (R16)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minflinkd.jobgraph.model import RestartKind, RestartStrategy
from minflinkd.jobmaster.scheduler.restart import RestartHistory, Verdict, after_failure
from minflinkd.runtime.units import Duration


def delays(strategy: RestartStrategy, times: list[float], jitter: float = 0.0) -> list[float | None]:
    """Return the delays after each failure, until the job fails."""
    history, found = RestartHistory(), list[float | None]()
    for now in times:
        verdict = after_failure(strategy, history, now, jitter)
        found.append(verdict.delay)
        history = verdict.history
        if verdict.delay is None:
            assert verdict.reason
            break
    return found


def test_none_never_restarts() -> None:
    assert delays(RestartStrategy(kind=RestartKind.NONE), [1.0]) == [None]


def test_fixed_delay_restarts_as_often_as_allowed_however_long_it_takes() -> None:
    strategy = RestartStrategy(kind=RestartKind.FIXED_DELAY, attempts=2, delay=Duration(3))
    assert delays(strategy, [0, 1e6, 2e6]) == [3, 3, None]
    assert delays(RestartStrategy(kind=RestartKind.FIXED_DELAY, attempts=0), [0]) == [None]


def test_fixed_delay_restarts_once_if_nothing_else_is_said() -> None:
    """As in Flink."""
    assert delays(RestartStrategy(kind=RestartKind.FIXED_DELAY), [0, 1]) == [1, None]


def test_failure_rate_counts_the_failures_of_the_last_interval_only() -> None:
    strategy = RestartStrategy(
        kind=RestartKind.FAILURE_RATE, max_failures_per_interval=2, failure_rate_interval=Duration(10)
    )
    assert delays(strategy, [0, 1, 2]) == [1, 1, None]
    assert delays(strategy, [0, 6, 12, 18, 24]) == [1] * 5
    assert delays(strategy, [0, 5, 10]) == [1, 1, None], "the interval includes its ends"


def test_exponential_delay_grows_to_its_limit_and_starts_anew_after_a_quiet_time() -> None:
    strategy = RestartStrategy(
        initial_backoff=Duration(1),
        max_backoff=Duration(5),
        backoff_multiplier=2,
        reset_backoff_threshold=Duration(100),
    )
    assert delays(strategy, [0, 10, 20, 30, 40, 40 + 100 + 5 + 0.1]) == [1, 2, 4, 5, 5, 1]
    assert delays(strategy, [0, 100 + 1, 200 + 3]) == [1, 2, 4], "the time is quiet once the delay is over"


def test_exponential_delay_may_be_limited_in_attempts_without_a_quiet_time() -> None:
    strategy = RestartStrategy(attempts=2, reset_backoff_threshold=Duration(100))
    assert delays(strategy, [0, 1, 2])[-1] is None
    assert None not in delays(strategy, [0, 200, 400, 600])


@pytest.mark.parametrize(("jitter", "delay"), [(-1.0, 3.0), (0.0, 4.0), (0.5, 4.5)])
def test_jitter_makes_a_delay_longer_or_shorter_by_its_factor_at_most(jitter: float, delay: float) -> None:
    """Jobs that failed together do not all come back at once. The next delay grows from the one without jitter."""
    strategy = RestartStrategy(initial_backoff=Duration(4), jitter_factor=0.25)
    assert delays(strategy, [0, 1], jitter) == [delay, delay * 1.5]


@pytest.mark.parametrize(
    ("strategy", "told"),
    [
        (RestartStrategy(kind=RestartKind.NONE), "the restart strategy is `none`"),
        (RestartStrategy(kind=RestartKind.FIXED_DELAY, attempts=0), "0 restarts (fixed-delay) are used up"),
        (
            RestartStrategy(kind=RestartKind.FAILURE_RATE, max_failures_per_interval=0),
            "1 failures within 1 min (failure-rate)",
        ),
        (RestartStrategy(attempts=0), "0 restarts (exponential-delay) without a quiet time"),
    ],
)
def test_a_job_that_is_not_restarted_is_told_which_strategy_and_which_limit_said_so(
    strategy: RestartStrategy, told: str
) -> None:
    before = RestartHistory(failures=(), backoff=0.0, attempts=0)
    assert after_failure(strategy, before, 0.0, 0.0) == Verdict(None, before, told)


@given(jitter=st.floats(-1, 1), count=st.integers(1, 40), factor=st.floats(0, 1))
def test_jitter_stays_within_its_bounds_and_no_delay_is_negative(jitter: float, count: int, factor: float) -> None:
    strategy = RestartStrategy(jitter_factor=factor)
    plain = delays(strategy, [float(i) for i in range(count)])
    for exact, shaken in zip(plain, delays(strategy, [float(i) for i in range(count)], jitter), strict=True):
        assert exact is not None
        assert shaken is not None
        assert shaken >= 0
        assert abs(shaken - exact) <= exact * factor + 1e-9
        assert exact == pytest.approx(min(exact, 60.0))
