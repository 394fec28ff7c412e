"""The session child that the tests of a module share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.servers.install import KAFKA_CONNECTOR, POSTGRES_DRIVER
from tests.spark.session_child import Child


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def child(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Child]:
    """One child a module. Maintenance runs all the time, so that a test of seconds sees what hours would show."""
    child = Child(tmp_path_factory.mktemp("child"))
    conf = {
        "spark.sql.streaming.stateStore.maintenanceInterval": "200ms",
        "spark.sql.streaming.stateStore.minDeltasForSnapshot": "3",
        "spark.sql.streaming.minBatchesToRetain": "8",
    }
    try:
        await child.start(conf)
        yield child
    finally:
        await child.aclose()


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def connected(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Child]:
    """One child for all tests of sinks, with what Spark needs to speak to a database and to a broker."""
    jars = [str(jar) for home in (POSTGRES_DRIVER, KAFKA_CONNECTOR) for jar in sorted(home.glob("*.jar"))]
    child = Child(tmp_path_factory.mktemp("connected"))
    try:
        await child.start({"spark.jars": ",".join(jars)} if jars else {})
        yield child
    finally:
        await child.aclose()
