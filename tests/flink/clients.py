"""Flink's own clients, unmodified: its message classes read our answers, and its command line talks to our daemon.

Both come from the jars of Flink's Python package, which `tests/servers/install.py` installs.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.servers.install import FLINK, FLINK_VERSION
from tests.waiting import PATIENCE

HERE = Path(__file__).parent
READER = HERE / "ReadAnswers.java"
TIMEOUT = 120.0  # seconds for one program
_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


def missing() -> str | None:
    """Return why Flink's clients cannot run here; None if they can."""
    if not shutil.which("java"):
        return "there is no Java"
    if not FLINK.is_dir():
        return f"Flink {FLINK_VERSION} is not installed: make servers"
    return None


needs_flink = pytest.mark.skipif(missing() is not None, reason=missing() or "")


# Fields that Flink's clients of earlier versions read, and that ours reads, too.
_OF_EARLIER_CLIENTS = {
    "/jobs/:jobid/exceptions": {"root-exception", "timestamp", "all-exceptions", "truncated"},
}


class Answer(msgspec.Struct, frozen=True):
    """What the endpoint has answered. `path` as in Flink's list: with the names of its parameters."""

    method: str
    path: str
    body: Any

    @property
    def of_now(self) -> Answer:
        """Without the fields that are for earlier clients alone."""
        left_out = _OF_EARLIER_CLIENTS.get(self.path)
        if left_out is None:
            return self
        return Answer(
            self.method, self.path, {name: value for name, value in self.body.items() if name not in left_out}
        )


async def faults(answers: Iterable[Answer]) -> list[str]:
    """Let Flink's message classes read the answers. Return a line for each thing that is wrong with one of them."""
    asked = [answer.of_now for answer in answers]
    lines = b"\n".join(map(msgspec.json.encode, asked))
    jar = FLINK / f"flink-dist-{FLINK_VERSION}.jar"
    done = await _java(str(READER), str(jar), stdin=lines, timeout=TIMEOUT)
    assert done.code == 0, done.err
    told = [json.loads(line)["faults"] for line in done.out.splitlines()]
    assert len(told) == len(asked)
    lines_of = (
        [f"{answer.method} {answer.path}: {fault}" for fault in found]
        for answer, found in zip(asked, told, strict=True)
    )
    return sorted({line for found in lines_of for line in found})


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        return self.out + self.err


class CommandLine:
    """Flink's `flink` command, with a configuration directory that names the endpoint."""

    def __init__(self, directory: Path, url: str, headers: Mapping[str, str]) -> None:
        host, _, port = url.removeprefix("http://").rpartition(":")
        self._conf = directory
        directory.mkdir(parents=True, exist_ok=True)
        settings = {"rest.address": host, "rest.port": port, "jobmanager.rpc.address": host}
        (directory / "config.yaml").write_text("".join(f"{key}: {value}\n" for key, value in settings.items()))
        (directory / "log4j.properties").write_text("rootLogger.level = OFF\n")
        self._headers = "\n".join(f"{name}:{value}" for name, value in headers.items())

    async def flink(self, *arguments: str) -> Done:
        """Run `flink` with these arguments, as its shell script would."""
        environment = {
            **os.environ,
            "FLINK_CONF_DIR": str(self._conf),
            "FLINK_PLUGINS_DIR": str(self._conf / "plugins"),  # otherwise `plugins` in the working directory
            "FLINK_REST_CLIENT_HEADERS": self._headers,
        }
        log = f"-Dlog4j.configurationFile=file:{self._conf / 'log4j.properties'}"
        main = "org.apache.flink.client.cli.CliFrontend"
        return await _java(log, main, *arguments, timeout=2 * TIMEOUT, environment=environment)


async def _java(
    *arguments: str, stdin: bytes = b"", timeout: float, environment: Mapping[str, str] | None = None
) -> Done:
    process = await asyncio.create_subprocess_exec(
        *("java", *_JVM, "-cp", f"{FLINK}/*", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=None if environment is None else dict(environment),
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(stdin), timeout * PATIENCE)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), err.decode())
