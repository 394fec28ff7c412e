"""Apicurio Registry, by the HTTP API of Confluent's Schema Registry. It keeps all schemas in memory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from tests.servers.install import SCHEMA_REGISTRY
from tests.servers.process import HOST, Server

_JVM = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Djava.net.preferIPv4Stack=true",
)
_TYPE = {"Content-Type": "application/vnd.schemaregistry.v1+json"}


class Apicurio(Server):
    """Takes 200 MB and some seconds to start."""

    name = "Apicurio Registry"
    durable = False

    @classmethod
    def missing(cls) -> str | None:
        if not SCHEMA_REGISTRY.is_dir():
            return "Apicurio Registry is not installed: make servers (with Maven)"
        return None if shutil.which("java") else "Apicurio Registry needs java"

    @property
    def url(self) -> str:
        return f"{self.endpoint}{self.path}"

    @property
    def path(self) -> str:
        return "/apis/ccompat/v7"

    def command(self, ports: Mapping[str, int]) -> Sequence[str]:
        jar = next(SCHEMA_REGISTRY.glob("*-runner.jar"))
        settings = (f"-Dquarkus.http.host={HOST}", f"-Dquarkus.http.port={ports['main']}")
        return "java", *_JVM, *settings, "-jar", str(jar)

    async def answers(self) -> bool:
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/subjects") as answer:
            return answer.status == 200

    async def register(self, subject: str, schema: Any, references: Sequence[Mapping[str, Any]] = ()) -> int:
        """Add a version of a subject. Return the id of the schema."""
        content = {"schema": json.dumps(schema), "references": list(references)}
        path = f"{self.url}/subjects/{subject}/versions"
        async with aiohttp.ClientSession() as session, session.post(path, json=content, headers=_TYPE) as answer:
            assert answer.status == 200, await answer.text()
            return int((await answer.json(content_type=None))["id"])
