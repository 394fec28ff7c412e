"""Writes rows into a table of PostgreSQL: staged, then moved with the checkpoint; or as upserts by key.

In the schema of the target there are also the tables

    minflinkd_staged_<sink>_<attempt>   rows that are not moved yet, with the micro-batch that wrote them
    minflinkd_commits                   one row per sink: the last committed checkpoint; its lock orders commits

One transaction deletes rows from the staging table and inserts them into the target. So a repeated commit, or one from
an attempt that is believed dead, moves nothing twice.
"""

from __future__ import annotations

import hashlib
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody names it

from minflinkd.jobgraph.delivery import key_of
from minflinkd.jobgraph.model import Sink
from minflinkd.runtime.ids import AttemptId, JobId, VertexId
from minflinkd.taskmanager.session.sinks.database import Database, Transaction, columns, quoted, writer_options
from minflinkd.taskmanager.session.spark.session import Session
from minflinkd.taskmanager.session.state.ledger import Ledger

EPOCH = "minflinkd_epoch"
COMMITS = "minflinkd_commits"


class Staging:
    """The staging tables of one sink, one for each attempt. Spark's own writer fills them."""

    def __init__(self, session: Session, sink: Sink, job_id: JobId, vertex_id: VertexId, attempt_id: AttemptId) -> None:
        self.database = Database(session, sink.options)
        self.target = sink.options["dbtable"]
        self.job_id, self.sink = job_id, vertex_id
        self._options = writer_options(sink.options)
        self._schema = self.target.rpartition(".")[0]
        self._prefix = f"minflinkd_staged_{_digest(job_id, vertex_id)}_"
        self._own = self._prefix + _digest(attempt_id)
        self.table = self._beside(self._own)
        self.commits = self._beside(COMMITS)

    def write(self, frame: DataFrame, epoch: int) -> None:
        marked = frame.withColumn(EPOCH, F.lit(epoch).cast("long"))
        marked.write.format("jdbc").options(**(self._options | {"dbtable": self.table})).mode("append").save()

    def is_there(self, transaction: Transaction, table: str) -> bool:
        return transaction.number("SELECT 1 WHERE to_regclass(?) IS NOT NULL", table) == 1

    def make_target(self, transaction: Transaction, table: str, names: tuple[str, ...], key: tuple[str, ...]) -> None:
        """Create the target as Spark would, if the user has not."""
        if not self.is_there(transaction, self.target):
            transaction.run(f"CREATE TABLE {self.target} AS SELECT {columns(names)} FROM {table} WHERE false")  # noqa: S608
            if key:
                transaction.run(f"ALTER TABLE {self.target} ADD PRIMARY KEY ({columns(key)})")

    def drop_others(self, transaction: Transaction) -> None:
        """Drop the staging tables of earlier attempts. Whatever such an attempt still writes is not needed."""
        schema = self._schema.strip('"') or None
        pattern = self._prefix.replace("_", r"\_") + "%"
        where = "tablename LIKE ? AND tablename <> ? AND schemaname = coalesce(?, current_schema())"
        sql = f"SELECT tablename FROM pg_tables WHERE {where}"  # noqa: S608
        for name in transaction.texts(sql, pattern, self._own, schema):
            transaction.run(f"DROP TABLE IF EXISTS {self._beside(name)}")

    def drop(self, *, only_if_empty: bool) -> None:
        with self.database.transaction() as transaction:
            there = self.is_there(transaction, self.table)
            if there and only_if_empty:
                there = transaction.number(f"SELECT 1 FROM {self.table} LIMIT 1") is None  # noqa: S608
            if there:
                transaction.run(f"DROP TABLE {self.table}")

    def _beside(self, name: str) -> str:
        return f"{self._schema}.{name}" if self._schema else name


class UpsertSink:
    """Upserts each micro-batch: a row replaces the one with the same key. So repeated rows change nothing."""

    ledger: Ledger | None = None
    reads_all = True

    def __init__(self, staging: Staging, sink: Sink) -> None:
        self._staging = staging
        self._key = key_of(sink)
        with staging.database.transaction() as transaction:
            staging.drop_others(transaction)

    def write(self, frame: DataFrame, epoch: int) -> int:
        """Write a micro-batch. If several of its rows have the same key, any one of them is written.

        PostgreSQL refuses an upsert that changes a row twice.
        """
        staging, names = self._staging, tuple(frame.columns)
        staging.write(frame.dropDuplicates(list(self._key)), epoch)
        changed = [f"{quoted(name)} = EXCLUDED.{quoted(name)}" for name in names if name not in self._key]
        action = f"UPDATE SET {', '.join(changed)}" if changed else "NOTHING"
        with staging.database.transaction() as transaction:
            staging.make_target(transaction, staging.table, names, self._key)
            rows = transaction.run(
                f"INSERT INTO {staging.target} ({columns(names)}) SELECT {columns(names)} FROM {staging.table} "  # noqa: S608
                f"WHERE {EPOCH} = ? ON CONFLICT ({columns(self._key)}) DO {action}",
                epoch,
            )
            transaction.run(f"DELETE FROM {staging.table}")  # noqa: S608
        return rows

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
        with staging.database.transaction() as transaction:
            self._lock(transaction)
            for token in tokens:
                table, names = token["table"], tuple(token["columns"])
                if not staging.is_there(transaction, table):
                    continue  # an earlier commit moved the rows, and the table was dropped since
                staging.make_target(transaction, table, names, ())
                transaction.run(
                    f"WITH moved AS (DELETE FROM {table} WHERE {EPOCH} = ? RETURNING *) "  # noqa: S608
                    f"INSERT INTO {staging.target} ({columns(names)}) SELECT {columns(names)} FROM moved",
                    token["epoch"],
                )
            transaction.run(
                f"UPDATE {staging.commits} SET checkpoint = ? WHERE job = ? AND sink = ? AND checkpoint < ?",  # noqa: S608
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
                    transaction.run(f"DELETE FROM {token['table']} WHERE {EPOCH} = ?", token["epoch"])  # noqa: S608

    def close(self) -> None:
        """Tidy up, but keep rows that a checkpoint may still cover."""
        if self._unfinished is not None:
            self.abort([{"table": self._staging.table, "epoch": self._unfinished}])
        self._staging.drop(only_if_empty=True)

    def _lock(self, transaction: Transaction) -> None:
        """Lock the sink's row in the commits table: until the transaction ends, no other one commits for this sink."""
        staging = self._staging
        if not staging.is_there(transaction, staging.commits):
            transaction.run(
                f"CREATE TABLE IF NOT EXISTS {staging.commits} "
                "(job text, sink text, checkpoint bigint NOT NULL, PRIMARY KEY (job, sink))"
            )
        owner = (staging.job_id, staging.sink)
        transaction.run(f"INSERT INTO {staging.commits} VALUES (?, ?, 0) ON CONFLICT DO NOTHING", *owner)  # noqa: S608
        lock = f"SELECT checkpoint FROM {staging.commits} WHERE job = ? AND sink = ? FOR UPDATE"  # noqa: S608
        transaction.number(lock, *owner)


def _digest(*names: str) -> str:
    return hashlib.sha256("/".join(names).encode()).hexdigest()[:12]
