"""A process dies during an upload, a compaction, or a completion. No needed file is deleted; orphans are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from minflinkd.runtime.crash_points import CrashPoint
from tests.exactly_once.crashes import OF_A_COMPLETION
from tests.exactly_once.merged import MergedFiles

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

OF_AN_UPLOAD = (CrashPoint.REWRITE, CrashPoint.APPEND, CrashPoint.UPLOAD, CrashPoint.ACKNOWLEDGE, CrashPoint.FILE)


@pytest.mark.slow
async def test_a_taskmanager_that_dies_in_an_upload_leaves_nothing_but_orphans(tmp_path: Path) -> None:
    """With one of several files written, only the upload's orphans are listed. A job does not miss them (F4 - F7)."""
    trial = await MergedFiles(
        tmp_path, ["deduplication"], [CrashPoint.FILE], files=1000, pace="1 s", endless=True
    ).run()
    trial.verify("deduplication")
    assert trial.orphans["deduplication"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_a_death_at_any_step_of_a_checkpoint_costs_no_file_that_is_needed(tmp_path: Path) -> None:
    """The daemon dies between steps of a completion, then TaskManagers in uploads and compactions (C22, F4 - F7).

    A daemon's successor deletes the orphans from before. Those after the last death are found by listing.
    """
    jobs = ("deduplication", "windows_exchange")
    points = (*OF_A_COMPLETION, *OF_AN_UPLOAD)
    trial = await MergedFiles(tmp_path, jobs, points, files=1000, pace="1 s", endless=True).run()
    for name in jobs:
        trial.verify(name)
        assert trial.orphans[name]
