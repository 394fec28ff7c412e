"""HDFS: a NameNode and a DataNode on loopback, each in its own JVM, with files that survive a kill."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import aiohttp

from tests.servers.install import HADOOP
from tests.servers.process import HOST, STARTING, Server
from tests.waiting import until

_JVM = ("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
_CLASSES = "org.apache.hadoop.hdfs.server"
_LOG4J = """
log4j.rootLogger=INFO,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c{2}: %m%n
"""
_METRICS = "*.periodMillis=100\n"  # JMX repeats its values for this time, by default 10 s


class _Node(Server):
    """The NameNode or the DataNode."""

    def java(self, *arguments: str) -> tuple[str, ...]:
        scratch = self.directory / "tmp"  # its web server leaves directories there
        scratch.mkdir(parents=True, exist_ok=True)
        return "java", *_JVM, f"-Djava.io.tmpdir={scratch}", "-cp", f"conf:.:{HADOOP}/*", *arguments

    def write_configuration(self, values: Mapping[str, object]) -> None:
        conf = self.directory / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        for webapp in ("hdfs", "datanode"):  # no jar has their pages, and no server starts without a place for them
            (self.directory / "webapps" / webapp / "WEB-INF").mkdir(parents=True, exist_ok=True)
        (conf / "log4j.properties").write_text(_LOG4J)
        (conf / "hadoop-metrics2.properties").write_text(_METRICS)
        lines = [
            f"<property><name>{name}</name><value>{escape(str(value))}</value></property>"
            for name, value in values.items()
        ]
        for file in ("core-site.xml", "hdfs-site.xml"):  # Hadoop's defaults for the second override the first
            (conf / file).write_text("\n".join(["<configuration>", *lines, "</configuration>"]))

    async def bean(self, name: str) -> Mapping[str, Any]:
        """Return what the node reports by JMX. Empty if it has no such bean yet."""
        url = f"http://{HOST}:{self._ports['http']}/jmx"
        async with aiohttp.ClientSession() as session, session.get(url, params={"qry": f"Hadoop:{name}"}) as response:
            beans = (await response.json())["beans"]
        return beans[0] if beans else {}


class DataNode(_Node):
    name = "datanode"
    port_names = ("main", "ipc", "http")

    def __init__(self, directory: Path, namenode: Hdfs) -> None:
        super().__init__(directory)
        self._namenode = namenode

    @classmethod
    def missing(cls) -> str | None:
        return Hdfs.missing()

    @property
    def placed(self) -> bool:
        """Whether it was started before, and so keeps its ports."""
        return bool(self._ports)

    @property
    def runs(self) -> bool:
        return self._process is not None

    def command(self, ports: Mapping[str, int]) -> Sequence[str]:
        self.write_configuration(
            {
                "fs.defaultFS": self._namenode.authority_uri,
                "dfs.datanode.data.dir": f"file://{self.directory}/data",
                "dfs.datanode.address": f"{HOST}:{ports['main']}",
                "dfs.datanode.ipc.address": f"{HOST}:{ports['ipc']}",
                "dfs.datanode.http.address": f"{HOST}:{ports['http']}",
                "dfs.heartbeat.interval": 1,
                "ipc.client.connect.retry.interval": 100,  # in ms; the NameNode may start later
                "ipc.client.connect.max.retries": 600,
            }
        )
        return self.java(f"{_CLASSES}.datanode.DataNode")

    async def answers(self) -> bool:
        found = json.loads((await self.bean("service=DataNode,name=DataNodeInfo")).get("BPServiceActorInfo", "[]"))
        return bool(found) and all(actor["ActorState"] == "RUNNING" for actor in found)


class Hdfs(_Node):
    """The NameNode with its DataNode. Each can be killed, and started again alone with its files."""

    name = "hdfs"
    port_names = ("main", "http")

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.datanode = DataNode(directory / "datanode", self)

    @classmethod
    def missing(cls) -> str | None:
        if not HADOOP.is_dir():
            return "HDFS is not installed: make servers (with Maven)"
        return None if shutil.which("java") else "HDFS needs java"

    @property
    def authority(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def authority_uri(self) -> str:
        return f"hdfs://{self.authority}"

    def command(self, ports: Mapping[str, int]) -> Sequence[str]:
        self.write_configuration(
            {
                "fs.defaultFS": f"hdfs://{HOST}:{ports['main']}",
                "dfs.namenode.name.dir": f"file://{self.directory}/name",
                "dfs.namenode.http-address": f"{HOST}:{ports['http']}",
                "dfs.replication": 1,
                "dfs.heartbeat.interval": 1,
                "dfs.namenode.safemode.extension": 0,
                "dfs.namenode.redundancy.considerLoad": "false",  # there is only one DataNode
                "dfs.namenode.fs-limits.min-block-size": 65536,
            }
        )
        namenode = f"{_CLASSES}.namenode.NameNode"
        if (self.directory / "name" / "current" / "VERSION").exists():
            return self.java(namenode)
        format_first = '"$@" -format -force -nonInteractive && exec "$@"'
        return "sh", "-c", format_first, "sh", *self.java(namenode)

    async def answers(self) -> bool:
        return "FSState" in await self._state()

    async def prepare(self) -> None:
        await until(self._operational, "HDFS is operational", timeout=STARTING, pause=0.02)

    async def _start(self) -> None:
        datanode = asyncio.create_task(self._start_datanode(), name="start of a DataNode")  # each takes seconds
        try:
            await super()._start()
            await datanode
        finally:
            datanode.cancel()
            await asyncio.wait({datanode})

    async def kill(self) -> None:
        """Kill both."""
        await self.kill_datanode()
        await self.kill_namenode()

    async def kill_namenode(self) -> None:
        await super().kill()

    async def kill_datanode(self) -> None:
        await self.datanode.kill()

    async def restart_namenode(self) -> None:
        """Restart the NameNode. Return when it has left safe mode and knows the DataNode."""
        await self.kill_namenode()
        await self._start()

    async def restart_datanode(self) -> None:
        """Restart the DataNode. Return when the NameNode knows it."""
        await self.datanode.restart()

    async def _start_datanode(self) -> None:
        if not self.datanode.placed:
            await self.datanode.start()
        elif not self.datanode.runs:
            await self.datanode.restart()

    async def _operational(self) -> bool:
        try:
            state = await self._state()
        except aiohttp.ClientError:
            return False
        return state.get("FSState") == "Operational" and state.get("NumLiveDataNodes") == 1

    async def _state(self) -> Mapping[str, Any]:
        return await self.bean("service=NameNode,name=FSNamesystemState")
