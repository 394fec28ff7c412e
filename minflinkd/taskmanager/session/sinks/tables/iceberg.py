"""A table of Iceberg as the target of a sink (K3): the library `pyiceberg` speaks to its catalog.

The mark is a property of the table, `minflinkd.<job>.<sink>`, in the commit that adds the files: snapshots expire, and
the mark must not. Each snapshot's summary also says which job, sink and checkpoint it is of.

The catalog refuses a commit if the branch has got another snapshot meanwhile. The library would then repeat it by
itself, without looking at the mark. So its own retries are off.

Spark writes no field ids, so columns are found by name: the table gets a name mapping.
"""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody names it
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from minflinkd.jobgraph.model import Sink
from minflinkd.jobgraph.table_sinks import ADD_COLUMNS, CATALOG, COMPRESSION, OF_CATALOG, SCHEMA, TABLE
from minflinkd.taskmanager.placing import link_or_copy_durably
from minflinkd.taskmanager.session.plan.sink_checks import UnfitSink
from minflinkd.taskmanager.session.sinks.tables import iceberg_partitions
from minflinkd.taskmanager.session.sinks.tables.failures import Conflict, TableFailed, said
from minflinkd.taskmanager.session.sinks.tables.fitting import fitted, new_columns, nullable, only_with
from minflinkd.taskmanager.session.sinks.tables.iceberg_types import of_spark
from minflinkd.taskmanager.session.sinks.tables.parquet_files import LocalFile
from minflinkd.taskmanager.session.sinks.tables.staged import DataFile

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

_THERE: Final = "are the catalog and its storage there, and may this user read and write them?"
_BYTES: Final = ("lower_bounds", "upper_bounds")  # of a file, by the id of the column
_PIECE: Final = 4 << 20  # bytes
_CREATED: Final = {  # frequent commits must not make each later one slower
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
}
_MAPPING: Final = "schema.name-mapping.default"
_LIBRARIES: Final = ("pyiceberg", "requests", "sqlalchemy", "botocore", "pydantic", "pyarrow", "fsspec", "urllib3")


