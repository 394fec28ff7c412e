"""A process dies between two named steps of a checkpoint. The sinks still hold what the batch would have written."""

from __future__ import annotations

from pathlib import Path

import pytest

from minflinkd.runtime.crash_points import OF_CHECKPOINTS
from tests.exactly_once.crashes import OF_SMALL_FILES, Crashes

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

JOBS = ("windows", "two_sinks")


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_a_death_at_each_point_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """The points include sync, upload, acknowledge, complete, notify, commit and all between (C22, C40, J12)."""
    jobs = (*JOBS, "sessions", "windows_exchange")
    points = [point for point in OF_CHECKPOINTS if point not in OF_SMALL_FILES]
    trial = await Crashes(tmp_path, jobs, points, files=1000, pace="1 s", endless=True).run()
    for name in jobs:
        trial.verify(name)
