"""PostgreSQL's SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from minflinkd.taskmanager.session.sinks.databases.dialects import EPOCH, PATIENCE, Dialect, Fields, StagedBatch, Unfit
from minflinkd.taskmanager.session.sinks.databases.statements import Transaction


class PostgreSQL(Dialect):
    url = "jdbc:postgresql:"
    quote = '"'
    driver = "org.postgresql.Driver"
    # In seconds: to connect, to log in, and for each answer.
    patience: ClassVar[Mapping[str, str]] = {"connectTimeout": "5", "loginTimeout": "8", "socketTimeout": "8"}
    # Otherwise an attempt waits for ever for one that is stopped in a transaction.
    settings = ("SET SESSION lock_timeout = '50s'",)

    def bare(self, name: str) -> str:
        return super().bare(name) if name.startswith(self.quote) else name.lower()

    def is_there(self, transaction: Transaction, table: str) -> bool:
        return transaction.number("SELECT 1 WHERE to_regclass(?) IS NOT NULL", table) == 1

    def fault(self, transaction: Transaction, table: str, fields: Fields, key: Sequence[str]) -> Unfit:
        if self.is_there(transaction, table):
            transaction.run(f"SET LOCAL lock_timeout = '{PATIENCE}s'")
            names = [name for name, _ in fields]
            nothing = ", ".join(f"CAST(NULL AS {kind})" for _, kind in fields)
            conflict = self._on_conflict(names, key) if key else ""
            # The server looks for columns, types, rights and the key's constraint, and inserts nothing.
            insert = f"INSERT INTO {table} ({self.columns(names)}) SELECT {nothing} WHERE false {conflict}"
            transaction.texts(f"EXPLAIN {insert}")
        return None

    def make_staging(self, transaction: Transaction, table: str, target: str, fields: Fields) -> None:
        return  # Spark's is good

    def make_gone(self, transaction: Transaction, table: str, target: str, fields: Fields) -> None:
        if self.is_there(transaction, target):
            keys = f"{self.columns([name for name, _ in fields])}, CAST(0 AS bigint) AS {EPOCH}"
            transaction.run(f"CREATE TABLE IF NOT EXISTS {table} AS SELECT {keys} FROM {target} WHERE false")

    def make_target(
        self, transaction: Transaction, target: str, staging: str, names: Sequence[str], key: Sequence[str]
    ) -> None:
        transaction.run(f"CREATE TABLE {target} AS SELECT {self.columns(names)} FROM {staging} WHERE false")
        if key:
            transaction.run(f"ALTER TABLE {target} ADD PRIMARY KEY ({self.columns(key)})")

    def staging_tables(self, transaction: Transaction, prefix: str, schema: str) -> list[str]:
        where = "tablename LIKE ? AND schemaname = coalesce(?, current_schema())"
        sql = f"SELECT tablename FROM pg_tables WHERE {where}"
        return transaction.texts(sql, prefix.replace("_", r"\_") + "%", self.bare(schema) or None)

    def make_commits(self, transaction: Transaction, table: str) -> None:
        columns = "job text, sink text, checkpoint bigint NOT NULL, PRIMARY KEY (job, sink)"
        transaction.run(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")

    def lock(self, transaction: Transaction, commits: str, job: str, sink: str) -> None:
        transaction.run(f"INSERT INTO {commits} VALUES (?, ?, 0) ON CONFLICT DO NOTHING", job, sink)
        transaction.number(f"SELECT checkpoint FROM {commits} WHERE job = ? AND sink = ? FOR UPDATE", job, sink)

    def move(self, transaction: Transaction, rows: StagedBatch) -> None:
        columns = self.columns(rows.names)
        transaction.run(
            f"WITH moved AS (DELETE FROM {rows.staging} WHERE {EPOCH} = ? RETURNING *) "
            f"INSERT INTO {rows.target} ({columns}) SELECT {columns} FROM moved",
            rows.epoch,
        )

    def upsert(self, transaction: Transaction, rows: StagedBatch, key: Sequence[str]) -> int:
        columns = self.columns(rows.names)
        return transaction.run(
            f"INSERT INTO {rows.target} ({columns}) SELECT {columns} FROM {rows.staging} "
            f"WHERE {EPOCH} = ? {self._on_conflict(rows.names, key)}",
            rows.epoch,
        )

    def delete(self, transaction: Transaction, keys: StagedBatch) -> None:
        same = self.same(keys.names, "old", "gone")
        transaction.run(
            f"DELETE FROM {keys.target} AS old USING {keys.staging} AS gone WHERE {same} AND gone.{EPOCH} = ?",
            keys.epoch,
        )

    def _on_conflict(self, names: Sequence[str], key: Sequence[str]) -> str:
        changed = [f"{self.quoted(name)} = EXCLUDED.{self.quoted(name)}" for name in names if name not in key]
        action = f"UPDATE SET {', '.join(changed)}" if changed else "NOTHING"
        return f"ON CONFLICT ({self.columns(key)}) DO {action}"
