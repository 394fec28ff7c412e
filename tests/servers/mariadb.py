"""MariaDB on loopback, for whoever speaks MySQL."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from tests.servers.database import DatabaseServer
from tests.servers.install import MYSQL_DRIVERS
from tests.servers.process import HOST


class MariaDB(DatabaseServer):
    """A server whose root has no password, with the database `test`."""

    name = "MariaDB"
    user = "nobody"

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
        files = self.fresh()
        place = ["--no-defaults", f"--datadir={files / 'data'}"]
        if os.geteuid() == 0:
            place.append(f"--user={self.user}")
        making = ("--auth-root-authentication-method=normal", "--skip-name-resolve")
        subprocess.run(["mariadb-install-db", *place, *making], check=True, capture_output=True, cwd="/")
        settings = (
            f"--bind-address={HOST}",
            f"--port={ports['main']}",
            f"--socket={files / 'socket'}",
            f"--pid-file={files / 'pid'}",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-buffer-pool-size=32M",
            "--skip-name-resolve",
        )
        return ("mariadbd", *place, *settings)

    async def prepare(self) -> None:
        await self.ask("CREATE DATABASE IF NOT EXISTS test")

    async def ask(self, sql: str) -> list[str]:
        client = ("mariadb", "--no-defaults", "-h", HOST, "-P", str(self.port), "-u", "root", "-N", "-B")
        # These come before there is the database in which the others are.
        first = sql == "SELECT 1" or sql.startswith("CREATE DATABASE")
        lines = await self.said(*client, "-e", sql, *(() if first else ("test",)))
        return [line.replace("\t", "|") for line in lines]
