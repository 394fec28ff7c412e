from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from minflinkd.config.options import Item
from minflinkd.config.origin import Layer, Origin
from minflinkd.ha.service import Member
from minflinkd.ha.standing import Standing
from minflinkd.metrics.registry import Metrics
from minflinkd.metrics.samples import LeadershipSample
from minflinkd.rest.backend import Backend
from minflinkd.rest.cluster import About
from minflinkd.rest.guard import Limits
from minflinkd.rest.identity.access import Access
from minflinkd.rest.schemas.answer import FULL_ERRORS
from minflinkd.rest.server import Entrance, Listening, LogSources, RestServer
from minflinkd.rpc.local import LocalNetwork
from minflinkd.runtime.log_tail import Kept
from tests.component.rest.described import described
from tests.unit.rest.parties import STARTED, Dispatcher, ResourceManager, TaskManager

OPTIONS = [
    Item("rest.port", "8081", is_default=True, sensitive=False),
    Item("security.token-secret", "hunter2", False, True, (Origin(Layer.FILE, "/etc/minflinkd/minflinkd.yaml:12"),)),
]


@pytest.fixture
async def network() -> AsyncIterator[LocalNetwork]:
    network = LocalNetwork()
    yield network
    await network.aclose()


@pytest.fixture
def dispatcher(network: LocalNetwork) -> Dispatcher:
    return Dispatcher(network)


@pytest.fixture
def resource_manager(network: LocalNetwork) -> ResourceManager:
    return ResourceManager(network)


@pytest.fixture
def task_manager(network: LocalNetwork) -> TaskManager:
    return TaskManager(network)


@pytest.fixture
def stopped() -> asyncio.Event:
    """Set when the daemon is told to end."""
    return asyncio.Event()


STANDING = Standing(
    Member(name="alpha:17", url="http://alpha:8081", leading_since_ms=STARTED, epoch=7),
    (Member(name="beta:18", url="http://beta:8081"),),
)


@pytest.fixture
def metrics(network: LocalNetwork) -> Metrics:
    return Metrics(
        version="0.1.0",
        rpc=network.figures,
        leadership=lambda: LeadershipSample(since_ms=STARTED, epoch=7, standbys=1, without_leader=2.5, adopted_tasks=3),
    )


@pytest.fixture
async def server(
    network: LocalNetwork,
    metrics: Metrics,
    dispatcher: Dispatcher,
    resource_manager: ResourceManager,
    task_manager: TaskManager,
    stopped: asyncio.Event,
    tmp_path: Path,
) -> AsyncIterator[RestServer]:
    server = RestServer(
        Backend(
            network,
            timeout=0.2,
            submit_timeout=lambda: dispatcher.patience,
            stop=stopped.set,
            uploads=tmp_path / "uploads",
        ),
        listening=Listening(host="127.0.0.1", port=0),
        entrance=Entrance(access=Access.open_to_all()),
        about=About(
            version="0.1.0",
            config_items=lambda: OPTIONS,
            blob_url=lambda: "http://127.0.0.1:50100",
            standing=lambda: STANDING,
            log_tail=lambda: Kept(1000, b"the daemon's last words\n"),
        ),
        metrics=metrics,
        limits=Limits(body_bytes=64 * 1024, body_seconds=0.2),
        logs=LogSources(ended=tmp_path / "taskmanagers"),
    )
    async with server:
        yield server


@pytest.fixture
async def http(server: RestServer) -> AsyncIterator[aiohttp.ClientSession]:
    """All of its answers are compared with what `/openapi.json` says (E5)."""
    traces = [described(server.routes)]
    headers = {"Accept": FULL_ERRORS}
    async with aiohttp.ClientSession(
        server.url, raise_for_status=False, trace_configs=traces, headers=headers
    ) as session:
        yield session
