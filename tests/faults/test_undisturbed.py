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

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800), pytest.mark.asyncio(loop_scope="session")]

JOBS = ("windows_exchange", "diamond")  # three tasks each
ISOLATED = ("diamond",)  # on a TaskManager of its own
MORE = (*JOBS, "windows", "two_sinks")
ENDLESS: Mapping[str, Any] = {"files": 2000, "pace": "500 ms", "endless": True, "isolated": ISOLATED}


@pytest.mark.slow  # test_kill_daemon has it with one task
async def test_neither_a_kill_of_the_daemon_nor_a_handover_restarts_a_task(tmp_path: Path) -> None:
    """No micro-batch is missing, and the output is exact, for exchanges and with `isolation: job` (A14, A15, A16)."""
    kills = Kills(tmp_path, JOBS, seed=1, kills=2, parts=DAEMONS, longest=1.0, files=120, pace="1 s", isolated=ISOLATED)
    trial = await kills.run()
    for name in JOBS:
        trial.verify_undisturbed(name)


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def in_process(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcess]:
    async with in_process_cluster(tmp_path_factory.mktemp("cluster"), **SETTINGS) as cluster:
        yield cluster


@pytest.mark.slow  # test_component_crashes has it with one task
async def test_neither_a_crash_of_the_job_master_nor_of_the_resource_manager_restarts_a_task(
    in_process: InProcess, tmp_path: Path
) -> None:
    """The same for a component that crashes inside a living daemon (A14b)."""
    kills = Kills(
        tmp_path, JOBS, seed=1, kills=4, parts=COMPONENTS, longest=1.0, files=120, pace="1 s", isolated=ISOLATED
    )
    trial = await kills.run_on(in_process)
    for name in JOBS:
        trial.verify_undisturbed(name)


@pytest.mark.slow
@pytest.mark.parametrize("part", DAEMONS)
async def test_ten_daemons_in_a_row_restart_no_task_of_four_jobs(tmp_path: Path, part: str) -> None:
    """They end at instants that are drawn; the printed seed repeats them (A14, A15, A16)."""
    kills = Kills(tmp_path, MORE, seed=drawn_seed(), kills=10, parts=(part,), **ENDLESS)
    trial = await kills.run()
    for name in MORE:
        trial.verify_undisturbed(name)


@pytest.mark.slow
@pytest.mark.parametrize("part", COMPONENTS)
async def test_ten_crashes_in_a_row_restart_no_task_of_four_jobs(
    in_process: InProcess, tmp_path: Path, part: str
) -> None:
    """They come at instants that are drawn; the printed seed repeats them (A14b)."""
    kills = Kills(tmp_path, MORE, seed=drawn_seed(), kills=10, parts=(part,), **ENDLESS)
    trial = await kills.run_on(in_process)
    for name in MORE:
        trial.verify_undisturbed(name)
