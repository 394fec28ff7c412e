"""PostgreSQL on loopback. If the tests run as root, it runs as its own user, because it refuses to run as root."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.servers.database import DatabaseServer
from tests.servers.install import POSTGRES_DRIVER, postgres_home
from tests.servers.process import HOST

USER = "postgres"


class Postgres(DatabaseServer):
    """A server that trusts everybody, with the database `postgres`."""

    name = "PostgreSQL"
    user = USER

    @classmethod
    def missing(cls) -> str | None:
        if postgres_home() is None or shutil.which("psql") is None:
            return "PostgreSQL is not installed: apt-get install postgresql"
        return None if POSTGRES_DRIVER.is_dir() else "PostgreSQL's JDBC driver is not installed: make servers"

    @property
    def jar(self) -> Path:
        (jar,) = POSTGRES_DRIVER.glob("postgresql-*.jar")
        return jar

    @property
    def url(self) -> str:
        return f"jdbc:postgresql://{HOST}:{self.port}/postgres?user={USER}"

    def command(self, ports: Mapping[str, int]) -> Sequence[str]:
        home = postgres_home()
        assert home is not None
        data = str(self.fresh() / "data")
        run_as = _as_user()
        making = ("-D", data, "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync", "--no-instructions")
        subprocess.run([*run_as, str(home / "initdb"), *making], check=True, capture_output=True, cwd="/")
        settings = {"listen_addresses": HOST, "unix_socket_directories": "", "fsync": "off", "max_connections": "40"}
        given = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return (*run_as, str(home / "postgres"), "-D", data, "-p", str(ports["main"]), *given)

    async def ask(self, sql: str) -> list[str]:
        client = ("psql", "-h", HOST, "-p", str(self.port), "-U", USER, "-X", "-A", "-t")
        return await self.said(*client, "-c", sql, "postgres")

    async def kill(self) -> None:
        """Stop the server in order if possible. Killed outright, it would leave shared memory behind."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)  # do not wait for its clients
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, 10)
        await super().kill()


def _as_user() -> tuple[str, ...]:
    if os.geteuid() != 0:
        return ()
    # A change of the user resets the signal for the parent's death, so it is set again.
    return ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--pdeathsig=KILL")
