"""A daemon for one analysis: in this process, on loopback, in a temporary directory.

It has one TaskManager with a Spark session, and takes the options that say what a session can do
(`taskmanager.spark.conf`, `storage.*`) from the user's configuration. Its addresses and directories are its own.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from minflinkd.cli.client import Client
from minflinkd.config import Config, load_config
from minflinkd.daemon import Daemon
from minflinkd.resourcemanager.launcher import FAREWELL
from minflinkd.resourcemanager.process import LOG
from minflinkd.runtime import homes
from minflinkd.runtime.errors import MinflinkError

R = TypeVar("R")
POLL = 0.1  # seconds between two checks for the session
_OWN = {
    "rest.port": "0",
    "rest.address": "localhost",
    "rest.bind-address": "127.0.0.1",
    "jobmanager.rpc.port": "0",
    "jobmanager.rpc.address": "",
    "jobmanager.bind-host": "127.0.0.1",
    "blob.server.port": "0",
    "blob.storage.directory": "",
    "high-availability.storageDir": "",
    "security.secret-file": "",
    "security.ssl.internal.enabled": "false",  # it is reached at loopback, under no name of a certificate
    "security.ssl.rest.enabled": "false",
    "security.allow-unauthenticated": "false",
    "security.tokens-file": "",
    "security.socket-directory": "",
    "security.socket-group": "",
    "security.audit-log": "none",
    "execution.checkpointing.dir": "",
    "resourcemanager.driver": "process",
    "resourcemanager.min-taskmanagers": "0",
    "resourcemanager.standby-taskmanagers": "1",
    "resourcemanager.max-taskmanagers": "1",
    "taskmanager.session.class-archive": "false",  # it would be gone with the daemon
    "taskmanager.bind-host": "127.0.0.1",
    "taskmanager.host": "",
    "taskmanager.data.port": "0",
    "taskmanager.state.local.root-dir": "",
    "taskmanager.spark.master": "",  # an analysis needs no executors
}


class NoLocalSession(MinflinkError):
    """No Spark session started here to analyse the job."""

    code = "no-local-session"


def private_config(
    file: Path | None, environ: Mapping[str, str], overrides: Mapping[str, str], *, home: Path, start_timeout: float
) -> Config:
    """Return the user's options, except for those that the private daemon sets itself. Raises ConfigError."""
    here = {
        "process.working-dir": str(home),
        "resourcemanager.taskmanager-registration.timeout": f"{max(start_timeout, 1):g} s",
    }
    return load_config(file, environ, {**overrides, **_OWN, **here})


@asynccontextmanager
async def private_daemon(
    file: Path | None, overrides: Mapping[str, str], *, start_timeout: float
) -> AsyncIterator[Client]:
    """Yield a client of the daemon, once a session is ready. At the end nothing is left of the daemon.

    `start_timeout` is in seconds, for the session. Raises ConfigError, NoLocalSession, and what starting a daemon
    raises.
    """
    home = Path(tempfile.mkdtemp(prefix="minflinkd-check-"))
    try:
        config = private_config(file, os.environ, overrides, home=home, start_timeout=start_timeout)
        async with Daemon(config, os.environ) as daemon, Client(daemon.rest.url) as client:
            await _ready(client, home, start_timeout)
            yield client
    finally:
        await asyncio.to_thread(shutil.rmtree, home, ignore_errors=True)


async def _ready(client: Client, home: Path, timeout: float) -> None:
    """Wait for the session. Raises NoLocalSession after one failed start: another would fail too."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        managers = (await client.task_managers()).taskmanagers
        if any(manager.minflinkd.session == "ready" for manager in managers):
            return
        if (await client.overview()).minflinkd.taskmanagers_lost:
            raise NoLocalSession(
                f"no Spark session starts here: {_last_words(home) or 'its process ended'}", hint=_WITHOUT
            )
        await asyncio.sleep(POLL)
    raise NoLocalSession(f"no Spark session was ready within {timeout:g} s", hint=f"{_WITHOUT}; or raise --timeout")


_WITHOUT = "--no-spark checks what the file alone shows"


def _last_words(home: Path) -> str:
    """Return the last words of a TaskManager that could not continue."""
    for log in sorted((home / "taskmanagers").glob(f"*/{homes.LOGS}/{LOG}")):
        for line in reversed(log.read_text(errors="replace").splitlines()):
            if line.startswith(FAREWELL):
                return line.removeprefix(FAREWELL)
    return ""


def until_told_to_end(body: Callable[[], Awaitable[R]]) -> R:
    """Run `body`. Ctrl-C and SIGTERM (which a CI sends) cancel it, so that it ends its processes.

    Raises KeyboardInterrupt for both.
    """

    async def run() -> R:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await body()

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
