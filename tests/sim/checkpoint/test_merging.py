"""F11: whatever happens, every retained checkpoint restores byte for byte; once quiet, nothing else is left."""

from __future__ import annotations

import os

import pytest

from tests.sim.checkpoint.history import run

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime(noop_cycles=1)]  # nothing runs in threads

SEEDS = int(os.environ.get("MINFLINKD_MERGING_SEEDS", "12"))


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_every_retained_checkpoint_restores_whatever_happens(seed: int) -> None:
    """F4 - F7, F11: checkpoints that overlap, complete out of order, abort, are subsumed; segments that are written

    again; restores; tasks, TaskManagers and coordinators that die, between any two steps; a storage that fails, is
    slow, lists late; sweeps at any moment. Whatever a task took for granted is there when it says so.
    """
    await run(seed)
