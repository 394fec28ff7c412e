"""One daemon for all fault tests, with a warm standby. The daemon itself replaces what a test breaks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.attempt_guard import guarding
from tests.cluster import Cluster, running_cluster
from tests.faults.hot_restarts import ONE
from tests.windows_job import WindowsJob


@pytest.fixture(scope="session", autouse=True)
def guard() -> Iterator[None]:
    """Check that no restore reads what an earlier attempt has left, whichever daemon a test starts."""
    with guarding():
        yield


@pytest_asyncio.fixture(loop_scope="session")
async def cluster(shared: Cluster) -> AsyncIterator[Cluster]:
    """Cancel a test's jobs at its end."""
    yield shared
    await shared.cancel_all()


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    base = tmp_path_factory.mktemp("cluster")
    settings = {
        "resourcemanager.standby-taskmanagers": 2,
        "resourcemanager.max-taskmanagers": 2,  # two JVMs at a time are what two cores carry
        "taskmanager.numberOfTaskSlots": 4,
        "taskmanager.session.stopped-timeout": "2 s",
        "heartbeat.timeout": "10 s",  # however busy two cores are, only what a test stops is silent for so long
        "blob.offload.minsize": "1 KiB",  # every deployment, and most acknowledgements, travel as blobs
    }
    async with running_cluster(base, **settings) as cluster:
        yield cluster


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def one(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """A daemon with one TaskManager for hot restarts."""
    async with running_cluster(tmp_path_factory.mktemp("one"), **ONE) as cluster:
        await cluster.await_ready(1)
        yield cluster


@pytest.fixture(scope="session")
def windows(tmp_path_factory: pytest.TempPathFactory) -> WindowsJob:
    job = WindowsJob(tmp_path_factory.mktemp("windows"), pace="400 ms")  # 18 s at least
    job.write_events()
    return job


@pytest.fixture(scope="session")
def truth(windows: WindowsJob) -> list[tuple[Any, ...]]:
    """The result of the same query as a batch."""
    return windows.batch()


@pytest.fixture
def out(windows: WindowsJob, request: pytest.FixtureRequest) -> Path:
    return windows.base / "".join(c for c in request.node.name if c.isalnum())[:60]
