"""The simulation finds real code that is broken on purpose."""

from __future__ import annotations

import pytest

from tests.sim.protocol.planted import FAULTS, find

ALWAYS = (  # in `make test`
    "the TM obeys JobMasters that were replaced",
    "the RM drops repeated declarations",
    "the RM keeps no slots for needs that nothing smaller serves",
)
QUICK = (
    "the RM marks slots taken after it has asked for them",
    "the RM serves JobMasters that were replaced",
    "the TM obeys JobMasters that were replaced",
    "the TM frees slots by the answer to an old offer",
    "the RM does not tell jobs of a lost TM",
    "the RM does not repeat a request for slots",
    "the RM drops repeated declarations",
    "the RM gives slots again at once that came back",
    "the RM takes jobs that it does not know for ended",
    "the RM takes jobs of silent JMs for ended",
    "the RM gives slots that have less than is wanted",
    "the RM keeps no slots for needs that nothing smaller serves",
    "the RM starts TMs of the default size only",
    "the RM lets no TM make way for one of another size",
    "the JM runs groups on slots that have less than they want",
    "the TM keeps surplus slots",
    "the TM's reports of freed slots are no news",
    "the JM adopts attempts that have failed by old news of them",
    "the JM adopts readers without their writers",
    "the JM does not tell tasks of their slots",
    "the JM ignores that a task cannot have other slots",
    "commands overtake one another",
)


@pytest.mark.parametrize("fault", [pytest.param(f, marks=[] if f in ALWAYS else pytest.mark.slow) for f in QUICK])
def test_a_planted_fault_is_found_at_once(fault: str) -> None:
    """These faults show in the first few seeds (R30)."""
    _found(fault, within=60)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [name for name in FAULTS if name not in QUICK])
def test_a_planted_fault_is_found(fault: str) -> None:
    """These faults need more seeds (R30)."""
    _found(fault, within=2_000)


def _found(fault: str, within: int) -> None:
    verdict = find(fault, within)
    assert verdict is not None
    # Otherwise the code has changed, and what is planted does not fit it any more.
    assert "TypeError" not in verdict.violation
    assert "AttributeError" not in verdict.violation
