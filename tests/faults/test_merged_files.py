"""A process dies in the midst of an upload, of a compaction, between the steps of a completion: no file goes too early,

and what nobody refers to is found.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from minflinkd.runtime.crash_points import CrashPoint
from tests.exactly_once.crashes import OF_A_COMPLETION
from tests.exactly_once.merged import MergedFiles

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

OF_AN_UPLOAD = (CrashPoint.REWRITE, CrashPoint.APPEND, CrashPoint.UPLOAD, CrashPoint.ACKNOWLEDGE, CrashPoint.FILE)


async def test_a_taskmanager_that_dies_in_an_upload_leaves_nothing_but_orphans(tmp_path: Path) -> None:
    """F4 - F7: with one of several files written. Found by hand, and nothing else; a job goes on without them."""
    trial = await MergedFiles(tmp_path, ["deduplication"], [CrashPoint.FILE], files=16, pace="1 s").run()
    trial.verify("deduplication")
    assert trial.orphans["deduplication"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_a_death_at_any_step_of_a_checkpoint_costs_no_file_that_is_needed(tmp_path: Path) -> None:
    """C22, F4 - F7: the daemon between each two steps of a completion; then TaskManagers within uploads, compaction

    included. The orphans of what came before a daemon are gone with its successor; those behind the last one are found.
    """
    jobs = ("deduplication", "windows_exchange")
    points = (*OF_A_COMPLETION, *OF_AN_UPLOAD)
    trial = await MergedFiles(tmp_path, jobs, points, files=150, pace="1 s").run()
    for name in jobs:
        trial.verify(name)
        assert trial.orphans[name]
