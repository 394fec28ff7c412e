"""A process dies between two named steps of a checkpoint; the sinks hold what the batch would have written."""

from __future__ import annotations

from pathlib import Path

import pytest

from minflinkd.runtime.crash_points import CrashPoint
from tests.exactly_once.crashes import Crashes

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

NAMED = (
    CrashPoint.SYNC,
    CrashPoint.UPLOAD,
    CrashPoint.ACKNOWLEDGE,
    CrashPoint.COMPLETE,
    CrashPoint.NOTIFY,
    CrashPoint.COMMIT,
)
JOBS = ("windows", "two_sinks")


async def test_a_death_at_each_named_step_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """C22, C40, J12: between sync, upload, acknowledge, complete, notify and the sinks' commit."""
    trial = await Crashes(tmp_path, JOBS, NAMED, files=60, pace="1 s").run()
    for name in JOBS:
        trial.verify(name)


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_a_death_at_any_point_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """C22, C40, J12: at all points that there are, one after the other."""
    jobs = (*JOBS, "map", "sessions")
    trial = await Crashes(tmp_path, jobs, list(CrashPoint), files=150, pace="1 s").run()
    for name in jobs:
        trial.verify(name)
