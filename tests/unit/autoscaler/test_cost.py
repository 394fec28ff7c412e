"""What a micro-batch costs (R62)."""

from __future__ import annotations

import random

import pytest

from minflinkd.autoscaler.cost import cost_of
from minflinkd.autoscaler.readings import Batch
from tests.unit.autoscaler.jobs import batch

FIXED, PER_ROW = 0.5, 0.001


def batches(loads: list[float], *, noise: float = 0.0, width: int = 2) -> list[Batch]:
    rng = random.Random(7)
    return [
        batch(at, load, (FIXED + PER_ROW * load) * (1 + rng.uniform(-noise, noise)), width=width)
        for at, load in enumerate(loads)
    ]


def test_the_fixed_part_and_the_rows_are_told_apart_if_their_numbers_differ() -> None:
    """A line through the micro-batches has both."""
    cost = cost_of(batches([100, 200, 400, 800, 1600, 300, 900, 1200]), 2, 10)
    assert cost is not None
    assert cost.sure
    assert (cost.fixed, cost.per_row) == (pytest.approx(FIXED), pytest.approx(PER_ROW))


def test_micro_batches_that_are_alike_tell_only_bounds() -> None:
    """All of the time but what Spark says it did outside may be of the rows."""
    cost = cost_of(batches([1000, 1010, 990, 1000, 1005, 995, 1000, 1000]), 2, 10)
    assert cost is not None
    assert not cost.sure
    assert cost.per_row == cost.highest == pytest.approx((1.5 - 0.1) / 1000, rel=0.01)


def test_what_slots_did_not_work_is_fixed() -> None:
    """Spark tasks took a tenth of the time: not more of it can grow with rows."""
    alike = [batch(at, 1000, 1.0, parallel=0.1) for at in range(8)]
    cost = cost_of(alike, 2, 10)
    assert cost is not None
    assert cost.per_row == pytest.approx(0.1 / 1000)


def test_a_pause_of_the_machine_does_not_count() -> None:
    """One micro-batch of 40 s among those of a second."""
    usual = batches([100, 200, 400, 800, 1600, 300, 900, 1200, 500, 700, 1000, 1400], noise=0.02)
    cost = cost_of([*usual[:6], batch(5.5, 600, 40.0), *usual[6:]], 2, 12)
    assert cost is not None
    assert cost.sure
    assert cost.per_row == pytest.approx(PER_ROW, rel=0.1)


def test_a_width_that_does_not_fit_counts_alone() -> None:
    """With 8 slots and 2 partitions a row costs four times as much of a slot: the line through all would be wrong."""
    loads = [200.0, 400, 800, 1600, 300, 900, 1200, 700]
    before = batches(loads)
    now = [batch(20 + i, load / 4, FIXED + PER_ROW * load, width=8) for i, load in enumerate(loads)]
    cost = cost_of([*before, *now], 8, 30)
    assert cost is not None
    assert cost.per_row == pytest.approx(4 * PER_ROW, rel=0.05)


def test_rows_that_cost_nothing_cost_nothing() -> None:
    """Large and small micro-batches take the same time, and the cost of a row is never below nothing."""
    cost = cost_of(
        [batch(at, load, 1.0 - at * 1e-3) for at, load in enumerate([100, 200, 400, 800, 1600, 3200])], 2, 10
    )
    assert cost is not None
    assert cost.sure
    assert 0.0 <= cost.per_row < PER_ROW / 100


def test_nothing_is_said_of_one_micro_batch() -> None:
    """Two are the least."""
    assert cost_of(batches([100]), 2, 10) is None
