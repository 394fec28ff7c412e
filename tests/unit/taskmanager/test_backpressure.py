"""Whether readers hold a task back, and when the task reports it (J10)."""

from __future__ import annotations

from minflinkd.rpc.messages import TaskMetrics
from minflinkd.taskmanager.session.exchange.backpressure import Backpressure


class Time:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_time_that_a_task_was_held_back_adds_up_the_present_one_too() -> None:
    time = Time()
    pressure = Backpressure(time)
    assert (pressure.output(0).held, pressure.output(0).held_ms) == (False, 0.0)
    pressure.hold()
    time.now += 1.5
    pressure.hold()
    assert (pressure.output(7).held, pressure.output(7).held_ms) == (True, 1500.0)
    pressure.let_go()
    pressure.let_go()
    time.now += 10
    pressure.hold()
    time.now += 0.5
    assert pressure.output(7).held_ms == 2000.0


def test_a_change_of_being_held_back_is_news_at_once_and_another_backlog_now_and_then() -> None:
    """A task that is held back finishes no micro-batch, so nothing else would report it."""
    time = Time()
    pressure = Backpressure(time)
    told = TaskMetrics()
    assert not pressure.is_news(pressure.output(0), told)
    pressure.hold()
    output = pressure.output(10)
    assert pressure.is_news(output, told)
    told = output.within(told)
    assert (told.output_backlog, told.backpressured) == (10, True)
    assert not pressure.is_news(pressure.output(20), told)
    time.now += 1.0
    assert pressure.is_news(pressure.output(20), told)
    pressure.let_go()
    assert pressure.is_news(pressure.output(20), told)
