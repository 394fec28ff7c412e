"""A table of Iceberg as the target of a sink (K3): the library `pyiceberg` speaks to its catalog.

The mark is a property of the table, `minflinkd.<job>.<sink>`, in the commit that adds the files: snapshots expire, and
the mark must not. Each snapshot's summary also says which job, sink and checkpoint it is of.

The catalog refuses a commit if the branch has got another snapshot meanwhile. The library would then repeat it by
itself, without looking at the mark, or delete files of a commit whose answer was lost. So it is kept from both.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody names it
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from minflinkd.jobgraph.delivery import key_of
from minflinkd.jobgraph.model import Sink
from minflinkd.jobgraph.table_sinks import ADD_COLUMNS, CATALOG, COMPRESSION, OF_CATALOG, SCHEMA, TABLE
from minflinkd.taskmanager.placing import link_or_copy_durably
from minflinkd.taskmanager.session.plan.sink_checks import UnfitSink
from minflinkd.taskmanager.session.sinks.tables import iceberg_partitions
from minflinkd.taskmanager.session.sinks.tables.commits import Look
from minflinkd.taskmanager.session.sinks.tables.failures import Conflict, TableChanged, TableFailed, failing
from minflinkd.taskmanager.session.sinks.tables.fitting import (
    check_key,
    check_new,
    fitted,
    new_columns,
    nullable,
    only_with,
)
from minflinkd.taskmanager.session.sinks.tables.iceberg_files import data_file, described, record
from minflinkd.taskmanager.session.sinks.tables.iceberg_merges import (
    check_replaceable,
    discard,
    producer_of,
    rewritten,
)
from minflinkd.taskmanager.session.sinks.tables.iceberg_types import has_ids, leaves, of_spark
from minflinkd.taskmanager.session.sinks.tables.keyed_changes import KeyedChanges
from minflinkd.taskmanager.session.sinks.tables.parquet_files import LocalFile
from minflinkd.taskmanager.session.sinks.tables.rows import Layout
from minflinkd.taskmanager.session.sinks.tables.staged import BY_NAME, SPEC, DataFile, Staged
from minflinkd.taskmanager.session.spark.frames import quoted

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

_PIECE: Final = 4 << 20  # bytes
_CREATED: Final = {  # frequent commits must not make each later one slower
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
}
_MAPPING: Final = "schema.name-mapping.default"
_FORMATS: Final = (1, 2)
_IDENTITY: Final = "the table itself"
_TRIES: Final = 5  # to add columns beside other writers
# A task that is stopped must not wait for a storage that is away for longer than task.cancellation.timeout. In seconds.
_PATIENCE: Final = {"s3.connect-timeout": "5", "s3.request-timeout": "10"}
_ANSWER: Final = 15.0  # seconds for each answer of a REST catalog


class IcebergTarget:
    """One table, named by its catalog and its name there."""

    def __init__(self, sink: Sink) -> None:
        """Does not look at the table."""
        self._catalog_name = sink.options.get(CATALOG, "default")
        self._table_name = sink.options[TABLE]
        self.name = f"the Iceberg table {self._table_name} of catalog {self._catalog_name}"
        self.settings = {COMPRESSION: sink.options.get(COMPRESSION, "zstd")}
        self.key = key_of(sink)
        self._partition_by = sink.partition_by
        self._adds = sink.options.get(SCHEMA) == ADD_COLUMNS
        given = {name: value for name, value in sink.options.items() if name.startswith(OF_CATALOG)}
        self._settings = {name.removeprefix(OF_CATALOG): value for name, value in given.items()}
        self._catalog: Catalog | None = None
        self._seen = False  # whether this attempt has seen the table

    def load(self) -> None:
        try:
            import pyiceberg.catalog
            import pyiceberg.io.pyarrow  # noqa: F401
        except ImportError as error:
            raise UnfitSink(
                "the package pyiceberg is not installed, so no Iceberg table can be written",
                hint="pip install 'minflinkd[iceberg]' where the TaskManagers run",
            ) from error

    def check(self, rows: DataFrame) -> None:
        table = self.open()
        if table is not None:
            self._fit(table, rows)
            return
        check_key(rows.schema, self.key, self.name)
        self._check_new(nullable(rows.schema))

    def lay_out(self, rows: DataFrame) -> Layout:
        from pyiceberg.exceptions import CommitFailedException

        table = self.open()
        if table is None and self._seen:
            raise TableFailed(f"{self.name} is gone", hint="was it dropped or renamed?")
        table = table or self._create(nullable(rows.schema))
        self._seen = True
        for tried in range(_TRIES):
            new = new_columns(*of_spark(table.schema()), rows.schema)
            if not new or not self._adds:
                break
            check_new(new, self.name)
            try:
                with failing(self.name, "did not take new columns"), table.update_schema() as update:
                    update.union_by_name(_new_schema(StructType(new)))
            except TableFailed as error:  # others may have changed the table
                if not isinstance(error.__cause__, CommitFailedException) or tried == _TRIES - 1:
                    raise
            table = self.open() or table
        return self._fit(table, rows)

    def add(self, layout: Layout, file: LocalFile, name: str) -> DataFile:
        table: Table = layout.table
        spec, schema = table.spec(), table.schema()
        partition = iceberg_partitions.values(spec, schema, file.partition)
        with failing(self.name, "did not take a file"):
            if spec.fields:
                name = f"{spec.partition_to_path(record(partition), schema)}/{name}"
            location = table.location_provider().new_data_location(name)
            local = _on_this_machine(location)
            if local is not None:
                link_or_copy_durably(file.path, Path(local))
            else:
                with file.path.open("rb") as source, table.io.new_output(location).create() as target:
                    shutil.copyfileobj(source, target, _PIECE)
            about = described(table, file, partition)
        return DataFile(location, file.size, int(file.footer.num_rows), about=about)

    def look(self, owner: str) -> Look:
        if (table := self.open()) is None:
            return Look(None, None)
        mark = table.properties.get(owner)
        facts = _facts(table)
        return Look(None if mark is None else int(mark), table, facts)

    def commit(self, look: Look, owner: str, last: Staged, checkpoint_id: int, files: Sequence[DataFile]) -> None:
        table: Table = look.table
        self.check_still(table)
        properties = {owner: str(last.number)}
        by_name = last.relies_on.get(BY_NAME) == str(True)
        if by_name and _MAPPING not in table.properties:
            properties[_MAPPING] = table.schema().name_mapping.model_dump_json()
        merges = table.properties.get("commit.manifest-merge.enabled", "false").lower() == "true"
        # The library writes manifests of the table's present partition spec. Files may be of the one before.
        of_files = {"default_spec_id": int(last.spec)}
        table.metadata = table.metadata.model_copy(update=of_files)
        with (
            self.committing(table, properties, _told(owner, checkpoint_id)) as update,
            update.merge_append() if merges else update.fast_append() as append,
        ):
            for file in files:
                append.append_data_file(data_file(table, file))

    def merge(self, look: Look, owner: str, number: int, checkpoint_id: int, changes: KeyedChanges) -> None:
        table: Table = look.table
        self.check_still(table)
        with failing(self.name, "could not be rewritten"):
            files = rewritten(table, changes, self.key)
        try:
            with (
                self.committing(table, {owner: str(number)}, _told(owner, checkpoint_id)) as update,
                producer_of(files, update) as producer,
            ):
                for file in files.removed:
                    producer.delete_data_file(file)
                for file in files.added:
                    producer.append_data_file(file)
        except Conflict:
            # A catalog may have repeated a request of which it had lost the answer, and refused the second one.
            if (self.look(owner).number or 0) < number:
                with failing(self.name, "did not delete a file"):
                    discard(table, files.added)
            raise

    @contextmanager
    def committing(self, table: Table, properties: dict[str, str], told: dict[str, str]) -> Iterator[Any]:
        """Yield what makes a snapshot. It is committed with the table's new properties; `told` is in its summary.

        Raises Conflict if the table has got another snapshot, or other columns.
        """
        from pyiceberg.exceptions import CommitFailedException, ValidationException
        from pyiceberg.table.update import AssertCurrentSchemaId

        required = {"type": "assert-current-schema-id", "current-schema-id": table.schema().schema_id}
        same_columns = AssertCurrentSchemaId.model_validate(required)
        try:
            with failing(self.name, "did not take a commit"), table.transaction() as transaction:
                if properties:
                    transaction.set_properties(properties)
                # What was looked at must still hold: the columns, too.
                transaction._stage((), (same_columns,))
                yield transaction.update_snapshot(snapshot_properties=told)
                transaction._snapshot_producers = []  # what it would repeat, or clean up after a refusal
        except TableFailed as error:
            if isinstance(error.__cause__, CommitFailedException | ValidationException):
                raise Conflict(error.message) from error
            raise

    def check_still(self, table: Table) -> None:
        """Raise TableChanged if the table cannot be written any more."""
        try:
            self._check_format(table)
        except UnfitSink as error:
            raise TableChanged(error.message, hint="rows wait in the checkpoint") from error

    def has(self, look: Look, file: DataFile) -> bool:
        with failing(self.name, "did not say whether it has a file"):
            return bool(look.table.io.new_input(file.path).exists())

    def delete(self, look: Look, file: DataFile) -> None:
        if (local := _on_this_machine(file.path)) is not None:
            Path(local).unlink(missing_ok=True)
        elif look.table is not None:
            with failing(self.name, "did not delete a file"), suppress(FileNotFoundError):
                look.table.io.delete(file.path)

    def open(self) -> Table | None:
        """Return the table as it is now; None if there is none."""
        self.load()
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NoSuchTableError

        with failing(self.name, "cannot be read"):
            if self._catalog is None:
                self._catalog = _with_limit(load_catalog(self._catalog_name, **(_PATIENCE | self._settings)))
            try:
                return self._catalog.load_table(self._table_name)
            except NoSuchTableError:
                return None

    def _create(self, schema: StructType) -> Table:
        from pyiceberg.exceptions import TableAlreadyExistsError

        assert self._catalog is not None
        self._check_new(schema)
        namespace = self._table_name.rpartition(".")[0]
        with failing(self.name, "cannot be made"):
            if not self._catalog.namespace_exists(namespace):
                self._catalog.create_namespace_if_not_exists(namespace)
            with suppress(TableAlreadyExistsError):  # another job may just have made it
                new = _new_schema(schema)
                with self._catalog.create_table_transaction(self._table_name, new, properties=_CREATED) as transaction:
                    if self._partition_by:
                        with transaction.update_spec() as spec:
                            for name in self._partition_by:
                                spec.add_identity(name)
            return self._catalog.load_table(self._table_name)

    def _fit(self, table: Table, rows: DataFrame) -> Layout:
        """Raises UnfitSink."""
        self._check_format(table)
        spec, schema = table.spec(), table.schema()
        by_identity = [schema.find_column_name(field.source_id) for field in spec.fields]
        if self._partition_by and (
            list(self._partition_by) != by_identity or any(str(field.transform) != "identity" for field in spec.fields)
        ):
            raise UnfitSink(
                f"{self.name} is partitioned by {', '.join(map(str, spec.fields)) or 'nothing'}, not by "
                + ", ".join(self._partition_by),
                hint="leave partition-by out: an existing table has its own",
            )
        columns, others = of_spark(schema)
        kinds = {name.lower(): kind for name, kind in others.items()}
        for name in rows.columns:
            if name.lower() in kinds:
                raise UnfitSink(
                    f"column {name} of {self.name} is {kinds[name.lower()]}, which Spark cannot write",
                    hint="leave it out of the rows, or write another table",
                )
        if self._adds:
            new = new_columns(columns, others, rows.schema)
            check_new(new, self.name)
            columns = StructType([*columns.fields, *new])
        laid_out = fitted(rows, columns, self.name)
        if missing := [field.name for field in schema.fields if field.required and field.name not in laid_out.columns]:
            raise UnfitSink(
                f"{self.name} needs a column {missing[0]}, which may not be NULL, and the rows do not have it",
                hint="write another table, or make the column optional",
            )
        for field in columns.fields:
            if not field.nullable:
                laid_out = only_with(laid_out, f"{field.name} NOT NULL", f"{quoted(field.name)} IS NOT NULL", self.name)
        added = iceberg_partitions.columns(spec, schema, laid_out.schema, self.name)
        if self.key:
            check_key(columns, self.key, self.name)
            check_replaceable(table, self.name)
            return Layout(laid_out, (), table, _relied_on_by_rows(table, laid_out.columns))
        order = _order(table, laid_out.columns)
        laid_out = laid_out.withColumns(added) if added else laid_out
        if order:
            laid_out = laid_out.sortWithinPartitions(*(F.col(name) for name in added), *order)
        by_name = not has_ids(columns)
        written = [leaf for leaf in leaves(schema) if leaf[0].partition(".")[0] in laid_out.columns]
        relied_on = {_IDENTITY, SPEC, *(_with_id(number) for _, number, _ in written)}
        relied_on |= {f"column {path}" for path, _, _ in written} if by_name else set()
        if by_name:
            self._check_mapping(table, laid_out.columns)
        facts = _facts(table) | {BY_NAME: str(by_name)}
        relies_on = {name: fact for name, fact in facts.items() if name in relied_on | {BY_NAME}}
        return Layout(laid_out, tuple(added), table, relies_on)

    def _check_mapping(self, table: Table, columns: Sequence[str]) -> None:
        """Raise UnfitSink if the table's name mapping does not tell readers what the files' columns are."""
        mapping = table.name_mapping()
        known = {name for field in mapping for name in field.names} if mapping is not None else {*columns}
        if missing := [name for name in columns if name not in known and not name.startswith("minflinkd_p")]:
            raise UnfitSink(
                f"the name mapping of {self.name} lacks {missing[0]}, so readers would not find the column",
                hint=f"add it to the table's property {_MAPPING}",
            )

    def _check_format(self, table: Table) -> None:
        if table.metadata.format_version not in _FORMATS:
            raise UnfitSink(
                f"{self.name} is of format version {table.metadata.format_version}, which pyiceberg does not write",
                hint="write a table of format version 2",
            )

    def _check_new(self, schema: StructType) -> None:
        """Raise UnfitSink, TableFailed if no table can be made for these rows."""
        for name in self._partition_by:
            kind = next((field.dataType for field in schema.fields if field.name == name), None)
            if kind is not None and not iceberg_partitions.by_value(kind):
                raise UnfitSink(
                    f"{self.name} cannot be partitioned by {name}, which is {kind.simpleString()}",
                    hint=f"partition by a text, date, time with a zone, whole number or boolean: CAST({name} AS DATE)",
                )
        check_new(schema.fields, self.name)
        with failing(self.name, "cannot be made"):
            _new_schema(schema)


def _with_limit(catalog: Catalog) -> Catalog:
    """Give the requests of a REST catalog a time limit. The library sets none, and a stop would wait for them."""
    session: Any = getattr(catalog, "_session", None)
    if session is not None:
        session.request = partial(session.request, timeout=_ANSWER)
    return catalog


def _told(owner: str, checkpoint_id: int) -> dict[str, str]:
    """Return what a snapshot says of who has made it."""
    _, job, sink = owner.split(".", 2)
    return {"minflinkd.job": job, "minflinkd.vertex": sink, "minflinkd.checkpoint": str(checkpoint_id)}


def _relied_on_by_rows(table: Table, columns: Sequence[str]) -> dict[str, str]:
    """Return the facts on which rows depend that become files only with their commit: names and types of columns."""
    written = [leaf for leaf in leaves(table.schema()) if leaf[0].partition(".")[0] in columns]
    names = {_IDENTITY, *(_with_id(number) for _, number, _ in written), *(f"column {path}" for path, _, _ in written)}
    return {name: fact for name, fact in _facts(table).items() if name in names}


def _with_id(number: int) -> str:
    return f"the column with the id {number}"


def _facts(table: Table) -> dict[str, str]:
    """Return what staged files may depend on: files with ids on the type of each, others also on the names."""
    by_id = {_with_id(number): kind for _, number, kind in leaves(table.schema())}
    by_name = {f"column {path}": str(number) for path, number, _ in leaves(table.schema())}
    return {_IDENTITY: str(table.metadata.table_uuid), SPEC: str(table.spec().spec_id), **by_id, **by_name}


def _on_this_machine(location: str) -> str | None:
    """Return the path of a local location; None for any other. Iceberg takes a location as it is: `%20` is no space."""
    if location.startswith("file:"):
        return "/" + location.removeprefix("file:").lstrip("/")
    return location if location.startswith("/") else None


def _new_schema(schema: StructType) -> Any:
    """Return columns in the form in which Iceberg's library takes new ones: those of pyarrow."""
    from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids

    arrow = to_arrow_schema(schema, timezone="UTC")
    _pyarrow_to_schema_without_ids(arrow)  # raises what the library says of a type that Iceberg does not have
    return arrow


def _order(table: Table, columns: Sequence[str]) -> list[Any]:
    """Return how the rows of a file are sorted; nothing if it is not by plain columns."""
    found = []
    for field in table.sort_order().fields:
        name = table.schema().find_column_name(field.source_id) or ""
        if str(field.transform) != "identity" or name not in columns:
            return []
        column = F.col(quoted(name))
        nulls_first = str(field.null_order.value) == "nulls-first"
        if str(field.direction.value) == "asc":
            found.append(column.asc_nulls_first() if nulls_first else column.asc_nulls_last())
        else:
            found.append(column.desc_nulls_first() if nulls_first else column.desc_nulls_last())
    return found
