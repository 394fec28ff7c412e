"""ZooKeeper from Spark's own jars: one server, or an ensemble of three, on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.servers.process import HOST, Server, free_ports

TICK = 200  # ms; a session lasts 2 to 20 ticks unless told otherwise


def _jars() -> str:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "jars" / "*")


class ZooKeeper(Server):
    """One server. In an ensemble it knows the others' ports for voting."""

    name = "ZooKeeper"
    number = 1
    peers: Mapping[int, tuple[int, int]] = {}  # by number: for followers, for the election
    settings: Sequence[str] = ()  # more lines of zoo.cfg
    flags: Sequence[str] = ()  # more of Java's

    @classmethod
    def missing(cls) -> str | None:
        return None if shutil.which("java") else "ZooKeeper needs Java"

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def command(self, ports: Mapping[str, int]) -> Sequence[str]:
        data = self.directory / "data"
        data.mkdir(exist_ok=True)
        (data / "myid").write_text(f"{self.number}\n")
        lines = [
            f"tickTime={TICK}",
            "minSessionTimeout=400",
            "maxSessionTimeout=60000",
            "initLimit=50",
            "syncLimit=25",
            f"dataDir={data}",
            f"clientPort={ports['main']}",
            f"clientPortAddress={HOST}",
            "admin.enableServer=false",
            "4lw.commands.whitelist=srvr,cons",
            "forceSync=no",
            *self.settings,
            *(f"server.{n}={HOST}:{follow}:{elect}" for n, (follow, elect) in self.peers.items()),
        ]
        file = self.directory / "zoo.cfg"
        file.write_text("\n".join(lines) + "\n")
        quiet = ("-Dlog4j2.level=WARN", "-Djava.net.preferIPv4Stack=true")
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        return ("java", "-Xmx128m", "-XX:+UseSerialGC", *quiet, *self.flags, "-cp", _jars(), main, str(file))

    async def answers(self) -> bool:
        return "Mode:" in await self.ask("srvr")

    async def leads(self) -> bool:
        with contextlib.suppress(OSError, TimeoutError):
            return "Mode: leader" in await self.ask("srvr")
        return False

    async def ask(self, word: str) -> str:
        """Return what the server answers to one of its four-letter words."""
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_connection(HOST, self.port)
            try:
                writer.write(word.encode())
                return (await reader.read()).decode()
            finally:
                writer.close()


class SaslZooKeeper(ZooKeeper):
    """Lets in only who shows a password by SASL (DIGEST-MD5): `minflinkd` with `secret`, or `other` with `other`."""

    name = "ZooKeeper with SASL"
    settings = (
        "authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        "sessionRequireClientSASLAuth=true",
    )

    def command(self, ports: Mapping[str, int]) -> Sequence[str]:
        users = self.directory / "jaas.conf"
        module = "org.apache.zookeeper.server.auth.DigestLoginModule"
        users.write_text(f'Server {{ {module} required user_minflinkd="secret" user_other="other"; }};\n')
        self.flags = (f"-Djava.security.auth.login.config={users}",)
        return super().command(ports)

    async def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        await super().start()


class Ensemble:
    """Three servers that vote."""

    def __init__(self, directory: Path, *, flags: Sequence[str] = ()) -> None:
        names = [f"{n}-{what}" for n in (1, 2, 3) for what in ("follow", "elect")]
        ports = free_ports(names)
        peers = {n: (ports[f"{n}-follow"], ports[f"{n}-elect"]) for n in (1, 2, 3)}
        self.servers = [ZooKeeper(directory / f"zk-{n}") for n in (1, 2, 3)]
        for n, server in zip((1, 2, 3), self.servers, strict=True):
            server.number, server.peers, server.flags = n, peers, flags

    @property
    def address(self) -> str:
        return ",".join(server.address for server in self.servers)

    async def start(self) -> None:
        async with asyncio.TaskGroup() as group:
            for server in self.servers:
                group.create_task(server.start())

    async def kill(self) -> None:
        for server in self.servers:
            await server.kill()

    async def leader(self) -> ZooKeeper:
        for server in self.servers:
            if await server.leads():
                return server
        raise AssertionError("no server of the ensemble leads")
