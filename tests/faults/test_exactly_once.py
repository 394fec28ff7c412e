"""For each job of a set, what its sinks hold equals the batch result of the same query over the same input."""

from __future__ import annotations

import os
import random

import pytest
import pytest_asyncio

from tests.exactly_once.kills import DAEMONS, PARTS, Kills

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800), pytest.mark.asyncio(loop_scope="session")]

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
EXCHANGING = ("windows_exchange", "diamond", "branches")
LOOSE = "at_least_once"
# The others are killed in `make test-all`, and drawn by tests/shapes.
SOME = ("windows", "deduplication", "two_sinks", "windows_exchange")
SEED = "KILL_SEED"  # repeats the kills of a long trial


def seed() -> int:
    return int(os.environ.get(SEED) or random.randrange(10**6))


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def three_kills(tmp_path_factory: pytest.TempPathFactory) -> Kills:
    """A trial with the same kills in every run."""
    base = tmp_path_factory.mktemp("kills")
    return await Kills(base, SOME, seed=3, kills=3, files=1000, pace="500 ms", endless=True).run()


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def twenty_kills(tmp_path_factory: pytest.TempPathFactory) -> Kills:
    """A trial with other kills in every run."""
    base, parts = tmp_path_factory.mktemp("kills"), (*PARTS, "daemon")
    return await Kills(base, JOBS, seed=seed(), kills=20, parts=parts, files=150, pace="1 s").run()


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def twenty_kills_of_exchanges(tmp_path_factory: pytest.TempPathFactory) -> Kills:
    base, parts, names = tmp_path_factory.mktemp("exchanges"), (*PARTS, "daemon"), (*EXCHANGING, LOOSE)
    return await Kills(base, names, seed=seed(), kills=20, parts=parts, files=160, pace="2 s").run()


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def fifty_kills(tmp_path_factory: pytest.TempPathFactory) -> Kills:
    """A long trial of a few jobs, with other kills in every run."""
    base, parts, names = tmp_path_factory.mktemp("fifty"), (*PARTS, *DAEMONS), SOME
    return await Kills(base, names, seed=seed(), kills=50, parts=parts, files=4000, pace="500 ms", endless=True).run()


@pytest.mark.parametrize("name", SOME)
async def test_what_a_job_wrote_equals_the_batch_after_three_kills(three_kills: Kills, name: str) -> None:
    """The rows are equal after kills of the TaskManager, its session child and its JVM.

    So they are for a job of several tasks, although each restart has new exchanges (C2, C11, C14, C40, J9, J12).
    """
    three_kills.verify(name)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", JOBS)
async def test_what_a_job_wrote_equals_the_batch_after_twenty_kills(twenty_kills: Kills, name: str) -> None:
    """Kills come at random instants and hit the daemon too. The printed seed repeats them (C11, C14, C40, J12)."""
    twenty_kills.verify(name)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", EXCHANGING)
async def test_what_a_job_of_several_tasks_wrote_equals_the_batch_after_twenty_kills(
    twenty_kills_of_exchanges: Kills, name: str
) -> None:
    """Kills come at random instants and hit the daemon too (C2, C40, J9)."""
    twenty_kills_of_exchanges.verify(name)


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_at_least_once_loses_nothing_in_twenty_kills(twenty_kills_of_exchanges: Kills) -> None:
    """The output has the rows of the batch, some of them perhaps more than once (C3)."""
    twenty_kills_of_exchanges.verify_at_least_once(LOOSE)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SOME)
async def test_what_a_job_wrote_equals_the_batch_after_fifty_kills(fifty_kills: Kills, name: str) -> None:
    """Kills of any process, the daemon too, and handovers, in an order that is drawn (A16, C40, J12)."""
    fifty_kills.verify(name)
