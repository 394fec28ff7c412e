"""A process dies between two named steps of a checkpoint. The sinks still hold what the batch would have written."""

from __future__ import annotations

from pathlib import Path

import pytest

from minflinkd.runtime.crash_points import OF_CHECKPOINTS, CrashPoint
from tests.exactly_once.crashes import OF_SMALL_FILES, Crashes

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

SOME = (CrashPoint.UPLOAD, CrashPoint.COMPLETE, CrashPoint.NOTIFY, CrashPoint.COMMIT)  # where a mistake costs the most
JOBS = ("windows", "two_sinks")


@pytest.mark.slow
async def test_a_death_between_two_steps_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """A process dies before an acknowledgement, before tasks are told, or before their sinks commit (C22, C40, J12)."""
    trial = await Crashes(tmp_path, JOBS, SOME, files=40, pace="1 s").run()
    for name in JOBS:
        trial.verify(name)


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_a_death_at_each_point_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """The points include sync, upload, acknowledge, complete, notify, commit and all between (C22, C40, J12)."""
    jobs = (*JOBS, "sessions", "windows_exchange")
    points = [point for point in OF_CHECKPOINTS if point not in OF_SMALL_FILES]
    trial = await Crashes(tmp_path, jobs, points, files=150, pace="1 s").run()
    for name in jobs:
        trial.verify(name)
