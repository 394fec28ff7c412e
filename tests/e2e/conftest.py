"""One daemon with one warm TaskManager for all end-to-end tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.attempt_guard import guarding
from tests.cluster import Cluster, running_cluster


@pytest.fixture(scope="session", autouse=True)
def guard() -> Iterator[None]:
    """Check that no restore reads what an earlier attempt has left, whichever daemon a test starts."""
    with guarding():
        yield


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    settings = {
        "resourcemanager.standby-taskmanagers": 1,
        "resourcemanager.max-taskmanagers": 1,
    }
    async with running_cluster(tmp_path_factory.mktemp("cluster"), **settings) as cluster:
        yield cluster
