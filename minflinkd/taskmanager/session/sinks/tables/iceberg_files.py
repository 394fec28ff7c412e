"""What a manifest of Iceberg says of a data file: made when it is staged, kept in the token, used by the commit."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet

from minflinkd.taskmanager.session.sinks.tables import iceberg_partitions
from minflinkd.taskmanager.session.sinks.tables.parquet_files import LocalFile
from minflinkd.taskmanager.session.sinks.tables.staged import DataFile

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.typedef import Record

MOST_COLUMNS: Final = 32  # with statistics: a token is in each checkpoint until its rows are published
_BYTES: Final = ("lower_bounds", "upper_bounds")  # by the id of the column
_COUNTS_ONLY: Final = {"write.metadata.metrics.default": "counts"}


def record(values: Sequence[Any]) -> Record:
    from pyiceberg.typedef import Record

    return Record(*values)


def described(table: Table, file: LocalFile, partition: Sequence[Any]) -> str:
    """Return the statistics and the partition of a file, in JSON."""
    try:
        found = _statistics(table, file.footer, table.metadata.properties)
    except (ArithmeticError, ValueError):  # a date or time that Python does not have
        found = _statistics(table, file.footer, _COUNTS_ONLY)
    texts = [str(value) if value is not None and not isinstance(value, int) else value for value in partition]
    return json.dumps({**found, "spec_id": table.spec().spec_id, "partition": texts})


def _statistics(table: Table, footer: pyarrow.parquet.FileMetaData, properties: dict[str, str]) -> dict[str, Any]:
    from pyiceberg.io.pyarrow import (
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )

    ids = parquet_path_to_id_mapping(table.schema())
    found: dict[str, Any] = data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer,
        stats_columns=compute_statistics_plan(table.schema(), properties),
        parquet_column_mapping=ids,
    ).to_serialized_dict()
    unknown = {ids[path] for path in _partly_known(footer) if path in ids}
    for name, values in found.items():
        if isinstance(values, dict):
            kept = {key: values[key] for key in sorted(values)[:MOST_COLUMNS] if key not in unknown}
            encode = name in _BYTES
            found[name] = {key: base64.b64encode(value).decode() if encode else value for key, value in kept.items()}
    return found


def _partly_known(footer: pyarrow.parquet.FileMetaData) -> Iterator[str]:
    """Yield the columns that lack statistics in some row groups: the library would take those of the others for all."""
    for index in range(footer.num_columns):
        groups = [footer.row_group(group).column(index) for group in range(footer.num_row_groups)]
        found = [column.statistics for column in groups]
        lacks = [one is None or not one.has_null_count or (one.num_values and not one.has_min_max) for one in found]
        if any(lacks) and not all(lacks):
            yield str(groups[0].path_in_schema)


def data_file(table: Table, file: DataFile) -> Any:
    """Return a file as the library adds it."""
    from pyiceberg.manifest import DataFile as Described
    from pyiceberg.manifest import DataFileContent, FileFormat

    about: dict[str, Any] = json.loads(file.about)
    spec = table.specs()[about.pop("spec_id")]
    kinds = [str(field.field_type) for field in spec.partition_type(table.schema()).fields]
    texts = about.pop("partition")
    partition = [iceberg_partitions.stored(kind, text) for kind, text in zip(kinds, texts, strict=True)]
    for name, values in about.items():
        if isinstance(values, dict):  # by the id of the column, which JSON has made a text
            decode = base64.b64decode if name in _BYTES else int
            about[name] = {int(key): decode(value) for key, value in values.items()}
    return Described.from_args(
        _table_format_version=table.metadata.format_version,
        content=DataFileContent.DATA,
        file_path=file.path,
        file_format=FileFormat.PARQUET,
        partition=record(partition),
        file_size_in_bytes=file.size,
        sort_order_id=None,
        spec_id=spec.spec_id,
        equality_ids=None,
        key_metadata=None,
        **about,
    )
