"""For each job of a set, what its sinks hold equals the batch result of the same query over the same input."""

from __future__ import annotations

import pytest
import pytest_asyncio

from tests.exactly_once.kills import Kills

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800), pytest.mark.asyncio(loop_scope="session")]

# Others are killed in test_many_kills, and drawn by tests/shapes.
SOME = ("tables", "windows_exchange")
MORE = (*SOME, "windows", "rejects", "deduplication", "two_sinks")  # of the longer trials


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def three_kills(tmp_path_factory: pytest.TempPathFactory) -> Kills:
    """A trial with the same kills in every run."""
    base = tmp_path_factory.mktemp("kills")
    return await Kills(base, SOME, seed=3, kills=3, files=1000, pace="500 ms", endless=True).run()


@pytest.mark.parametrize("name", SOME)
async def test_what_a_job_wrote_equals_the_batch_after_three_kills(three_kills: Kills, name: str) -> None:
    """The rows are equal after kills of the TaskManager, its session child and its JVM.

    So they are for a job of several tasks, although each restart has new exchanges (C2, C11, C14, C40, J9, J12).
    """
    three_kills.verify(name)
