"""Two daemons of one cluster that ZooKeeper chooses the leader of, in processes of their own, as on two hosts."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import aiohttp
import psutil

from tests.cluster import Cluster, free_port, running_cluster
from tests.waiting import until


class Pair:
    """The daemons `a` and `b`, each in a directory of its own. `servers`: ZooKeeper's, as each reaches them."""

    def __init__(self, base: Path, servers: Mapping[str, str], **settings: object) -> None:
        self.base = base
        self.servers = servers
        self.daemons: dict[str, Cluster] = {}
        self._ports = {name: free_port() for name in servers}
        cluster = secrets.token_hex(8)  # tests share a server
        self.root = f"/minflinkd/{cluster}"  # the cluster's node
        self._settings: dict[str, object] = {
            "high-availability.type": "zookeeper",
            "high-availability.cluster-id": cluster,
            "high-availability.storageDir": f"file://{base / 'ha'}",
            "execution.checkpointing.dir": f"file://{base / 'checkpoints'}",
            "high-availability.zookeeper.client.session-timeout": "2 s",
            "high-availability.renewal-interval": "300 ms",
            "security.secret-file": str(base / "secret"),
            "jobmanager.rpc.addresses": ",".join(f"127.0.0.1:{port}" for port in self._ports.values()),
            "resourcemanager.standby-taskmanagers": 0,
            "heartbeat.interval": "500 ms",
            "heartbeat.timeout": "3 s",
            **settings,
        }

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[Cluster, Cluster]]:
        """Start both. The first one leads."""
        self.base.mkdir(parents=True, exist_ok=True)
        (self.base / "secret").write_text("s" * 64)
        (self.base / "secret").chmod(0o600)
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._end_task_managers)
            for name, port in self._ports.items():
                own = {
                    "high-availability.zookeeper.quorum": self.servers[name],
                    "rest.port": free_port(),
                    "jobmanager.rpc.port": port,
                }
                cluster = running_cluster(self.base / name, **{**self._settings, **own})
                self.daemons[name] = await stack.enter_async_context(cluster)
                await self.leader()
            first, second = self.daemons.values()
            yield first, second

    async def leader(self, *, other_than: Cluster | None = None) -> Cluster:
        """Wait until one leads, and return it."""

        async def found() -> Cluster | None:
            for daemon in self.daemons.values():
                if daemon is not other_than and await role(daemon) == "leading":
                    return daemon
            return None

        return await until(found, "a daemon leads", timeout=60)

    def attempts(self) -> set[str]:
        """Return the attempts that have a directory on some TaskManager."""
        return {p.name for p in self.base.glob("?/state/taskmanagers/*/state/attempts/*") if p.is_dir()}

    def micro_batches(self) -> list[int]:
        """Return the numbers of the micro-batches that Spark has committed on any TaskManager, in order."""
        commits = self.base.glob("?/state/taskmanagers/*/state/attempts/**/commits/*")
        return sorted({int(path.name) for path in commits if path.name.isdigit()})

    def _end_task_managers(self) -> None:
        """Kill the TaskManagers that a killed daemon has left behind."""
        files = {str(file) for file in self.base.glob("?/state/taskmanagers/*/taskmanager.json")}
        for process in psutil.process_iter(["cmdline"]):
            if files & set(process.info["cmdline"] or ()):
                for each in [*process.children(recursive=True), process]:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        each.kill()


async def role(daemon: Cluster) -> str:
    """Return `leading`, `standby`, or nothing if it does not answer."""
    timeout = aiohttp.ClientTimeout(total=1)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{daemon.url}/health/ready") as answer,
        ):
            return str((await answer.json())["role"])
    except (OSError, TimeoutError, aiohttp.ClientError):
        return ""


async def stands_by(daemon: Cluster) -> None:
    async def does() -> bool:
        return await role(daemon) == "standby"

    await until(does, f"{daemon.launch.base.name} stands by", timeout=60)
