"""Nine jobs of one task each write what their batch writes, after twenty kills of what they run on."""

from __future__ import annotations

import pytest
import pytest_asyncio

from tests.exactly_once.kills import PARTS, Kills, drawn_seed

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(7200), pytest.mark.asyncio(loop_scope="session")]

JOBS = (
    "map",
    "windows",
    "join",
    "deduplication",
    "sessions",
    "totals",
    "silences",
    "union",
    "two_sinks",
)


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def twenty_kills(tmp_path_factory: pytest.TempPathFactory) -> Kills:
    """A trial with other kills in every run."""
    base, parts = tmp_path_factory.mktemp("kills"), (*PARTS, "daemon")
    return await Kills(base, JOBS, seed=drawn_seed(), kills=20, parts=parts, files=150, pace="1 s").run()


@pytest.mark.parametrize("name", JOBS)
async def test_what_a_job_wrote_equals_the_batch_after_twenty_kills(twenty_kills: Kills, name: str) -> None:
    """Kills come at random instants and hit the daemon too. The printed seed repeats them (C11, C14, C40, J12)."""
    twenty_kills.verify(name)
