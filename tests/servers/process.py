"""A server under test as a process: it is started, killed and restarted, and never left behind.

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

from tests.waiting import until

HOST = "127.0.0.1"
STARTING = 180.0  # seconds until a server has to be ready, on a busy machine
_PORTS = range(10_000, 32_000)  # the kernel gives none of them to a client, which could keep a restart from its port
_STARTS = 3  # tries, in case another process takes a port between the choice and the start

# This runs in the new process before the server. It asks for SIGKILL when its parent, whose pid comes first, dies.
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

    It is bound to no event loop, so one fixture serves tests that each have a loop. Start it in the main thread: the
    kernel takes the end of the thread that started a process for the death of its parent.
    """

    name: ClassVar[str]
    durable: ClassVar[bool] = True  # whether stored data survives `kill` and `restart`
    port_names: ClassVar[Sequence[str]] = ("main",)  # clients use the first one

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._ports: dict[str, int] = {}
        self._process: subprocess.Popen[bytes] | None = None

    # --- what each server says of itself ---

    @classmethod
    @abstractmethod
    def missing(cls) -> str | None:
        """Return why the server cannot run here, for the tests that are skipped. None if it can."""

    @abstractmethod
    def command(self, ports: Mapping[str, int]) -> Sequence[str]:
        """Return the command to run in the server's directory."""

    @abstractmethod
    async def answers(self) -> bool:
        """Whether it is ready."""

    async def prepare(self) -> None:
        """Create what tests expect to find, e.g. a bucket. Called after each start."""
        return

    def environment(self) -> Mapping[str, str]:
        """Return variables in addition to this process's environment."""
        return {}

    # --- its life ---

    @property
    def port(self) -> int:
        return self._ports[self.port_names[0]]

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def runs(self) -> bool:
        return self._process is not None

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
        """Start the server on free ports. Return when it is ready."""
        for attempt in range(1, _STARTS + 1):
            self._ports = free_ports(self.port_names)
            try:
                await self._start()
                break
            except AssertionError:
                if attempt == _STARTS or "in use" not in self.log:
                    raise

    async def kill(self) -> None:
        """Send SIGKILL to all of its processes. Return when they are gone. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await asyncio.to_thread(process.wait)

    async def restart(self) -> None:
        """Start the server again on the same ports, with the same files. If it runs, kill it first."""
        await self.kill()
        await self._start()

    async def _start(self) -> None:
        self._process = self._spawn()
        try:
            await until(self._ready, f"{self.name} is ready", timeout=STARTING, pause=0.02)
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


def free_ports(names: Sequence[str]) -> dict[str, int]:
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
