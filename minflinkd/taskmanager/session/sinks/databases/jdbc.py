"""Writes rows into a table of PostgreSQL or MySQL: staged, then moved with the checkpoint; or as upserts by key.

Beside the target there are also the tables

    minflinkd_staged_<sink>_<attempt>        rows that are not moved yet, with the micro-batch that wrote them
    minflinkd_staged_<sink>_<attempt>_gone   keys of rows that a micro-batch deletes
    minflinkd_commits                        one row per sink: the last committed checkpoint; its lock orders commits.
                                             Of a sink with a key, `<sink>#attempts`: how many attempts have written

One transaction deletes rows from the staging table and inserts them into the target. So a repeated commit, or one from
an attempt that is believed dead, moves nothing twice. Tables are made and dropped outside of it: MySQL commits whatever
a transaction has done so far when it comes to such a statement.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody names it

from minflinkd.jobgraph.changes import ChangeColumns
from minflinkd.jobgraph.model import Sink
from minflinkd.runtime.ids import AttemptId, JobId, VertexId
from minflinkd.taskmanager.session.plan.changes import split
from minflinkd.taskmanager.session.sinks.databases.connections import (
    Database,
    DatabaseFailed,
    dialect_of,
    writer_options,
)
from minflinkd.taskmanager.session.sinks.databases.dialects import EPOCH, Fields, StagedBatch
from minflinkd.taskmanager.session.sinks.databases.statements import Transaction
from minflinkd.taskmanager.session.sinks.tables.fitting import with_key
from minflinkd.taskmanager.session.spark.session import Session
from minflinkd.taskmanager.session.state.ledger import Ledger

COMMITS = "minflinkd_commits"


class Overtaken(DatabaseFailed):
    """A later attempt has begun to write to the same table."""


class Staging:
    """The staging tables of one sink, one or two for each attempt. Spark's own writer fills them.

    `table`: of this attempt's rows; `gone`: of keys of rows that it deletes.
    """

    def __init__(self, session: Session, sink: Sink, job_id: JobId, vertex_id: VertexId, attempt_id: AttemptId) -> None:
        dialect = dialect_of(sink.options["url"])
        assert dialect is not None, "the check of the job file names the databases that there are"
        self.dialect = dialect
        self.database = Database(session, sink.options)
        self.target = sink.options["dbtable"]
        self.job_id, self.sink = job_id, vertex_id
        self._options = writer_options(sink.options)
        self._schema, _ = dialect.parts(self.target)
        self._prefix = f"minflinkd_staged_{_digest(job_id, vertex_id)}_"
        self._own = self._prefix + _digest(attempt_id)
        self._made = set[str]()
        self.table = self._beside(self._own)
        self.gone = self._beside(f"{self._own}_gone")
        self.commits = self._beside(COMMITS)

    def write(self, frame: DataFrame, epoch: int) -> None:
        """Stage the rows of a micro-batch."""
        self._write(frame, epoch, self.table, self.dialect.make_staging)

    def write_gone(self, keys: DataFrame, epoch: int) -> None:
        """Stage the keys of rows that a micro-batch deletes."""
        self._write(keys, epoch, self.gone, self.dialect.make_gone)

    def _write(
        self, frame: DataFrame, epoch: int, table: str, make: Callable[[Transaction, str, str, Fields], None]
    ) -> None:
        if table not in self._made:
            with self.database.transaction() as transaction:
                make(transaction, table, self.target, self.database.fields(frame))
            self._made.add(table)
        marked = frame.withColumn(EPOCH, F.lit(epoch).cast("long"))
        marked.write.format("jdbc").options(**(self._options | {"dbtable": table})).mode("append").save()

    def is_there(self, transaction: Transaction, table: str) -> bool:
        return self.dialect.is_there(transaction, table)

    def make_target(self, transaction: Transaction, table: str, names: tuple[str, ...], key: tuple[str, ...]) -> None:
        """Create the target as Spark would, if the user has not."""
        if not self.is_there(transaction, self.target):
            self.dialect.make_target(transaction, self.target, table, names, key)

    def drop_others(self, transaction: Transaction) -> None:
        """Drop the staging tables of earlier attempts. Whatever such an attempt still writes is not needed."""
        for name in self.dialect.staging_tables(transaction, self._prefix, self._schema):
            if not name.startswith(self._own):
                transaction.run(f"DROP TABLE IF EXISTS {self._beside(name)}")

    def drop(self, *, only_if_empty: bool) -> None:
        with self.database.transaction() as transaction:
            for table in {self.table, *self._made}:
                there = self.is_there(transaction, table)
                if there and only_if_empty:
                    there = transaction.number(f"SELECT 1 FROM {table} LIMIT 1") is None
                if there:
                    transaction.run(f"DROP TABLE {table}")

    def begin_attempt(self) -> int:
        """Return the number of an attempt that upserts. Those with smaller ones are refused from now on."""
        with self.database.transaction() as transaction:
            if not self.is_there(transaction, self.commits):
                self.dialect.make_commits(transaction, self.commits)
        with self.database.transaction() as transaction:
            self.dialect.lock(transaction, self.commits, self.job_id, self._attempts)
            where = "WHERE job = ? AND sink = ?"
            transaction.run(
                f"UPDATE {self.commits} SET checkpoint = checkpoint + 1 {where}", self.job_id, self._attempts
            )
            return self._last_attempt(transaction)

    def check_attempt(self, transaction: Transaction, number: int) -> None:
        """Raise Overtaken if another attempt has begun. None begins before the transaction ends."""
        if self._last_attempt(transaction) != number:
            raise Overtaken(
                f"another attempt of sink {self.sink} writes to {self.target} now",
                hint="nothing: this one was believed dead, and ends",
            )

    def _last_attempt(self, transaction: Transaction) -> int:
        sql = f"SELECT checkpoint FROM {self.commits} WHERE job = ? AND sink = ? FOR UPDATE"
        return transaction.number(sql, self.job_id, self._attempts) or 0

    @property
    def _attempts(self) -> str:
        return f"{self.sink}#attempts"

    def _beside(self, name: str) -> str:
        return f"{self._schema}.{name}" if self._schema else name


class UpsertSink:
    """Upserts each micro-batch: a row replaces the one with the same key. So repeated rows change nothing.

    An attempt that is believed dead may still write. Once the next one has begun, it is refused: a row that it wrote
    late would stay if nobody wrote it again, or bring back a deleted one.
    """

    ledger: Ledger | None = None
    reads_all = True

    def __init__(self, staging: Staging, columns: ChangeColumns) -> None:
        self._staging = staging
        self._columns = columns
        self._attempt = 0  # its number among those that have written; 0 before its first micro-batch
        with staging.database.transaction() as transaction:
            staging.drop_others(transaction)

    def write(self, frame: DataFrame, epoch: int) -> int:
        """Write a micro-batch. If several of its rows have the same key, and it does not say which is the newest, any
        one of them is written. Returns how many rows were written and deleted. Raises Overtaken, DatabaseFailed.

        PostgreSQL refuses an upsert that changes a row twice.
        """
        staging, columns = self._staging, self._columns
        self._attempt = self._attempt or staging.begin_attempt()
        if columns.newest_by:
            rows = with_key(frame, columns.key, f"the table {staging.target}")
        else:
            rows = frame.dropDuplicates(list(columns.key))
        with split(rows, columns) as found:
            names = tuple(found.rows.columns)
            staging.write(found.rows, epoch)
            if found.gone is not None:
                staging.write_gone(found.gone, epoch)
        with staging.database.transaction() as transaction:
            staging.make_target(transaction, staging.table, names, columns.key)
            staging.check_attempt(transaction, self._attempt)
            # First, as two keys for Spark may be one for the database.
            changed = self._delete(transaction, epoch) if columns.deleted is not None else 0
            written = StagedBatch(staging.target, staging.table, names, epoch)
            changed += staging.dialect.upsert(transaction, written, columns.key)
            transaction.run(f"DELETE FROM {staging.table}")
        return changed

    def _delete(self, transaction: Transaction, epoch: int) -> int:
        staging = self._staging
        keys = StagedBatch(staging.target, staging.gone, self._columns.key, epoch)
        staging.dialect.delete(transaction, keys)
        return transaction.run(f"DELETE FROM {staging.gone}")

    def close(self) -> None:
        self._staging.drop(only_if_empty=False)


class StagedRows:
    """Two-phase: rows wait in the staging table until the checkpoint that covers them is complete."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._unfinished: int | None = (
            None  # micro-batch whose staging failed halfway: its rows have no token, so no commit moves them
        )

    def stage(self, batch: DataFrame, epoch: int) -> Any:
        if batch.isEmpty():
            return None
        self._unfinished = epoch
        self._staging.write(batch, epoch)
        self._unfinished = None
        return {
            "job": self._staging.job_id,
            "table": self._staging.table,
            "columns": batch.columns,
            "epoch": epoch,
        }

    def commit(self, checkpoint_id: int, tokens: list[Any]) -> None:
        staging = self._staging
        if tokens:
            self._make_target(tokens)
        with staging.database.transaction() as transaction:
            self._lock(transaction)
            for token in tokens:
                table, names = token["table"], tuple(token["columns"])
                if not staging.is_there(transaction, table):
                    continue  # an earlier commit moved the rows, and the table was dropped since
                staging.dialect.move(transaction, StagedBatch(staging.target, table, names, token["epoch"]))
            transaction.run(
                f"UPDATE {staging.commits} SET checkpoint = ? WHERE job = ? AND sink = ? AND checkpoint < ?",
                *(checkpoint_id, staging.job_id, staging.sink, checkpoint_id),
            )

    def abort(self, tokens: list[Any] | None) -> None:
        staging = self._staging
        with staging.database.transaction() as transaction:
            self._lock(transaction)
            if tokens is None:
                staging.drop_others(transaction)
                return
            for token in tokens:
                if staging.is_there(transaction, token["table"]):
                    transaction.run(f"DELETE FROM {token['table']} WHERE {EPOCH} = ?", token["epoch"])

    def close(self) -> None:
        """Tidy up, but keep rows that a checkpoint may still cover."""
        if self._unfinished is not None:
            self.abort([{"table": self._staging.table, "epoch": self._unfinished}])
        self._staging.drop(only_if_empty=True)

    def _make_target(self, tokens: list[Any]) -> None:
        """Make the target, unless it is there: in its own transaction, which MySQL ends with it."""
        staging = self._staging
        with staging.database.transaction() as transaction:
            if staging.is_there(transaction, staging.target):
                return
            self._lock(transaction)
            for token in tokens:
                if staging.is_there(transaction, token["table"]):
                    staging.make_target(transaction, token["table"], tuple(token["columns"]), ())
                    return

    def _lock(self, transaction: Transaction) -> None:
        """Lock the sink's row in the commits table: until the transaction ends, no other one commits for this sink."""
        staging = self._staging
        if not staging.is_there(transaction, staging.commits):
            staging.dialect.make_commits(transaction, staging.commits)
        staging.dialect.lock(transaction, staging.commits, staging.job_id, staging.sink)


def _digest(*names: str) -> str:
    return hashlib.sha256("/".join(names).encode()).hexdigest()[:12]
