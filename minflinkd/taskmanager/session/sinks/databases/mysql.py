"""The SQL of MySQL and MariaDB.

Two things shape it. A statement that makes or drops a table commits the transaction that it is in, and gives up its
locks. And a unique key that is missing is no error: rows would be appended instead of replaced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from minflinkd.taskmanager.session.sinks.databases.dialects import EPOCH, PATIENCE, Dialect, Fields, StagedBatch, Unfit
from minflinkd.taskmanager.session.sinks.databases.statements import Transaction

_READ_COMMITTED = 2  # of java.sql.Connection
_PLACE = "table_schema = coalesce(?, database()) AND table_name = ?"
_TEXT = ("LONGTEXT", "TEXT")
_TIMES = ("TIMESTAMP", "DATETIME")
_KEY_TEXT = "VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"  # without a length it could not be in a key
_KEY_TEXTS = 3  # a key has at most 3072 bytes
_MADE = "ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4"


class MySQL(Dialect):
    url = "jdbc:mysql:"
    quote = "`"
    driver = "com.mysql.cj.jdbc.Driver"
    patience: ClassVar[Mapping[str, str]] = {"connectTimeout": "5000", "socketTimeout": "8000"}  # in milliseconds
    # Otherwise a commit would lock the gaps into which the next micro-batch is being staged.
    isolation = _READ_COMMITTED
    # In seconds. Otherwise DROP TABLE waits for a year for a connection that still writes.
    settings = ("SET SESSION lock_wait_timeout = 50",)

    def _place(self, table: str) -> tuple[str | None, str]:
        """Return the values of _PLACE."""
        schema, name = self.parts(table)
        return self.bare(schema) or None, self.bare(name)

    def is_there(self, transaction: Transaction, table: str) -> bool:
        sql = f"SELECT 1 FROM information_schema.tables WHERE {_PLACE}"
        return transaction.number(sql, *self._place(table)) == 1

    def fault(self, transaction: Transaction, table: str, fields: Fields, key: Sequence[str]) -> Unfit:
        if "STRICT_" not in transaction.texts("SELECT @@SESSION.sql_mode")[0]:
            problem = "the server's sql_mode lets it cut off values that are too long without an error"
            return problem, "add sessionVariables=sql_mode='STRICT_TRANS_TABLES' to the URL"
        if transaction.server_version().startswith("5.5.") and any(kind.upper() in _TIMES for _, kind in fields):
            problem = "MySQL's driver cuts off the fractions of seconds that this MariaDB would keep"
            return problem, "options: {driver: org.mariadb.jdbc.Driver}, and permitMysqlScheme in the URL"
        if not self.is_there(transaction, table):
            return _fault_of_new(table, fields, key)
        transaction.run(f"SET SESSION lock_wait_timeout = {PATIENCE}")
        names, nothing = self.columns([name for name, _ in fields]), ", ".join(["NULL"] * len(fields))
        # The server looks for columns and rights, and inserts nothing.
        transaction.texts(f"EXPLAIN INSERT INTO {table} ({names}) SELECT {nothing} FROM DUAL WHERE false")
        sql = f"SELECT engine FROM information_schema.tables WHERE {_PLACE}"
        engine = transaction.texts(sql, *self._place(table))[0]
        if engine != "InnoDB":
            problem = f"the table {table} has the engine {engine}, which has no transactions"
            return problem, f"ALTER TABLE {table} ENGINE=InnoDB"
        if key and not self._has_key(transaction, table, key):
            problem = f"the table {table} has no unique key of {', '.join(key)} whose columns are NOT NULL"
            return problem, f"ALTER TABLE {table} ADD UNIQUE KEY ({self.columns(key)})"
        return None

    def _has_key(self, transaction: Transaction, table: str, key: Sequence[str]) -> bool:
        """Whether one unique key has these columns, in any order, and of each the whole value."""
        lower = sorted(name.lower() for name in key)
        marks = ", ".join("?" * len(lower))
        sql = (
            f"SELECT 1 FROM information_schema.statistics WHERE {_PLACE} AND non_unique = 0 "
            f"GROUP BY index_name HAVING count(*) = ? AND count(sub_part) = 0 AND sum(nullable = 'YES') = 0 "
            f"AND sum(lower(column_name) IN ({marks})) = ? LIMIT 1"
        )
        return transaction.number(sql, *self._place(table), len(lower), *lower, len(lower)) == 1

    def make_staging(self, transaction: Transaction, table: str, target: str, fields: Fields) -> None:
        """Make it with the target's types. Spark would make another of its own, with whole seconds."""
        # Some servers take no table without a primary key.
        number = "minflinkd_row BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY"
        own = f"{number}, {EPOCH} BIGINT NOT NULL DEFAULT 0, KEY ({EPOCH})"
        if self.is_there(transaction, target):
            rows = f"SELECT {self.columns([name for name, _ in fields])} FROM {target} WHERE false"
            transaction.run(f"CREATE TABLE IF NOT EXISTS {table} ({own}) {_MADE} AS {rows}")
            return
        columns = ", ".join(f"{self.quoted(name)} {_exact(kind)} NULL" for name, kind in fields)
        transaction.run(f"CREATE TABLE IF NOT EXISTS {table} ({own}, {columns}) {_MADE}")

    def make_gone(self, transaction: Transaction, table: str, target: str, fields: Fields) -> None:
        self.make_staging(transaction, table, target, fields)

    def make_target(
        self, transaction: Transaction, target: str, staging: str, names: Sequence[str], key: Sequence[str]
    ) -> None:
        kinds = self._kinds(transaction, staging)
        texts = [name for name in key if kinds.get(name.lower(), "").upper() in _TEXT]
        own = [f"{self.quoted(name)} {_KEY_TEXT} NOT NULL" for name in texts]
        own += [f"PRIMARY KEY ({self.columns(key)})"] if key else []
        rows = f"SELECT {self.columns(names)} FROM {staging} WHERE false"
        definition = f" ({', '.join(own)})" if own else ""
        transaction.run(f"CREATE TABLE IF NOT EXISTS {target}{definition} {_MADE} AS {rows}")

    def _kinds(self, transaction: Transaction, table: str) -> dict[str, str]:
        """Return the types of a table's columns."""
        pair = "concat(data_type, ' ', lower(column_name))"
        sql = f"SELECT {pair} FROM information_schema.columns WHERE {_PLACE}"
        pairs = (text.split(" ", 1) for text in transaction.texts(sql, *self._place(table)))
        return {name: kind for kind, name in pairs}

    def staging_tables(self, transaction: Transaction, prefix: str, schema: str) -> list[str]:
        where = "table_schema = coalesce(?, database()) AND table_name LIKE ? ESCAPE '|'"
        sql = f"SELECT table_name FROM information_schema.tables WHERE {where}"
        return transaction.texts(sql, self.bare(schema) or None, prefix.replace("_", "|_") + "%")

    def make_commits(self, transaction: Transaction, table: str) -> None:
        columns = "job VARCHAR(255), sink VARCHAR(255), checkpoint BIGINT NOT NULL, PRIMARY KEY (job, sink)"
        transaction.run(f"CREATE TABLE IF NOT EXISTS {table} ({columns}) {_MADE}")

    def lock(self, transaction: Transaction, commits: str, job: str, sink: str) -> None:
        # INSERT IGNORE would share a lock that two commits then wait for each other to give up.
        touch = "ON DUPLICATE KEY UPDATE checkpoint = checkpoint"
        transaction.run(f"INSERT INTO {commits} VALUES (?, ?, 0) {touch}", job, sink)
        transaction.number(f"SELECT checkpoint FROM {commits} WHERE job = ? AND sink = ? FOR UPDATE", job, sink)

    def move(self, transaction: Transaction, rows: StagedBatch) -> None:
        columns, staged = self.columns(rows.names), f"FROM {rows.staging} WHERE {EPOCH} = ?"
        transaction.run(f"INSERT INTO {rows.target} ({columns}) SELECT {columns} {staged}", rows.epoch)
        transaction.run(f"DELETE {staged}", rows.epoch)

    def upsert(self, transaction: Transaction, rows: StagedBatch, key: Sequence[str]) -> int:
        columns, staged = self.columns(rows.names), f"FROM {rows.staging} WHERE {EPOCH} = ?"
        # A row of which the key is everything replaces itself.
        changed = [name for name in rows.names if name not in key] or list(key)[:1]
        values = ", ".join(f"{self.quoted(name)} = VALUES({self.quoted(name)})" for name in changed)
        insert = f"INSERT INTO {rows.target} ({columns}) SELECT {columns} {staged}"
        transaction.run(f"{insert} ON DUPLICATE KEY UPDATE {values}", rows.epoch)
        # The server counts a row that it has replaced twice.
        return transaction.number(f"SELECT count(*) {staged}", rows.epoch) or 0

    def delete(self, transaction: Transaction, keys: StagedBatch) -> None:
        same = self.same(keys.names, "old", "gone")
        transaction.run(
            f"DELETE old FROM {keys.target} AS old JOIN {keys.staging} AS gone ON {same} WHERE gone.{EPOCH} = ?",
            keys.epoch,
        )


def _fault_of_new(table: str, fields: Fields, key: Sequence[str]) -> Unfit:
    """Return why no table with this key can be made, and what to do."""
    kinds = [kind.upper() for name, kind in fields if name in key]
    if any(kind.endswith("BLOB") for kind in kinds) or sum(kind in _TEXT for kind in kinds) > _KEY_TEXTS:
        problem = f"the table {table} is not there, and it cannot be made with this key"
        return problem, f"make it yourself; here a key has at most {_KEY_TEXTS} texts of 255 letters, and no bytes"
    return None


def _exact(kind: str) -> str:
    """Return a type that has six digits of a second and all years, as Spark's timestamps have."""
    return "DATETIME(6)" if kind.upper() in _TIMES else kind
