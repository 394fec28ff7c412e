"""How much of the time a task is busy is measured from its totals, at each look at it."""

from __future__ import annotations

from msgspec.structs import replace

from minflinkd.rest.flink.figures import skew
from minflinkd.rest.flink.rates import Rates
from minflinkd.rpc.jobs import TaskDetails
from tests.unit.rest.parties import STARTED, details


def task(busy_ms: float) -> TaskDetails:
    one = details().tasks[0]
    return replace(one, start_ms=STARTED, metrics=replace(one.metrics, busy_ms=busy_ms))


def test_a_first_look_tells_of_the_whole_attempt_and_later_ones_of_the_time_since() -> None:
    rates = Rates()
    assert rates.of(task(500), 100.0, STARTED + 1000)["busy"] == 500
    assert rates.of(task(2500), 110.0, STARTED + 11_000)["busy"] == 200
    assert rates.of(task(60_000), 112.0, STARTED + 13_000)["busy"] == 1000, "a long micro-batch is told when it ends"


def test_a_task_without_an_attempt_has_no_rates() -> None:
    assert Rates().of(replace(task(1), attempt_id=None), 1.0, STARTED) == {}
    assert Rates().of(replace(task(1), end_ms=STARTED), 1.0, STARTED) == {}


def test_skew_is_the_mean_deviation_in_percent() -> None:
    assert (skew([1, 1]), skew([0, 2]), skew([0, 0])) == (0, 100, 0)
