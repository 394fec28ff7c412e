"""MariaDB on loopback, for whoever speaks MySQL. If the tests run as root, it runs as its own user."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.servers.install import MYSQL_DRIVERS
from tests.servers.process import HOST, Server

USER = "nobody"


class MariaDB(Server):
    """A server whose root has no password, with the database `test`.

    Its files are outside the test's directory, which its user may not enter. `kill` deletes them.
    """

    name = "MariaDB"
    durable = False

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._data: Path | None = None

    @classmethod
    def missing(cls) -> str | None:
        if not all(shutil.which(command) for command in ("mariadbd", "mariadb", "mariadb-install-db")):
            return "MariaDB is not installed: apt-get install mariadb-server-core mariadb-client-core"
        return None if MYSQL_DRIVERS.is_dir() else "MySQL's JDBC drivers are not installed: make servers"

    @property
    def jars(self) -> str:
        """MySQL's driver and MariaDB's, with a comma between them."""
        return ",".join(str(jar) for jar in sorted(MYSQL_DRIVERS.glob("*.jar")))

    @property
    def url(self) -> str:
        return f"jdbc:mysql://{HOST}:{self.port}/test?user=root"

    def command(self, ports: Mapping[str, int]) -> Sequence[str]:
        self._data = Path(tempfile.mkdtemp(prefix="minflinkd-mariadb-"))
        place = ["--no-defaults", f"--datadir={self._data / 'data'}"]
        if os.geteuid() == 0:
            shutil.chown(self._data, USER)
            place.append(f"--user={USER}")
        making = ("--auth-root-authentication-method=normal", "--skip-name-resolve")
        command = ["mariadb-install-db", *place, *making]
        subprocess.run(command, check=True, capture_output=True, cwd="/")
        settings = (
            f"--bind-address={HOST}",
            f"--port={ports['main']}",
            f"--socket={self._data / 'socket'}",
            f"--pid-file={self._data / 'pid'}",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-buffer-pool-size=32M",
            "--skip-name-resolve",
        )
        return ("mariadbd", *place, *settings)

    async def prepare(self) -> None:
        await self.ask("CREATE DATABASE IF NOT EXISTS test")

    async def answers(self) -> bool:
        try:
            return await self.ask("SELECT 1") == ["1"]
        except AssertionError:
            return False

    async def ask(self, sql: str) -> list[str]:
        """Run the SQL. Return the lines of the answer, with columns separated by `|`."""
        command = ("mariadb", "--no-defaults", "-h", HOST, "-P", str(self.port), "-u", "root", "-N", "-B", "-e", sql)
        in_database = ("test",) if not sql.startswith("CREATE DATABASE") and sql != "SELECT 1" else ()
        process = await asyncio.create_subprocess_exec(
            *command, *in_database, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, error = await process.communicate()
        assert process.returncode == 0, error.decode()
        return [line.replace("\t", "|") for line in out.decode().splitlines()]

    async def kill(self) -> None:
        await super().kill()
        if self._data is not None:
            shutil.rmtree(self._data, ignore_errors=True)
