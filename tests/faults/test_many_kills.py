"""What jobs wrote equals their batch after dozens of kills of whatever they run on.

A trial keeps two processors busy. So all are in one file: that is one process, which runs them one after the other.
A kill of eleven jobs takes about a minute. Each run draws other kills; `KILLS=50` in the environment makes it longer.
"""

from __future__ import annotations

import os

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
KILLS = int(os.environ.get("KILLS", "12"))  # in a trial; twice as many in that with handovers, of fewer jobs


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def many_kills(tmp_path_factory: pytest.TempPathFactory) -> Kills:
    """A trial with other kills in every run."""
    base, parts = tmp_path_factory.mktemp("kills"), (*PARTS, "daemon")
    return await Kills(
        base, JOBS, seed=drawn_seed(), kills=KILLS, parts=parts, files=2000, pace="2 s", endless=True
    ).run()


@pytest.mark.parametrize("name", JOBS)
async def test_what_a_job_wrote_equals_the_batch_after_many_kills(many_kills: Kills, name: str) -> None:
    """Kills come at random instants and hit the daemon too. The printed seed repeats them (C11, C14, C40, J12)."""
    many_kills.verify(name)


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def many_kills_of_exchanges(tmp_path_factory: pytest.TempPathFactory) -> Kills:
    """A trial with other kills in every run."""
    base, parts, names = tmp_path_factory.mktemp("exchanges"), (*PARTS, "daemon"), (*EXCHANGING, LOOSE)
    return await Kills(
        base, names, seed=drawn_seed(), kills=KILLS, parts=parts, files=2000, pace="2 s", endless=True
    ).run()


@pytest.mark.parametrize("name", EXCHANGING)
async def test_what_a_job_of_several_tasks_wrote_equals_the_batch_after_many_kills(
    many_kills_of_exchanges: Kills, name: str
) -> None:
    """Kills come at random instants and hit the daemon too (C2, C40, J9)."""
    many_kills_of_exchanges.verify(name)


async def test_at_least_once_loses_nothing_in_many_kills(many_kills_of_exchanges: Kills) -> None:
    """The output has the rows of the batch, some of them perhaps more than once (C3)."""
    many_kills_of_exchanges.verify_at_least_once(LOOSE)


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def kills_and_handovers(tmp_path_factory: pytest.TempPathFactory) -> Kills:
    """A longer trial of a few jobs, with other kills in every run."""
    base, parts = tmp_path_factory.mktemp("handovers"), (*PARTS, *DAEMONS)
    return await Kills(
        base, MORE, seed=drawn_seed(), kills=2 * KILLS, parts=parts, files=4000, pace="500 ms", endless=True
    ).run()


@pytest.mark.parametrize("name", MORE)
async def test_what_a_job_wrote_equals_the_batch_after_kills_and_handovers(
    kills_and_handovers: Kills, name: str
) -> None:
    """Kills of any process, the daemon too, and handovers, in an order that is drawn (A16, C40, J12)."""
    kills_and_handovers.verify(name)
