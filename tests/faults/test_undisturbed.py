"""Nobody leads for a while, again and again, and no task of any job notices: not one with exchanges, nor one alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.exactly_once.kills import COMPONENTS, DAEMONS, Kills, drawn_seed
from tests.exactly_once.trial import SETTINGS
from tests.faults.in_process import InProcess, in_process_cluster

# test_kill_daemon and test_component_crashes have it with one task
pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(1800), pytest.mark.asyncio(loop_scope="session")]

ISOLATED = ("diamond",)  # on a TaskManager of its own
JOBS = ("windows_exchange", *ISOLATED, "windows", "two_sinks")  # the first two have three tasks each
HOW: Mapping[str, Any] = {"kills": 12, "files": 2000, "pace": "500 ms", "endless": True, "isolated": ISOLATED}


async def test_twelve_daemons_in_a_row_restart_no_task_of_four_jobs(tmp_path: Path) -> None:
    """They are killed or hand over, at instants that are drawn; the printed seed repeats them (A14, A15, A16).

    No micro-batch is missing, and the output is exact, for exchanges and with `isolation: job`.
    """
    trial = await Kills(tmp_path, JOBS, seed=drawn_seed(), parts=DAEMONS, **HOW).run()
    for name in JOBS:
        trial.verify_undisturbed(name)


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def in_process(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcess]:
    async with in_process_cluster(tmp_path_factory.mktemp("cluster"), **SETTINGS) as cluster:
        yield cluster


async def test_twelve_crashes_in_a_row_restart_no_task_of_four_jobs(in_process: InProcess, tmp_path: Path) -> None:
    """The same for JobMasters and the ResourceManager, which crash inside a living daemon (A14b)."""
    trial = await Kills(tmp_path, JOBS, seed=drawn_seed(), parts=COMPONENTS, **HOW).run_on(in_process)
    for name in JOBS:
        trial.verify_undisturbed(name)