class IcebergTarget:
    """One table, named by its catalog and its name there."""

    def __init__(self, sink: Sink) -> None:
        """Does not look at the table."""
        self._catalog_name = sink.options.get(CATALOG, "default")
        self._table_name = sink.options[TABLE]
        self.name = f"the Iceberg table {self._table_name} of catalog {self._catalog_name}"
        self.settings = {COMPRESSION: sink.options.get(COMPRESSION, "zstd")}
        self._partition_by = sink.partition_by
        self._adds = sink.options.get(SCHEMA) == ADD_COLUMNS
        given = {name: value for name, value in sink.options.items() if name.startswith(OF_CATALOG)}
        self._settings = {name.removeprefix(OF_CATALOG): value for name, value in given.items()}
        self._catalog: Catalog | None = None
        self._read: Table | None = None  # as it was when the mark was read, or the rows were laid out

    def check(self, rows: DataFrame) -> None:
        table = self._open()
        if table is None:
            with self._said("cannot be made"):
                _new_schema(nullable(rows.schema))
            return
        self._fit(table, rows)

    def lay_out(self, rows: DataFrame) -> tuple[DataFrame, tuple[str, ...]]:
        table = self._open() or self._create(nullable(rows.schema))
        new = new_columns(of_spark(table.schema())[0], rows.schema)
        if new and self._adds:
            with self._said("did not take new columns"), table.update_schema() as update:
                update.union_by_name(_new_schema(StructType(new)))
            table = self._open() or table
        self._read = table
        return self._fit(table, rows)

    def add(self, file: LocalFile, name: str) -> DataFile:
        table = self._read
        assert table is not None
        spec, schema = table.spec(), table.schema()
        partition = iceberg_partitions.values(spec, schema, file.partition)
        with self._said("did not take a file"):
            if spec.fields:
                name = f"{spec.partition_to_path(_record(partition), schema)}/{name}"
            location = table.location_provider().new_data_location(name)
            local = _on_this_machine(location)
            if local is not None:
                link_or_copy_durably(file.path, Path(local))
            else:
                with file.path.open("rb") as source, table.io.new_output(location).create() as target:
                    shutil.copyfileobj(source, target, _PIECE)
            about = _about(table, file, partition)
        return DataFile(location, file.size, int(file.footer.num_rows), about=about)

    def published(self, owner: str) -> int | None:
        table = self._read = self._open()
        mark = None if table is None else table.properties.get(owner)
        return None if mark is None else int(mark)

    def commit(self, owner: str, number: int, checkpoint_id: int, files: Sequence[DataFile]) -> None:
        from pyiceberg.exceptions import CommitFailedException, ValidationException

        table = self._read
        if table is None:
            raise TableFailed(
                f"{self.name} is gone",
                hint="was it dropped or renamed? The rows stay staged, and it is tried again",
            )
        _, job, sink = owner.split(".", 2)
        told = {"minflinkd.job": job, "minflinkd.vertex": sink, "minflinkd.checkpoint": str(checkpoint_id)}
        properties = {owner: str(number)}
        if _MAPPING not in table.properties:
            properties[_MAPPING] = table.schema().name_mapping.model_dump_json()
        once = {**table.metadata.properties, "commit.retry.num-retries": "0"}
        table.metadata = table.metadata.model_copy(update={"properties": once})
        try:
            with self._said("did not take a commit"), table.transaction() as transaction:
                transaction.set_properties(properties)
                update = transaction.update_snapshot(snapshot_properties=told)
                merges = table.properties.get("commit.manifest-merge.enabled", "false").lower() == "true"
                with update.merge_append() if merges else update.fast_append() as append:
                    for file in files:
                        append.append_data_file(_data_file(table, file))
        except TableFailed as error:
            if isinstance(error.__cause__, CommitFailedException | ValidationException):
                raise Conflict(error.message) from error
            raise

    def has(self, file: DataFile) -> bool:
        assert self._read is not None
        with self._said("did not say whether it has a file"):
            return bool(self._read.io.new_input(file.path).exists())

    def delete(self, file: DataFile) -> None:
        if (local := _on_this_machine(file.path)) is not None:
            Path(local).unlink(missing_ok=True)
        elif (table := self._read) is not None:
            with self._said("did not delete a file"), suppress(FileNotFoundError):
                table.io.delete(file.path)

    def _open(self) -> Table | None:
        """Return the table as it is now; None if there is none."""
        try:
            from pyiceberg.catalog import load_catalog
            from pyiceberg.exceptions import NoSuchTableError
        except ImportError as error:
            raise UnfitSink(
                "the package pyiceberg is not installed, so no Iceberg table can be written",
                hint="pip install 'minflinkd[iceberg]' where the TaskManagers run",
            ) from error
        with self._said("cannot be read"):
            if self._catalog is None:
                self._catalog = load_catalog(self._catalog_name, **self._settings)
            try:
                return self._catalog.load_table(self._table_name)
            except NoSuchTableError:
                return None

    def _create(self, schema: StructType) -> Table:
        from pyiceberg.exceptions import TableAlreadyExistsError

        assert self._catalog is not None
        with self._said("cannot be made"):
            self._catalog.create_namespace_if_not_exists(self._table_name.rpartition(".")[0])
            with suppress(TableAlreadyExistsError):  # another job may just have made it
                new = _new_schema(schema)
                with self._catalog.create_table_transaction(self._table_name, new, properties=_CREATED) as transaction:
                    if self._partition_by:
                        with transaction.update_spec() as spec:
                            for name in self._partition_by:
                                spec.add_identity(name)
            return self._catalog.load_table(self._table_name)

    def _fit(self, table: Table, rows: DataFrame) -> tuple[DataFrame, tuple[str, ...]]:
        """Return the rows as the table's files have them, and the columns of their partitions. Raises UnfitSink."""
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
        for name in rows.columns:
            if name in others:
                raise UnfitSink(
                    f"column {name} of {self.name} is {others[name]}, which Spark cannot write",
                    hint="leave it out of the rows, or write another table",
                )
        if self._adds:
            columns = StructType([*columns.fields, *new_columns(columns, rows.schema)])
        try:
            laid_out = fitted(rows, columns, self.name)
        except AnalysisException as error:
            raise UnfitSink(f"the rows do not fit {self.name}: {error}", hint="cast the columns in SQL") from error
        for field in columns.fields:
            if not field.nullable:
                quoted = f"`{field.name.replace('`', '``')}`"
                laid_out = only_with(laid_out, f"{field.name} NOT NULL", f"{quoted} IS NOT NULL", self.name)
        added = iceberg_partitions.columns(spec, schema, laid_out.schema, self.name)
        order = _order(table, laid_out.columns)
        laid_out = laid_out.withColumns(added) if added else laid_out
        if order:
            laid_out = laid_out.sortWithinPartitions(*(F.col(name) for name in added), *order)
        return laid_out, tuple(added)

    @contextmanager
    def _said(self, what: str) -> Iterator[None]:
        """Turn what the library, the catalog or the storage raises into TableFailed."""
        try:
            yield
        except (TableFailed, UnfitSink):
            raise
        except Exception as error:
            if not isinstance(error, OSError | ValueError | RuntimeError | TypeError) and not type(
                error
            ).__module__.startswith(_LIBRARIES):
                raise
            raise TableFailed(f"{self.name} {what}: {said(error)}", hint=_THERE) from error


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
        name = table.schema().find_column_name(field.source_id)
        if str(field.transform) != "identity" or name not in columns:
            return []
        column = F.col(f"`{name}`")
        nulls_first = str(field.null_order.value) == "nulls-first"
        if str(field.direction.value) == "asc":
            found.append(column.asc_nulls_first() if nulls_first else column.asc_nulls_last())
        else:
            found.append(column.desc_nulls_first() if nulls_first else column.desc_nulls_last())
    return found


