"""Large messages between a daemon and a TaskManager, over TCP, with a real BlobServer, HA store and cache (B2, B3)."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from minflinkd.blob.cache import BlobCache
from minflinkd.blob.client import BlobClient
from minflinkd.blob.exchange import DaemonExchange, TaskManagerExchange
from minflinkd.blob.offloading import OffloadingNetwork
from minflinkd.blob.server import BlobOptions, BlobServer
from minflinkd.rpc import messages as m
from minflinkd.rpc.connection import MAX_FRAME
from minflinkd.rpc.local import LocalNetwork
from minflinkd.rpc.network import Unreachable
from minflinkd.rpc.tcp import RpcServer, RpcUplink
from minflinkd.storage.registry import Storages
from tests.unit.blob.messages import FIRST, JOB, MASTER, THERE, Party, acknowledgement, deployment
from tests.waiting import until

SECRET = b"s" * 64
FILES = 200 * 10 * 5  # in a snapshot of 200 partitions of 10 stateful operators


@dataclass
class World:
    base: Path
    server: BlobServer
    client: BlobClient
    cache: BlobCache
    daemon: OffloadingNetwork
    there: OffloadingNetwork
    master: Party
    task_manager: Party

    async def deploy(self, request: m.DeployTask) -> None:
        await self.daemon.ask(THERE, request, timeout=20.0, fence=FIRST)

    async def acknowledge(self, request: m.AcknowledgeCheckpoint, timeout: float = 20.0) -> None:
        await self.there.ask(MASTER, request, timeout=timeout, fence=FIRST)

    def kept(self, kind: str, store: str = "server") -> list[str]:
        directory = self.base / store / JOB
        return [key for key in os.listdir(directory) if key.startswith(kind)] if directory.is_dir() else []

    async def until_kept(self, kind: str, count: int) -> None:
        await until(lambda: len(self.kept(kind)) == count, f"{count} blobs of kind {kind}")


@asynccontextmanager
async def running(base: Path, retention: float = 3600.0) -> AsyncIterator[World]:
    storages = Storages()
    ha_store = storages.at(str(base / "ha"))
    daemon_network, there_network = LocalNetwork(), LocalNetwork()
    async with AsyncExitStack() as stack:
        for last in (daemon_network.aclose, there_network.aclose, storages.aclose):
            stack.push_async_callback(last)
        options = BlobOptions(directory=base / "server", retention=retention)
        server = await stack.enter_async_context(BlobServer(options=options, ha_store=ha_store))
        await server.take_stock({})
        client = await stack.enter_async_context(BlobClient(server.url, retries=1, pause=0.01))
        cache = BlobCache(directory=base / "cache", client=client, ha_store=ha_store)
        await stack.enter_async_context(cache)
        rpc = await stack.enter_async_context(RpcServer(daemon_network, secret=SECRET))
        host, port = rpc.endpoint
        uplink = RpcUplink(there_network, address=THERE, secret=SECRET, daemon=(host, port))
        await stack.enter_async_context(uplink)
        daemon = OffloadingNetwork(daemon_network, DaemonExchange(server), minsize=1 << 20)
        there = OffloadingNetwork(there_network, TaskManagerExchange(client, cache), minsize=1 << 20)
        await stack.enter_async_context(daemon)
        await stack.enter_async_context(there)
        master, task_manager = Party(MASTER, FIRST), Party(THERE)
        daemon.attach(master.mailbox)
        there.attach(task_manager.mailbox)
        async with asyncio.timeout(5):
            await uplink.connected.wait()
        yield World(base, server, client, cache, daemon, there, master, task_manager)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with running(tmp_path) as world:
        yield world


async def test_a_deployment_is_fetched_from_the_ha_store_and_not_from_the_daemon(world: World) -> None:
    """So a hundred TaskManagers do not ask the daemon when they get their deployments (B2)."""
    request = deployment(files=FILES)
    await world.deploy(request)
    assert world.task_manager.got == [request]
    assert len(world.kept("p", "ha")) == 1
    assert world.cache.statistics().from_ha == 1
    assert world.server.statistics().sent_bytes == 0


async def test_a_redeployment_fetches_only_what_is_new(world: World) -> None:
    """The job's context and graph are on the TaskManager's disk already (B3)."""
    first, second = (deployment(n, job=2 << 20, graph=2 << 20, files=FILES) for n in range(2))
    await world.deploy(first)
    assert world.cache.statistics().from_ha == 3
    await world.deploy(second)
    assert world.task_manager.got == [first, second]
    assert (world.cache.statistics().from_ha, world.cache.statistics().hits) == (4, 2)
    assert len(world.kept("p")) == 4


async def test_without_its_copy_a_deployment_comes_from_the_blobserver(world: World) -> None:
    """B8."""
    leave = world.server.put

    async def put_and_lose(*blob: object) -> object:
        key = await leave(*blob)  # type: ignore[arg-type]  # handed on as it came
        await asyncio.to_thread(shutil.rmtree, world.base / "ha")
        return key

    world.server.put = put_and_lose  # type: ignore[method-assign,assignment]
    request = deployment(files=FILES)
    await world.deploy(request)
    assert world.task_manager.got == [request]
    assert world.server.statistics().sent_bytes > 1 << 20


async def test_a_deployment_that_no_frame_would_hold_arrives(world: World) -> None:
    request = deployment(job=MAX_FRAME + 1, files=0)
    await world.deploy(request)
    assert world.task_manager.got == [request]


async def test_an_acknowledgement_leaves_nothing_anywhere(world: World) -> None:
    """Blobs of an acknowledgement are deleted on delivery, and never written to the HA store (B2)."""
    request = acknowledgement(files=FILES)
    await world.acknowledge(request)
    assert world.master.got == [request]
    assert world.server.statistics().received_bytes > 1 << 20
    await world.until_kept("t", 0)
    assert world.kept("t", "ha") == []


async def test_an_acknowledgement_without_a_blobserver_is_unanswered_until_there_is_one(world: World) -> None:
    """Without a BlobServer, the acknowledgement is repeated as if it had been lost (C12)."""
    url, world.client.url = world.client.url, "http://127.0.0.1:9"
    request = acknowledgement(files=FILES)
    with pytest.raises(Unreachable):
        await world.acknowledge(request, timeout=1.0)
    world.client.url = url
    await world.acknowledge(request)
    assert world.master.got == [request]


async def test_what_a_taskmanager_left_before_it_died_goes_after_a_while(tmp_path: Path) -> None:
    """Nobody was told about it (B16, B18)."""
    async with running(tmp_path, retention=0.2) as world:
        await TaskManagerExchange(world.client, world.cache).leave(JOB, b"x" * 1000, lasting=False)
        await world.until_kept("t", 0)
