"""What jobs wrote equals their batch after dozens of kills of whatever they run on.

A trial keeps two processors busy. So all are in one file: that is one process, which runs them one after the other.
"""

from __future__ import annotations

import pytest
import pytest_asyncio

from tests.exactly_once.kills import DAEMONS, PARTS, Kills, drawn_seed
from tests.faults.test_exactly_once import MORE

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(3600), pytest.mark.asyncio(loop_scope="session")]

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
    "tables",
    "rejects",
)
EXCHANGING = ("windows_exchange", "diamond", "branches")
LOOSE = "at_least_once"


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def twenty_kills(tmp_path_factory: pytest.TempPathFactory) -> Kills:
    """A trial with other kills in every run."""
    base, parts = tmp_path_factory.mktemp("kills"), (*PARTS, "daemon")
    return await Kills(base, JOBS, seed=drawn_seed(), kills=20, parts=parts, files=2000, pace="2 s", endless=True).run()


@pytest.mark.parametrize("name", JOBS)
async def test_what_a_job_wrote_equals_the_batch_after_twenty_kills(twenty_kills: Kills, name: str) -> None:
    """Kills come at random instants and hit the daemon too. The printed seed repeats them (C11, C14, C40, J12)."""
    twenty_kills.verify(name)


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def twenty_kills_of_exchanges(tmp_path_factory: pytest.TempPathFactory) -> Kills:
    """A trial with other kills in every run."""
    base, parts, names = tmp_path_factory.mktemp("exchanges"), (*PARTS, "daemon"), (*EXCHANGING, LOOSE)
    return await Kills(
        base, names, seed=drawn_seed(), kills=20, parts=parts, files=2000, pace="2 s", endless=True
    ).run()


@pytest.mark.parametrize("name", EXCHANGING)
async def test_what_a_job_of_several_tasks_wrote_equals_the_batch_after_twenty_kills(
    twenty_kills_of_exchanges: Kills, name: str
) -> None:
    """Kills come at random instants and hit the daemon too (C2, C40, J9)."""
    twenty_kills_of_exchanges.verify(name)


async def test_at_least_once_loses_nothing_in_twenty_kills(twenty_kills_of_exchanges: Kills) -> None:
    """The output has the rows of the batch, some of them perhaps more than once (C3)."""
    twenty_kills_of_exchanges.verify_at_least_once(LOOSE)


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def fifty_kills(tmp_path_factory: pytest.TempPathFactory) -> Kills:
    """A long trial of a few jobs, with other kills in every run."""
    base, parts = tmp_path_factory.mktemp("fifty"), (*PARTS, *DAEMONS)
    return await Kills(
        base, MORE, seed=drawn_seed(), kills=50, parts=parts, files=4000, pace="500 ms", endless=True
    ).run()


@pytest.mark.parametrize("name", MORE)
async def test_what_a_job_wrote_equals_the_batch_after_fifty_kills(fifty_kills: Kills, name: str) -> None:
    """Kills of any process, the daemon too, and handovers, in an order that is drawn (A16, C40, J12)."""
    fifty_kills.verify(name)
