"""The simulation of merged files finds real code that is broken on purpose."""

from __future__ import annotations

import pytest

from tests.sim.checkpoint.planted import FAULTS, find
from tests.sim.checkpoint.test_merging import SEEDS
from tests.unit.checkpoint.test_registry import F3, deleted, two_with_a_common_segment

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


RARE = "files of a failed write do not wait for its metadata"  # most seeds do not show it


@pytest.mark.parametrize("fault", [pytest.param(f, marks=pytest.mark.slow if f == RARE else []) for f in FAULTS])
async def test_a_planted_fault_is_found(fault: str) -> None:
    """The seeds that run by default find it (F5, F7, F11)."""
    assert await find(fault, within=SEEDS)


async def test_the_case_of_two_checkpoints_at_once_fails_where_the_decision_is_taken_too_early() -> None:
    """The second checkpoint drops its copy of a segment, and needs another segment of the same file (F5)."""
    with FAULTS["a file goes with the first copy that is dropped"]():
        _, third, commands = two_with_a_common_segment()
    assert F3 in third.physical_files()
    assert F3 in deleted(commands)
