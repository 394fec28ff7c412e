"""The autoscaler against models of queries, in virtual time (R62)."""

from __future__ import annotations

import pytest

from tests.sim.autoscaler import curves
from tests.sim.autoscaler.planted import FAULTS, find
from tests.sim.autoscaler.rules import broken
from tests.sim.autoscaler.scenarios import SCENARIOS, drawn, recorded

DAYS = list(enumerate(curves.recorded_days()))
EACH = 6  # of the recorded days that are replayed by default: all kinds of queries come up


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_query_gets_the_slots_that_it_needs(name: str) -> None:
    """Soon, without flapping, and none that do not help (R62)."""
    assert not broken(SCENARIOS[name])


@pytest.mark.parametrize(
    ("number", "day"),
    [pytest.param(n, d, id=d, marks=[] if n % (EACH + 1) == 0 else pytest.mark.slow) for n, d in DAYS],
)
def test_a_recorded_load_is_followed(number: int, day: str) -> None:
    """One change in a cool-down at most, and never too few slots for more than a minute (R62).

    The other days are slow because there are 59 of them, of one to three seconds.
    """
    assert not broken(recorded(number, day))


@pytest.mark.parametrize("seed", [pytest.param(n, marks=[] if n < EACH else pytest.mark.slow) for n in range(36)])
def test_a_drawn_load_is_followed(seed: int) -> None:
    """Steps, spikes and bursts, as they come to a shop (R62). Most seeds are slow because they are many."""
    assert not broken(drawn(seed))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    """The scenarios that run by default find it."""
    assert find(fault)
