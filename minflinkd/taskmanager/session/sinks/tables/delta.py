"""A table of Delta Lake as the target of a sink (K2): the library `deltalake` reads and commits its log.

The mark is Delta's own: each commit carries `txn: {appId, version}`. The log's protocol refuses a commit beside another
one with the same application since the version that it is based on.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyarrow.fs import FileType, PyFileSystem
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from minflinkd.jobgraph.delivery import KEYED_OPTIONS, key_of
from minflinkd.jobgraph.model import Sink
from minflinkd.jobgraph.table_sinks import ADD_COLUMNS, COMPRESSION, SCHEMA
from minflinkd.taskmanager.placing import link_or_copy_durably
from minflinkd.taskmanager.session.plan.sink_checks import UnfitSink
from minflinkd.taskmanager.session.sinks.files import local_path
from minflinkd.taskmanager.session.sinks.tables.commits import Look
from minflinkd.taskmanager.session.sinks.tables.delta_rules import (
    check_features,
    check_partitions,
    conditions,
    facts_of,
    relied_on,
    schema_of,
)
from minflinkd.taskmanager.session.sinks.tables.delta_statistics import statistics
from minflinkd.taskmanager.session.sinks.tables.failures import Conflict, TableChanged, TableFailed, failing
from minflinkd.taskmanager.session.sinks.tables.fitting import (
    check_key,
    check_new,
    fitted,
    new_columns,
    nullable,
    only_with,
)
from minflinkd.taskmanager.session.sinks.tables.keyed_changes import GONE, KeyedChanges
from minflinkd.taskmanager.session.sinks.tables.parquet_files import LocalFile
from minflinkd.taskmanager.session.sinks.tables.rows import Layout
from minflinkd.taskmanager.session.sinks.tables.staged import DataFile, Staged

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

_TRIES: Final = 5  # to add columns beside other writers
_OWN: Final = frozenset({SCHEMA, COMPRESSION}) | KEYED_OPTIONS  # options that are not the storage's
# A task that is stopped must not wait for a storage that is away for longer than task.cancellation.timeout.
_PATIENCE: Final = {"connect_timeout": "5s", "timeout": "30s", "max_retries": "3", "retry_timeout": "10s"}
_PLAIN: Final = re.compile(r"[\w.=/-]*", re.ASCII)  # a path that is the same in an address
_PIECE: Final = 4 << 20  # bytes
_REOPENS: Final = 60.0  # seconds between two readings of the whole log; between them only what is new is read
# With these two writers can overwrite each other's commit: options, or variables of the environment.
_UNSAFE: Final = ("aws_s3_allow_unsafe_rename", "mount_allow_unsafe_rename", "allow_unsafe_rename")
_UNCONDITIONAL: Final = ("aws_conditional_put", "conditional_put")


class DeltaTarget:
    """One table, named by its directory."""

    def __init__(self, sink: Sink) -> None:
        """Does not look at the table."""
        assert sink.path is not None
        self.uri = re.sub(r"^s3[an]://", "s3://", sink.path).rstrip("/")
        self.name = f"the Delta table {self.uri}"
        self.settings = {COMPRESSION: sink.options[COMPRESSION]} if COMPRESSION in sink.options else {}
        self._local = local_path(self.uri)
        self._partition_by = sink.partition_by
        self.key = key_of(sink)
        self._adds = sink.options.get(SCHEMA) == ADD_COLUMNS
        given = {name: value for name, value in sink.options.items() if name not in _OWN}
        self._options = given if self._local is not None else _PATIENCE | given
        self._laid: DeltaTable | None = None  # as the last micro-batch has seen it
        self._opened_at = 0.0  # on the monotonic clock: when its log was last read anew

    def load(self) -> None:
        try:
            import deltalake  # noqa: F401
        except ImportError as error:
            raise UnfitSink(
                "the package deltalake is not installed, so no Delta table can be written",
                hint="pip install 'minflinkd[delta]' where the TaskManagers run",
            ) from error

    def check(self, rows: DataFrame) -> None:
        table = self._open()
        if table is None:
            check_key(rows.schema, self.key, self.name)
            check_new(rows.schema.fields, self.name)
            check_partitions(nullable(rows.schema), self._partition_by, self.name)
            with failing(self.name, "cannot be made"):
                _of_delta(nullable(rows.schema))
            return
        self._fit(table, rows)

    def lay_out(self, rows: DataFrame) -> Layout:
        from deltalake.exceptions import CommitFailedError

        table = self._laid = self._now(nullable(rows.schema))
        for tried in range(_TRIES):
            new = new_columns(schema_of(table), (), rows.schema)
            if not new or not self._adds:
                break
            check_features(table, self.name)
            check_new(new, self.name)
            try:
                with failing(self.name, "did not take new columns"):
                    table.alter.add_columns(list(_of_delta(StructType(new)).fields))
            except TableFailed as error:  # another job may just have added them
                if not isinstance(error.__cause__, CommitFailedError) or tried == _TRIES - 1:
                    raise
            table = self._laid = self._open() or table
        return self._fit(table, rows)

    def _now(self, schema: StructType) -> DeltaTable:
        """Return the table as it is now. Makes one with this schema, unless this attempt has seen one before."""
        if self._laid is None:
            self._opened_at = time.monotonic()
            return self._open() or self._create(schema)
        if time.monotonic() - self._opened_at < _REOPENS:
            with failing(self.name, "cannot be read"):
                self._laid.update_incremental()
            return self._laid
        table, self._opened_at = self._open(), time.monotonic()
        if table is None or table.metadata().id != self._laid.metadata().id:  # an update of the one before sees no such
            raise TableFailed(
                f"{self.name} was replaced or is gone", hint="the job restarts, and writes to what is there"
            )
        return table

    def add(self, layout: Layout, file: LocalFile, name: str) -> DataFile:
        path = f"{file.directory}/{name}" if file.directory and _PLAIN.fullmatch(file.directory) else name
        with failing(self.name, "did not take a file"):
            if self._local is not None:
                link_or_copy_durably(file.path, Path(self._local) / path)
            else:
                files = self._files()
                # With a buffer: the library's stream takes bytes only, and without one it gets other objects.
                with file.path.open("rb") as source, files.open_output_stream(path, buffer_size=_PIECE) as target:
                    shutil.copyfileobj(source, target, _PIECE)
        return DataFile(path, file.size, int(file.footer.num_rows), dict(file.partition), statistics(file.footer))

    def look(self, owner: str) -> Look:
        if (table := self._open()) is None:
            return Look(None, None)
        return Look(table.transaction_version(owner), table, facts_of(table))

    def commit(self, look: Look, owner: str, last: Staged, checkpoint_id: int, files: Sequence[DataFile]) -> None:
        from deltalake.transaction import AddAction

        table: DeltaTable = look.table
        self._check_still(table)
        now = int(time.time() * 1000)
        actions = [AddAction(file.path, file.size, file.partition, now, True, file.about) for file in files]
        partition_by = table.metadata().partition_columns
        properties = _properties(owner, last.number, checkpoint_id)
        with self._committing():
            table.create_write_transaction(
                list(actions), "append", table.schema(), partition_by, commit_properties=properties
            )

    def merge(self, look: Look, owner: str, number: int, checkpoint_id: int, changes: KeyedChanges) -> None:
        """Replace, insert and delete rows, and set the mark, all or nothing. Raises Conflict."""
        table: DeltaTable = look.table
        self._check_still(table)
        same = (f'target."{_doubled(name)}" = source."{_doubled(name)}"' for name in self.key)
        properties = _properties(owner, number, checkpoint_id)
        with self._committing():
            merger = table.merge(
                source=changes.together() if len(changes.gone) else changes.rows,
                predicate=" AND ".join(same),
                source_alias="source",
                target_alias="target",
                streamed_exec=False,  # then it looks only into files that may have these keys
                commit_properties=properties,
            )
            if not len(changes.gone):
                merger = merger.when_matched_update_all().when_not_matched_insert_all()
            else:
                merger = merger.when_matched_delete(f'source."{GONE}"')
                if len(changes.rows):
                    stays, unwritten = f'NOT source."{GONE}"', [GONE]
                    merger = merger.when_matched_update_all(stays, unwritten)
                    merger = merger.when_not_matched_insert_all(stays, unwritten)
            merger.execute()
            if table.transaction_version(owner) != number:  # it commits nothing, and no mark, if no row has changed
                table.create_write_transaction(
                    [], "append", table.schema(), table.metadata().partition_columns, commit_properties=properties
                )

    @contextmanager
    def _committing(self) -> Iterator[None]:
        from deltalake.exceptions import CommitFailedError

        try:
            with failing(self.name, "did not take a commit"):
                yield
        except TableFailed as error:
            if isinstance(error.__cause__, CommitFailedError):
                raise Conflict(error.message) from error
            raise

    def has(self, look: Look, file: DataFile) -> bool:
        if self._local is not None:
            return (Path(self._local) / file.path).exists()
        with failing(self.name, "did not say whether it has a file"):
            (found,) = self._files().get_file_info([file.path])
            return bool(found.type == FileType.File)

    def delete(self, look: Look, file: DataFile) -> None:
        if self._local is not None:
            (Path(self._local) / file.path).unlink(missing_ok=True)
            return
        with failing(self.name, "did not delete a file"), suppress(FileNotFoundError):
            self._files().delete_file(file.path)

    def _open(self) -> DeltaTable | None:
        """Return the table as it is now; None if there is none."""
        self.load()
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        self._check_safe()
        with failing(self.name, "cannot be read"):
            try:
                return DeltaTable(self.uri, storage_options=self._options)
            except TableNotFoundError:
                return None

    def _check_safe(self) -> None:
        given = {name.lower(): value.lower() for name, value in {**os.environ, **self._options}.items()}
        unsafe = [name for name in _UNSAFE if given.get(name, "false") not in ("false", "0", "no", "")]
        unsafe += [name for name in _UNCONDITIONAL if given.get(name) == "disabled"]
        if unsafe:
            raise UnfitSink(
                f"{self.name}: with {unsafe[0]} two writers can overwrite each other's commit, and rows get lost",
                hint="leave it out of the sink's options, and of the environment of the TaskManagers",
            )

    def _create(self, schema: StructType) -> DeltaTable:
        from deltalake import DeltaTable

        check_partitions(schema, self._partition_by, self.name)
        check_new(schema.fields, self.name)
        with failing(self.name, "cannot be made"):
            return DeltaTable.create(
                self.uri,
                _of_delta(schema),
                mode="ignore",  # another job may just have made it
                partition_by=list(self._partition_by),
                storage_options=self._options,
            )

    def _fit(self, table: DeltaTable, rows: DataFrame) -> Layout:
        """Raises UnfitSink."""
        check_features(table, self.name)
        plain = [StructField(field.name, field.dataType, field.nullable) for field in schema_of(table).fields]
        schema, partition_by = StructType(plain), tuple(table.metadata().partition_columns)
        if self._partition_by not in ((), partition_by):
            raise UnfitSink(
                f"{self.name} is partitioned by {', '.join(partition_by) or 'nothing'}, not by "
                + ", ".join(self._partition_by),
                hint="leave partition-by out: an existing table has its own",
            )
        check_partitions(schema, partition_by, self.name)
        check_key(schema, self.key, self.name)
        if self._adds:
            new = new_columns(schema, (), rows.schema)
            check_new(new, self.name)
            schema = StructType([*schema.fields, *new])
        laid_out = fitted(rows, schema, self.name)
        if missing := [name for name in partition_by if name not in laid_out.columns]:
            raise UnfitSink(
                f"{self.name} is partitioned by {missing[0]}, a column that the rows do not have",
                hint=f"add {missing[0]} to the rows",
            )
        for name, condition in conditions(table, schema, partition_by):
            laid_out = only_with(laid_out, name, condition, self.name)
        return Layout(laid_out, partition_by, table, relied_on(table, laid_out.schema))

    def _check_still(self, table: DeltaTable) -> None:
        """Raise TableChanged if the table now asks more of a writer than when rows were staged."""
        try:
            check_features(table, self.name)
        except UnfitSink as error:
            hint = f"rows wait in the checkpoint, and are written once this is undone; or {error.hint}"
            raise TableChanged(error.message, hint=hint) from error

    def _files(self) -> PyFileSystem:
        from deltalake.fs import DeltaStorageHandler

        return PyFileSystem(DeltaStorageHandler(self.uri, self._options))


def _doubled(name: str) -> str:
    return name.replace('"', '""')


def _properties(owner: str, number: int, checkpoint_id: int) -> CommitProperties:
    """Return what a commit carries: the mark, and for users who made it."""
    from deltalake import CommitProperties, Transaction

    told = {"minflinkd.sink": owner, "minflinkd.checkpoint": str(checkpoint_id)}
    return CommitProperties(app_transactions=[Transaction(owner, number)], custom_metadata=told)


def _of_delta(schema: StructType) -> Any:
    from deltalake import Schema

    return Schema.from_json(schema.json())
