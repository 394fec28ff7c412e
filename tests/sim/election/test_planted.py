"""The simulation finds faults of the election, of fencing and of adoption that are planted on purpose."""

from __future__ import annotations

import pytest

from tests.sim.election.planted import FAULTS, find

ALWAYS = ("nothing is adopted", "a leader sends that may not act")  # in `make test`
QUICK = (
    "a leader acts after its lease",
    "the clock stands still in a stopped process",
    "an epoch is used twice",
    "records are written without a check of the claim",
    "a leader sends that may not act",
    "nothing is adopted",
)


@pytest.mark.parametrize("fault", [pytest.param(f, marks=[] if f in ALWAYS else pytest.mark.slow) for f in QUICK])
def test_a_planted_fault_is_found_at_once(fault: str) -> None:
    """These faults show in the first few seeds (A18)."""
    assert find(fault, within=40, told=False) is not None


@pytest.mark.slow
@pytest.mark.parametrize("fault", [name for name in FAULTS if name not in QUICK])
def test_a_planted_fault_is_found(fault: str) -> None:
    """These faults need more seeds (A18)."""
    assert find(fault, within=1_000, told=False) is not None
