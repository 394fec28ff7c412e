"""Whatever happens, every retained checkpoint restores byte for byte, and in the end nothing else is left (F11)."""

from __future__ import annotations

import os

import pytest

from tests.sim.checkpoint.history import run

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

SEEDS = int(os.environ.get("MINFLINKD_MERGING_SEEDS", "40"))


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_every_retained_checkpoint_restores_whatever_happens(seed: int) -> None:
    """Every file that a task may refer to exists when the task refers to it (F4 - F7, F11).

    Checkpoints overlap, complete out of order, abort and are subsumed. Segments are rewritten. Jobs are restored.
    Tasks, TaskManagers and coordinators die between any two steps. The storage fails, is slow and lists late. Sweeps
    come at any moment.
    """
    await run(seed)
