"""Daemons that take part in an election, in the process of the test, as on several hosts."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp

from minflinkd.config import load_config
from minflinkd.daemon_elected import ElectedDaemon, new_daemon
from minflinkd.rest.schemas import Health
from tests.cluster import free_port
from tests.tokens import bearer
from tests.waiting import until


class Host:
    """One of the hosts of a cluster."""

    def __init__(self, base: Path, name: str, servers: str, **options: str) -> None:
        self.directory = base / name
        self.directory.mkdir(parents=True, exist_ok=True)
        secret = self.directory / "secret"
        secret.write_text(options.pop("secret", "s" * 64))
        secret.chmod(0o600)
        port = free_port()
        self.options = {
            "process.working-dir": str(self.directory / "state"),
            "high-availability.type": "zookeeper",
            "high-availability.zookeeper.quorum": servers,
            "high-availability.cluster-id": base.name,
            "high-availability.storageDir": f"file://{base / 'ha'}",
            "high-availability.zookeeper.client.session-timeout": "2 s",
            "high-availability.renewal-interval": "200 ms",
            "execution.checkpointing.dir": f"file://{base / 'checkpoints'}",
            "security.secret-file": str(secret),
            "jobmanager.rpc.port": str(port),
            "jobmanager.rpc.addresses": f"127.0.0.1:{port}",
            "rest.port": "0",
            "resourcemanager.standby-taskmanagers": "0",
            **options,
        }

    @contextlib.asynccontextmanager
    async def daemon(self) -> AsyncIterator[ElectedDaemon]:
        daemon = new_daemon(load_config(None, {}, self.options), {})
        assert isinstance(daemon, ElectedDaemon)
        async with daemon:
            yield daemon


async def health(daemon: ElectedDaemon) -> tuple[int, Health]:
    """Return what a load balancer sees."""
    async with aiohttp.ClientSession() as session, session.get(f"{daemon.info.url}/health/ready") as answer:
        return answer.status, Health(**await answer.json())


async def leading(daemon: ElectedDaemon) -> None:
    async def leads() -> bool:
        # Its server answers a moment before it has noted that all its parts have started.
        return (await health(daemon))[1].role == "leading" and daemon.leads

    await until(leads, "the daemon leads")


async def not_ready(daemon: ElectedDaemon, reason: str) -> None:
    """Wait until the daemon says why it is not ready."""
    found: tuple[str, ...] = ()

    async def says_so() -> bool:
        nonlocal found
        status, answer = await health(daemon)
        found = tuple(answer.reasons)
        return status == 503 and any(reason in each for each in found)

    with contextlib.suppress(AssertionError):
        await until(says_so, reason, timeout=10)
    assert any(reason in each for each in found), found


async def metrics(daemon: ElectedDaemon) -> dict[str, float]:
    """Return the metrics without labels, by their names."""
    async with (
        aiohttp.ClientSession(daemon.info.url, headers=bearer(daemon.state_directory)) as session,
        session.get("/metrics") as answer,
    ):
        lines = (await answer.text()).splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs if "{" not in name}
