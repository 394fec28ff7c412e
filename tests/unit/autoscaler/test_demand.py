"""How many slots a job needs (R62)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from minflinkd.autoscaler.demand import GroupDemand, demand
from minflinkd.autoscaler.readings import Batch, JobReading, TaskReading, Track, effective
from minflinkd.runtime.ids import TaskId
from tests.unit.autoscaler.jobs import T, batch, reading

LOADS = (200.0, 400, 800, 1600, 300, 900, 1200, 700)


def track(task: TaskReading, batches: list[Batch]) -> Track:
    return Track(task, batches[-1].at, 0, tuple(batches))


def steady(rate: float, *, width: int = 2, fixed: float = 0.4, per_row: float = 0.002, **more: Any) -> list[Batch]:
    """Return micro-batches from which costs are known, and then those of 30 s at a rate."""
    known = [batch(i, x, fixed + per_row * x, width=width) for i, x in enumerate(LOADS)]
    load = rate * 5 / width
    now = [batch(100 + 5 * i, load, fixed + per_row * load, width=width, period=5.0, **more) for i in range(7)]
    return [*known, *now]


def needed(task: TaskReading, batches: list[Batch], interval: float = 0.0, catch_up: float = 300.0) -> GroupDemand:
    shown = JobReading(at=131.0, tasks=(task,), interval=interval)
    (group,) = demand(shown, {T: track(task, batches)}, target=0.7, catch_up=catch_up)
    return group


def test_the_slots_follow_from_what_rows_cost_and_not_from_the_time_in_micro_batches() -> None:
    """100 rows/s of 2 ms each use a fifth of a slot, though a query without a pause is always busy."""
    group = needed(reading(), steady(100, busy=5.0))
    assert group.sure
    assert group.used == pytest.approx(0.2 / 0.96, rel=0.02)
    assert group.wanted == pytest.approx(group.used / 0.7)


def test_what_waits_is_to_be_processed_in_time() -> None:
    """Beside what comes in: 30,000 records in 300 s are 100 rows/s more."""
    without = needed(reading(backlog=0), steady(100, backlog=0))
    group = needed(reading(backlog=31_500), steady(100, backlog=31_500))
    assert group.used - without.used == pytest.approx(0.2 / 0.96, rel=0.02)
    assert group.pressing


def test_records_of_a_micro_batch_or_two_do_not_wait() -> None:
    """They always are there, if somebody writes."""
    group = needed(reading(backlog=1000), steady(100, backlog=1000))
    assert (group.pressing, group.heaviest.excess) == (False, 0)


def test_a_backlog_that_nobody_knows_is_not_taken_for_none() -> None:
    """Micro-batches that are bounded, full, and without a pause: more may come in than they process."""
    full = steady(500, busy=5.0, last_rows=2500.0)
    group = needed(reading(limited=True, bound=2500.0), full)
    assert "nobody knows what waits" in group.behind
    assert group.used >= 2
    assert not needed(reading(limited=True, bound=5000.0), full).behind


def test_a_bounded_source_gets_what_waits_and_comes() -> None:
    """It processes 500 rows/s, and 100 rows/s more wait each second."""
    growing = [batch(100 + 5 * i, 1250, 2.9, period=5.0, backlog=10_000 + 500 * i) for i in range(7)]
    group = needed(reading(limited=True, bound=2500.0, backlog=13_000), [*steady(500)[: len(LOADS)], *growing])
    assert group.rate == pytest.approx(600, rel=0.02)


def test_tasks_of_a_group_are_added_up() -> None:
    """They run on the same slots."""
    tasks = (reading("t"), reading("u"))
    tracks = {task.task: track(task, steady(100)) for task in tasks}
    (group,) = demand(JobReading(at=131.0, tasks=tasks), tracks, target=0.7, catch_up=300.0)
    assert group.used == pytest.approx(0.4 / 0.96, rel=0.02)


def test_a_task_that_reads_another_one_needs_what_comes_in_there() -> None:
    """The source is read at half the rate at which rows come in, so its reader will get twice as many."""
    source = reading("s", group="sources", limited=True, bound=500.0, backlog=10_000)
    growing = [batch(100 + 5 * i, 250, 0.9, period=5.0, backlog=500 * i) for i in range(7)]
    reader = reading("t", upstream=(TaskId("s"),))
    tracks = {source.task: track(source, growing), reader.task: track(reader, steady(100))}
    groups = demand(JobReading(at=131.0, tasks=(source, reader)), tracks, target=0.7, catch_up=300.0)
    of_reader = next(group for group in groups if group.group == "default")
    assert of_reader.rate == pytest.approx(200, rel=0.05)


@pytest.mark.parametrize(
    ("slots", "partitions", "worth"), [(1, 8, 1), (3, 8, 8 / 3), (5, 8, 4), (7, 8, 4), (8, 8, 8), (5, 0, 5)]
)
def test_slots_that_compute_no_fewer_partitions_each_are_worth_no_more(
    slots: int, partitions: int, worth: float
) -> None:
    """Of 8 partitions, 5 slots compute two each at most, as 4 do."""
    assert effective(slots, partitions) == pytest.approx(worth)


@pytest.mark.parametrize(("wanted", "slots"), [(0.3, 1), (1.8, 2), (2.1, 3), (2.7, 4), (4.0, 4), (4.1, 8), (8.0, 8)])
def test_slots_are_added_up_to_the_next_number_that_divides_the_partitions(wanted: float, slots: int) -> None:
    """A state of 8 partitions has no use for 5 to 7 slots."""
    group = needed(reading(partitions=8), steady(100))
    assert group.fitting(wanted) == slots
    assert needed(reading(), steady(100)).fitting(wanted) == math.ceil(wanted)


def test_full_micro_batches_leave_less_time_for_rows() -> None:
    """With 1,000 rows each, 500 rows/s are a micro-batch every 2 s, of which 0.4 s are fixed."""
    free = needed(reading(), steady(500))
    bounded = needed(reading(limited=True, bound=1000.0, backlog=0), steady(500, backlog=0))
    assert bounded.used == pytest.approx(free.used * 0.96 / 0.8, rel=0.03)
