"""A server under test as a process: started when it is ready, killed, started again in its place, never left behind.

The kernel kills it when the test process dies, however that dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import aiohttp

from tests.cluster import until

HOST = "127.0.0.1"
STARTING = 180.0  # seconds until a server has to be ready, on a busy machine
_PORTS = range(10_000, 32_000)  # none that the kernel gives to a client, which would keep a restart from its port
_STARTS = 3  # where somebody else took a port between the choice and the start

# Runs in the new process before the server does: asks for SIGKILL at the death of its parent, whose pid comes first.
_GUARD = """
import ctypes, os, signal, sys
if ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0) != 0:
    raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""


class Server(ABC):
    """One server on loopback, with its files in a directory of its own.

    Bound to no event loop, so that one fixture serves tests with a loop each. Start it in the main thread: the kernel
    takes the end of the thread that started a process for the death of its parent.
    """

    name: ClassVar[str]
    durable: ClassVar[bool] = True  # whether what it stored is there after `kill` and `restart`
    port_names: ClassVar[Sequence[str]] = ("main",)  # the first one is where clients go

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._ports: dict[str, int] = {}
        self._process: subprocess.Popen[bytes] | None = None

    # --- what each server says of itself ---

    @classmethod
    @abstractmethod
    def missing(cls) -> str | None:
        """Why it cannot run here, for the tests that are skipped; None where it can."""

    @abstractmethod
    def command(self, ports: Mapping[str, int]) -> Sequence[str]:
        """What to run, in the server's directory."""

    @abstractmethod
    async def answers(self) -> bool:
        """Whether it is ready."""

    async def prepare(self) -> None:
        """Make what tests expect to find, e.g. a bucket; after each start."""
        return

    def environment(self) -> Mapping[str, str]:
        """Set beside the environment of this process."""
        return {}

    # --- its life ---

    @property
    def port(self) -> int:
        return self._ports[self.port_names[0]]

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return self._log_file.read_text(errors="replace")
        return ""

    async def start(self) -> None:
        """Returns when it is ready, on free ports."""
        for attempt in range(1, _STARTS + 1):
            self._ports = _free_ports(self.port_names)
            try:
                await self._start()
                break
            except AssertionError:
                if attempt == _STARTS or "in use" not in self.log:
                    raise

    async def kill(self) -> None:
        """SIGKILL to all of its processes; returns when it is gone. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await asyncio.to_thread(process.wait)

    async def restart(self) -> None:
        """Again on the same ports, with the same files; killed first where it runs."""
        await self.kill()
        await self._start()

    async def _start(self) -> None:
        self._process = self._spawn()
        try:
            await until(f"{self.name} is ready", self._ready, timeout=STARTING, pause=0.02)
            await self.prepare()
        except BaseException:
            await self.kill()
            raise

    def _spawn(self) -> subprocess.Popen[bytes]:
        self.directory.mkdir(parents=True, exist_ok=True)
        argv = self.command(self._ports)
        with self._log_file.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-ES", "-c", _GUARD, str(os.getpid()), *argv],
                cwd=self.directory,
                env={**os.environ, **self.environment()},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    async def _ready(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise AssertionError(f"{self.name} ended before it was ready:\n{self.log[-4000:]}")
        try:
            async with asyncio.timeout(5):
                return await self.answers()
        except (OSError, TimeoutError, aiohttp.ClientError):
            return False

    @property
    def _log_file(self) -> Path:
        return self.directory / "server.log"


async def responds(url: str) -> bool:
    """Whether a GET is answered with 2xx."""
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.ok


def _free_ports(names: Sequence[str]) -> dict[str, int]:
    ports: dict[str, int] = {}
    while len(ports) < len(names):
        port = random.SystemRandom().choice(_PORTS)
        if port not in ports.values() and _is_free(port):
            ports[names[len(ports)]] = port
    return ports


def _is_free(port: int) -> bool:
    with socket.socket() as held:
        try:
            held.bind((HOST, port))
        except OSError:
            return False
    return True
