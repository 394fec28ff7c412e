"""A daemon of another version comes, and a TaskManager stays: with a real daemon, over TCP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from minflinkd import daemon as module
from minflinkd.cli.client import Client
from minflinkd.config import load_config
from minflinkd.daemon import Daemon
from minflinkd.ha import meeting_point
from minflinkd.ha.embedded import cluster_secret
from minflinkd.rpc.local import LocalNetwork
from minflinkd.rpc.network import task_manager
from minflinkd.rpc.protocol_range import ProtocolRange
from minflinkd.rpc.tcp import RpcServer, RpcUplink
from minflinkd.runtime.ids import ResourceId
from tests.cluster import free_port
from tests.task_manager import BareTaskManager
from tests.waiting import until

TM = ResourceId("tm-0123456789ab")
OLD = ProtocolRange(1, 1)


@asynccontextmanager
async def a_task_manager(state: Path, port: int, spoken: ProtocolRange) -> AsyncIterator[BareTaskManager]:
    network = LocalNetwork()
    secret = cluster_secret(state / "cluster.secret")
    address = task_manager(TM)
    async with (
        RpcUplink(network, address=address, secret=secret, daemon=("127.0.0.1", port), spoken=spoken),
        BareTaskManager(TM, network, slots=2, standalone=True) as manager,
    ):
        yield manager
    await network.aclose()


@asynccontextmanager
async def a_daemon(
    state: Path, port: int, spoken: ProtocolRange, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Daemon]:
    """A daemon that is of another version as far as the protocol goes. It hands over when it ends."""
    options = {
        "process.working-dir": str(state),
        "rest.port": "0",
        "resourcemanager.driver": "standalone",
        "jobmanager.rpc.port": str(port),
    }
    with monkeypatch.context() as patch:
        patch.setattr(module, "RpcServer", partial(RpcServer, spoken=spoken))
        patch.setattr(meeting_point, "SPOKEN", spoken)
        async with Daemon(load_config(None, {}, options), {}) as daemon:
            yield daemon
            daemon.hand_over()


async def registered(daemon: Daemon) -> list[tuple[str, int, str]]:
    async with Client(daemon.rest.url) as client:
        return [(tm.id, tm.free_slots, tm.minflinkd.version) for tm in (await client.task_managers()).taskmanagers]


async def test_the_daemon_of_the_next_version_takes_over_a_taskmanager_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They speak what the TaskManager knows. It is the same one as before, with its slots (A15a)."""
    port = free_port()
    with capture_logs():
        async with (
            a_daemon(tmp_path, port, OLD, monkeypatch) as first,
            a_task_manager(tmp_path, port, OLD) as manager,
        ):
            await until(lambda: manager.registered)
            assert manager.registered is not None
            leader = manager.registered.leader_id
            await first.aclose()
            async with a_daemon(tmp_path, port, ProtocolRange(1, 2), monkeypatch) as second:
                await until(lambda: manager.registered and manager.registered.leader_id != leader)
                assert await registered(second) == [(TM, 2, "")]  # it does not tell its version
                assert second.rpc._connections[task_manager(TM)].protocol == 1


async def test_a_daemon_two_versions_on_refuses_a_taskmanager_and_both_say_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not register, and nothing of it is misread (A15a)."""
    port = free_port()
    with capture_logs() as logs:
        async with (
            a_daemon(tmp_path, port, ProtocolRange(2, 3), monkeypatch) as daemon,
            a_task_manager(tmp_path, port, OLD) as manager,
        ):
            await until(lambda: [x for x in logs if f"{TM} speaks version 1 of" in str(x)])
            await until(lambda: [x for x in logs if "the daemon speaks version 2 to 3 of" in str(x)])
            assert manager.registered is None
            assert await registered(daemon) == []
