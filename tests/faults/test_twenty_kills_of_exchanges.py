"""Jobs of several tasks write what their batch writes, after twenty kills of what they run on."""

from __future__ import annotations

import pytest
import pytest_asyncio

from tests.exactly_once.kills import PARTS, Kills, drawn_seed

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(7200), pytest.mark.asyncio(loop_scope="session")]

EXCHANGING = ("windows_exchange", "diamond", "branches")
LOOSE = "at_least_once"


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def twenty_kills(tmp_path_factory: pytest.TempPathFactory) -> Kills:
    """A trial with other kills in every run."""
    base, parts, names = tmp_path_factory.mktemp("exchanges"), (*PARTS, "daemon"), (*EXCHANGING, LOOSE)
    return await Kills(base, names, seed=drawn_seed(), kills=20, parts=parts, files=160, pace="2 s").run()


@pytest.mark.parametrize("name", EXCHANGING)
async def test_what_a_job_of_several_tasks_wrote_equals_the_batch_after_twenty_kills(
    twenty_kills: Kills, name: str
) -> None:
    """Kills come at random instants and hit the daemon too (C2, C40, J9)."""
    twenty_kills.verify(name)


async def test_at_least_once_loses_nothing_in_twenty_kills(twenty_kills: Kills) -> None:
    """The output has the rows of the batch, some of them perhaps more than once (C3)."""
    twenty_kills.verify_at_least_once(LOOSE)
