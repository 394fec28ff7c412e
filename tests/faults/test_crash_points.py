"""A process dies between two named steps of a checkpoint; the sinks hold what the batch would have written."""

from __future__ import annotations

from pathlib import Path

import pytest

from minflinkd.runtime.crash_points import OF_CHECKPOINTS, CrashPoint
from tests.exactly_once.crashes import OF_SMALL_FILES, Crashes

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

SOME = (CrashPoint.UPLOAD, CrashPoint.COMPLETE, CrashPoint.NOTIFY, CrashPoint.COMMIT)  # the dearest to get wrong
JOBS = ("windows", "two_sinks")


@pytest.mark.slow
async def test_a_death_between_two_steps_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """C22, C40, J12: before an acknowledgement, before tasks are told, and between that and the sinks' commit."""
    trial = await Crashes(tmp_path, JOBS, SOME, files=40, pace="1 s").run()
    for name in JOBS:
        trial.verify(name)


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_a_death_at_each_point_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """C22, C40, J12: sync, upload, acknowledge, complete, notify, commit, and all that lie between."""
    jobs = (*JOBS, "sessions", "windows_exchange")
    points = [point for point in OF_CHECKPOINTS if point not in OF_SMALL_FILES]
    trial = await Crashes(tmp_path, jobs, points, files=150, pace="1 s").run()
    for name in jobs:
        trial.verify(name)
