"""What databases say differently. The sinks of `jdbc` say the rest."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from minflinkd.taskmanager.session.sinks.databases.statements import Transaction

EPOCH = "minflinkd_epoch"  # the column of a staging table with the micro-batch that wrote a row

Unfit = tuple[str, str] | None  # what is wrong, and what to do

PATIENCE = 2  # seconds that a look at a table waits for its lock

Fields = Sequence[tuple[str, str]]  # the columns of rows, each with its type as the database names it


@dataclass(frozen=True)
class StagedBatch:
    """The rows of a micro-batch in a staging table, with the columns `names`, and the table they are for."""

    target: str
    staging: str
    names: tuple[str, ...]
    epoch: int


class Dialect(ABC):
    """The SQL of one kind of database.

    `url`: how its URLs begin. `quote`: what is around identifiers. `driver`: its usual class; a driver that comes as an
    artifact must be named. `patience`: options of its drivers, in their units, so that one gives up within ten seconds.
    `isolation`: the level of `java.sql.Connection` for the sink's own transactions; None: the server's. `settings`:
    statements with which each connection begins.
    """

    url: ClassVar[str]
    quote: ClassVar[str]
    driver: ClassVar[str]
    patience: ClassVar[Mapping[str, str]]
    isolation: ClassVar[int | None] = None
    settings: ClassVar[Sequence[str]] = ()

    def quoted(self, name: str) -> str:
        """Quote an identifier, so that it is taken exactly as it is written."""
        return self.quote + name.replace(self.quote, self.quote * 2) + self.quote

    def parts(self, table: str) -> tuple[str, str]:
        """Return the schema and the name of a table, each as the option `dbtable` has it. Without a schema it is ""."""
        q = self.quote
        found = re.fullmatch(rf"(?:(.+)\.)?({q}(?:[^{q}]|{q}{q})+{q}|[^{q}.]+)", table)
        return ("", table) if found is None else (found[1] or "", found[2])

    def bare(self, name: str) -> str:
        """Return an identifier as the catalog of the database has it."""
        q = self.quote
        return name[1:-1].replace(q * 2, q) if name.startswith(q) else name

    def columns(self, names: Sequence[str]) -> str:
        return ", ".join(map(self.quoted, names))

    @abstractmethod
    def is_there(self, transaction: Transaction, table: str) -> bool:
        """Whether there is a table, which is written as in the option `dbtable`."""

    @abstractmethod
    def fault(self, transaction: Transaction, table: str, fields: Fields, key: Sequence[str]) -> Unfit:
        """Return why such rows cannot go into a table, which may be there or not, and what to do; None if they can.

        What the database itself says to the statement is raised, as of any statement; and TableLocked after PATIENCE.
        """

    def check_deletes(self, transaction: Transaction, table: str) -> None:
        """Raise DatabaseFailed if the user may not delete rows of a table that is there. Deletes nothing.

        That the columns of the key may be read, an upsert needs as well.
        """
        if self.is_there(transaction, table):
            transaction.texts(f"EXPLAIN DELETE FROM {table} WHERE false")

    @abstractmethod
    def make_staging(self, transaction: Transaction, table: str, target: str, fields: Fields) -> None:
        """Make a staging table, unless Spark's writer makes a good one."""

    @abstractmethod
    def make_gone(self, transaction: Transaction, table: str, target: str, fields: Fields) -> None:
        """Make a staging table for keys of rows to delete. Its types are those of the target, if that is there.

        Of other types, values may be equal to the target's unique key, and unequal in a comparison.
        """

    @abstractmethod
    def make_target(
        self, transaction: Transaction, target: str, staging: str, names: Sequence[str], key: Sequence[str]
    ) -> None:
        """Make the target as Spark would, which the user has not done."""

    @abstractmethod
    def staging_tables(self, transaction: Transaction, prefix: str, schema: str) -> list[str]:
        """Return the names of the tables that begin with `prefix`. `schema`: as `parts` gives it."""

    @abstractmethod
    def make_commits(self, transaction: Transaction, table: str) -> None:
        """Make the table that says what is committed."""

    @abstractmethod
    def lock(self, transaction: Transaction, commits: str, job: str, sink: str) -> None:
        """Lock the row of a sink, which may be new: until the transaction ends, no other one commits for this sink."""

    @abstractmethod
    def move(self, transaction: Transaction, rows: StagedBatch) -> None:
        """Move the rows from the staging table into the target."""

    @abstractmethod
    def upsert(self, transaction: Transaction, rows: StagedBatch, key: Sequence[str]) -> int:
        """Copy the rows, each of which replaces the row with its key. Return how many there were."""

    @abstractmethod
    def delete(self, transaction: Transaction, keys: StagedBatch) -> None:
        """Delete the rows that have one of these keys, which are the only columns of their staging table."""

    def same(self, names: Sequence[str], one: str, other: str) -> str:
        """Return a condition: rows of two tables, by the names that the statement gives them, have the same key."""
        return " AND ".join(f"{one}.{self.quoted(name)} = {other}.{self.quoted(name)}" for name in names)
