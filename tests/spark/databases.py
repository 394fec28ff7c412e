"""What tests of the jdbc sink ask of any database."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.servers.mariadb import MariaDB
from tests.servers.postgres import Postgres


@dataclass(frozen=True)
class Tables:
    """The tables of a server. `options`: how a sink reaches it; `quote`: what is around identifiers."""

    server: Postgres | MariaDB
    options: Mapping[str, str]
    quote: str

    @classmethod
    def of_postgresql(cls, server: Postgres) -> Tables:
        return cls(server, {"url": server.url}, '"')

    @classmethod
    def of_mysql(cls, server: MariaDB, **options: str) -> Tables:
        return cls(server, {"url": server.url, **options}, "`")

    @property
    def schema(self) -> str:
        return "public" if isinstance(self.server, Postgres) else "test"

    def name(self, what: str) -> str:
        """Return the name of a table that is not there yet."""
        return f"{what}_{secrets.token_hex(4)}"

    def quoted(self, name: str) -> str:
        return f"{self.quote}{name}{self.quote}"

    def sink(self, name: str, **options: str) -> dict[str, Any]:
        return {"format": "jdbc", "options": {**self.options, "dbtable": name, **options}}

    async def ask(self, sql: str) -> list[str]:
        """Run the SQL. Return the lines of the answer, with columns separated by `|`."""
        lines = await self.server.ask(sql)
        return lines if sql.startswith("SELECT") else []

    async def values(self, name: str) -> list[int]:
        """Return the column `value` of a table, sorted; nothing if the table is not there."""
        there = await self.ask(f"SELECT 1 FROM information_schema.tables WHERE table_name = '{name}'")
        return sorted(int(line) for line in await self.ask(f"SELECT value FROM {name}")) if there else []

    async def leftovers(self) -> list[str]:
        staged = "SELECT table_name FROM information_schema.tables WHERE table_name LIKE 'minflinkd_staged%'"
        return await self.ask(staged)