def _record(values: Sequence[Any]) -> Any:
    from pyiceberg.typedef import Record

    return Record(*values)


def _about(table: Table, file: LocalFile, partition: Sequence[Any]) -> str:
    """Return what a manifest says of a file, in JSON."""
    from pyiceberg.io.pyarrow import (
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )

    found = data_file_statistics_from_parquet_metadata(
        parquet_metadata=file.footer,
        stats_columns=compute_statistics_plan(table.schema(), table.metadata.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(table.schema()),
    ).to_serialized_dict()
    for name in _BYTES:
        found[name] = {key: base64.b64encode(value).decode() for key, value in found[name].items()}
    texts = [str(value) if value is not None and not isinstance(value, int) else value for value in partition]
    return json.dumps({**found, "spec_id": table.spec().spec_id, "partition": texts})


def _data_file(table: Table, file: DataFile) -> Any:
    from pyiceberg.manifest import DataFile as Described
    from pyiceberg.manifest import DataFileContent, FileFormat

    about: dict[str, Any] = json.loads(file.about)
    spec = table.specs()[about.pop("spec_id")]
    texts = about.pop("partition")
    kinds = [str(field.field_type) for field in spec.partition_type(table.schema()).fields]
    partition = [iceberg_partitions.stored(kind, text) for kind, text in zip(kinds, texts, strict=True)]
    for name, value in about.items():
        if isinstance(value, dict):  # by the id of the column, which JSON made a text
            decode = base64.b64decode if name in _BYTES else int
            about[name] = {int(key): decode(each) for key, each in value.items()}
    return Described.from_args(
        _table_format_version=table.metadata.format_version,
        content=DataFileContent.DATA,
        file_path=file.path,
        file_format=FileFormat.PARQUET,
        partition=_record(partition),
        file_size_in_bytes=file.size,
        sort_order_id=None,
        spec_id=spec.spec_id,
        equality_ids=None,
        key_metadata=None,
        **about,
    )
