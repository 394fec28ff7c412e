"""One daemon with one warm TaskManager for all end-to-end tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.cluster import Cluster, running_cluster


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    settings = {
        "resourcemanager.standby-taskmanagers": 1,
        "resourcemanager.max-taskmanagers": 1,
    }
    async with running_cluster(tmp_path_factory.mktemp("cluster"), **settings) as cluster:
        yield cluster
