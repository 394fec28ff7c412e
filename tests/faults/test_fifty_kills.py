"""A few jobs write what their batch writes, after fifty kills and handovers."""

from __future__ import annotations

import pytest
import pytest_asyncio

from tests.exactly_once.kills import DAEMONS, PARTS, Kills, drawn_seed
from tests.faults.test_exactly_once import SOME

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(7200), pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def fifty_kills(tmp_path_factory: pytest.TempPathFactory) -> Kills:
    """A long trial of a few jobs, with other kills in every run."""
    base, parts = tmp_path_factory.mktemp("fifty"), (*PARTS, *DAEMONS)
    return await Kills(
        base, SOME, seed=drawn_seed(), kills=50, parts=parts, files=4000, pace="500 ms", endless=True
    ).run()


@pytest.mark.parametrize("name", SOME)
async def test_what_a_job_wrote_equals_the_batch_after_fifty_kills(fifty_kills: Kills, name: str) -> None:
    """Kills of any process, the daemon too, and handovers, in an order that is drawn (A16, C40, J12)."""
    fifty_kills.verify(name)
