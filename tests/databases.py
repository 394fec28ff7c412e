"""What tests of the jdbc sink ask of any database."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tests.servers.mariadb import MariaDB
from tests.servers.postgres import Postgres


@dataclass(frozen=True)
class Tables:
    """The tables of a server. `options`: how a sink reaches it; `quote`: what is around identifiers.

    `of_others`: staging tables that other tests have left on the same server.
    """

    server: Postgres | MariaDB
    options: Mapping[str, str]
    quote: str
    of_others: frozenset[str] = frozenset()

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

    async def lock(self, name: str, seconds: int) -> None:
        """Keep a table from everybody for that long, or until `let_go`."""
        if isinstance(self.server, Postgres):
            sql = f"BEGIN; LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep({seconds}); COMMIT"
        else:
            sql = f"LOCK TABLES {name} WRITE; SELECT sleep({seconds}); UNLOCK TABLES"
        with contextlib.suppress(AssertionError):  # it was let go
            await self.server.ask(sql)

    async def is_locked(self, name: str) -> bool:
        return bool(await self.ask(self._holders("1")))

    async def let_go(self) -> None:
        """End who keeps tables from others."""
        for number in await self.ask(self._holders("pid" if isinstance(self.server, Postgres) else "id")):
            end = f"SELECT pg_terminate_backend({number})" if isinstance(self.server, Postgres) else f"KILL {number}"
            await self.server.ask(end)

    def _holders(self, what: str) -> str:
        if isinstance(self.server, Postgres):
            return f"SELECT {what} FROM pg_stat_activity WHERE query LIKE 'BEGIN; LOCK%' AND wait_event = 'PgSleep'"
        return f"SELECT {what} FROM information_schema.processlist WHERE info LIKE 'SELECT sleep%'"

    async def as_found(self) -> Tables:
        """Return the same, for a test that begins: what is staged now is no leftover of it.

        An attempt that ends keeps the rows that a checkpoint may cover. Nobody comes for them after its test.
        """
        return replace(self, of_others=frozenset(await self._staging()))

    async def leftovers(self) -> set[str]:
        """Return the staging tables that this test has left."""
        return set(await self._staging()) - self.of_others

    async def _staging(self) -> list[str]:
        return await self.ask(
            "SELECT table_name FROM information_schema.tables WHERE table_name LIKE 'minflinkd_staged%'"
        )
