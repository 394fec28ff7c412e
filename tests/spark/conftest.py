"""The session children that all tests of this directory share: a start costs more than most tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from minflinkd.taskmanager.child import protocol as p
from tests.servers.install import KAFKA_CONNECTOR, MYSQL_DRIVERS, POSTGRES_DRIVER
from tests.spark.session_child import Child


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def shared_child(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Child]:
    """A session child, warmed up as in production.

    Maintenance runs all the time, so that a test of seconds sees what otherwise takes hours.
    """
    child = Child(tmp_path_factory.mktemp("child"))
    conf = {
        "spark.sql.streaming.stateStore.maintenanceInterval": "200ms",
        "spark.sql.streaming.stateStore.minDeltasForSnapshot": "3",
        "spark.sql.streaming.minBatchesToRetain": "8",
    }
    try:
        await child.start(conf, warm_up=True)
        yield child
    finally:
        await child.aclose()


@pytest_asyncio.fixture(loop_scope="session")
async def child(shared_child: Child) -> AsyncIterator[Child]:
    """The shared child. What a test leaves running is stopped at its end."""
    yield shared_child
    for attempt in (await shared_child.ask(p.Ping())).attempts:
        await shared_child.stop(attempt)


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def connected(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Child]:
    """One child for all tests of sinks, with the jars that Spark needs for databases and for a broker."""
    jars = [
        str(jar) for home in (POSTGRES_DRIVER, MYSQL_DRIVERS, KAFKA_CONNECTOR) for jar in sorted(home.glob("*.jar"))
    ]
    child = Child(tmp_path_factory.mktemp("connected"))
    try:
        await child.start({"spark.jars": ",".join(jars)} if jars else {})
        yield child
    finally:
        await child.aclose()
