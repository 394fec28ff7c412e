"""Replaces rows of an Iceberg table by key (K4): files that have rows with these keys are written anew without them.

The library `pyiceberg` rewrites files by a filter, which thousands of keys of several columns are not, and it writes no
delete files. So the files are read and joined with the keys here. Which files there are to read, a filter does say: by
their partitions and by the smallest and largest value of each column.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from minflinkd.taskmanager.session.plan.sink_checks import UnfitSink
from minflinkd.taskmanager.session.sinks.tables.keyed_changes import KeyedChanges

if TYPE_CHECKING:
    from pyiceberg.table import Table

_LISTED: Final = 200  # values that the library compares with a file's bounds; of more, only the least and the greatest
_THERE: Final = "minflinkd_there"  # numbers of rows
_NEW: Final = "minflinkd_new"


@dataclass(frozen=True)
class Rewritten:
    """Files of the library, as one commit removes and adds them."""

    removed: list[Any]
    added: list[Any]


def check_replaceable(
    table: Table, name: str, so: str = "no rows can be replaced", do: str = "leave the key out"
) -> None:
    """Raise UnfitSink if the library cannot write rows of such a table again.

    For errors: `name` of the table, what follows, and what to do.
    """
    schema, sources = table.schema(), [field.source_id for field in table.spec().fields]
    if twice := [number for number in sources if sources.count(number) > 1]:
        raise UnfitSink(
            f"{name} has several partitions by {schema.find_column_name(twice[0])}, so {so}",
            hint=f"{do}, or give the table one partition of each column",
        )
    if strict := [field.name for field in schema.as_arrow() if _is_strict(field.type)]:
        raise UnfitSink(
            f"column {strict[0]} of {name} has a part that may not be NULL, so {so}",
            hint=f"{do}, or make the part optional",
        )


def rewritten(table: Table, changes: KeyedChanges, key: Sequence[str]) -> Rewritten:
    """Write new files, which no snapshot has yet. `changes`: with columns of the table.

    A column that the rows do not have stays as it is, and is NULL in a row whose key is new.
    """
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files

    schema, rows, keys = table.schema().as_arrow(), changes.rows, changes.keys(key)
    removed, added, numbers, commit = list[Any](), list[Any](), count(), uuid4()
    others = [field.name for field in schema if field.name not in rows.column_names]
    replaced = list[pa.Table]()

    def write(frame: pa.Table) -> None:
        frame = in_order(table, _as(frame, schema))
        for file in _dataframe_to_data_files(table.metadata, frame, table.io, commit, numbers):
            added.append(file)

    try:
        scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
        for found in table.scan(row_filter=_with_some(_as(keys, schema), key)).plan_files():
            there = _as(scan.to_table([found]), schema)
            has_key = matches(there, keys, key)
            if not pc.any(has_key).as_py():
                continue
            removed.append(found.file)
            replaced.append(there.select([*key, *others]).filter(has_key))
            left = there.filter(pc.invert(has_key))
            if len(left):
                write(left)
        if len(rows):
            write(completed(rows, pa.concat_tables(replaced), key) if others and replaced else rows)
    except BaseException:
        with suppress(Exception):
            discard(table, added)
        raise
    return Rewritten(removed, added)


def matches(there: pa.Table, rows: pa.Table, key: Sequence[str]) -> pa.BooleanArray:
    """Return for each row of `there` whether it has a key of `rows`. NULL is no key."""
    return pc.is_in(_numbers(there), value_set=_joined(there, rows, key).column(_THERE))


def completed(rows: pa.Table, replaced: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return rows with the columns that only those have which they replace."""
    pairs = _joined(replaced, rows, key)
    taken = pairs.column(_THERE).take(pc.index_in(_numbers(rows), value_set=pairs.column(_NEW)))
    for name in replaced.column_names:
        if name not in rows.column_names:
            rows = rows.append_column(name, replaced.column(name).take(taken))
    return rows


def _joined(there: pa.Table, rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the numbers of rows with the same key, which are joined without the other columns."""
    names = list(key)
    known = there.select(names).append_column(_THERE, _numbers(there))
    same = rows.select(names).cast(pa.schema([known.schema.field(name) for name in names]))
    return known.join(same.append_column(_NEW, _numbers(rows)), keys=names, join_type="inner")


def _numbers(rows: pa.Table) -> pa.Array:
    return pa.array(range(len(rows)), pa.int64())


def discard(table: Table, added: Iterable[Any]) -> None:
    """Delete files that no snapshot has."""
    for file in added:
        table.io.delete(file.file_path)


def producer_of(changes: Rewritten, update: Any, *, replaces: bool = False) -> Any:
    """Return the library's producer of a snapshot that removes and adds files. `update`: of a transaction.

    `replaces`: the rows are the same before and after. The library does not know such snapshots.
    """
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table.snapshots import Operation, Summary
    from pyiceberg.table.update.snapshot import _MergeAppendFiles, _OverwriteFiles

    class Overwriting(_OverwriteFiles):
        """Keeps the number of manifests small, which the library does for appended files only."""

        def _existing_manifests(self) -> list[ManifestFile]:
            found = super()._existing_manifests()
            return [manifest for manifest in found if manifest.has_added_files() or manifest.has_existing_files()]

        def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
            merged: list[ManifestFile] = merging._process_manifests(manifests)
            return merged

        def _summary(self, snapshot_properties: dict[str, str] = {}) -> Summary:  # noqa: B006 - as the library has it
            found = super()._summary(snapshot_properties)
            return Summary(Operation.REPLACE, **found.additional_properties) if replaces else found

    given: dict[str, Any] = {
        "transaction": update._transaction,
        "io": update._io,
        "branch": update._branch,
        "snapshot_properties": update._snapshot_properties,
    }
    if not changes.removed:
        return _MergeAppendFiles(operation=Operation.APPEND, **given)
    overwriting = Overwriting(operation=Operation.OVERWRITE, **given)
    merging = _MergeAppendFiles(operation=Operation.OVERWRITE, **given)
    merging._snapshot_id = overwriting._snapshot_id  # what it writes anew is of the same snapshot
    return overwriting


def _as(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with these columns in this order and these types. A column that they do not have is NULL."""
    columns = [
        rows.column(field.name).cast(field.type) if field.name in rows.column_names else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _is_strict(kind: pa.DataType) -> bool:
    """Whether a part of a value may not be NULL. The key of a map never may."""
    if pa.types.is_map(kind):
        return _is_strict(kind.key_type) or _is_strict(kind.item_type) or not kind.item_field.nullable
    parts = [kind.field(n) for n in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    return any(not part.nullable or _is_strict(part.type) for part in parts)


def in_order(table: Table, rows: pa.Table) -> pa.Table:
    """Return rows sorted as the table says, if it says it of plain columns."""
    fields = table.sort_order().fields
    if not fields or any(str(field.transform) != "identity" for field in fields):
        return rows
    by = [(table.schema().find_column_name(field.source_id) or "", str(field.direction.value)) for field in fields]
    if any(name not in rows.column_names for name, _ in by):
        return rows
    order: list[Any] = [(name, "ascending" if direction == "asc" else "descending") for name, direction in by]
    return rows.sort_by(order)


def _with_some(rows: pa.Table, key: Sequence[str]) -> Any:
    """Return a filter that leaves out files which have none of these keys for certain."""
    from pyiceberg import expressions

    e: Any = expressions  # its types know keyword arguments only
    told = e.AlwaysTrue()
    for name in key:
        if pa.types.is_boolean(rows.schema.field(name).type):
            continue
        values = rows.column(name).unique()
        if len(values) <= _LISTED:
            told = e.And(told, e.In(name, {e.literal(value) for value in values.to_pylist()}))
            continue
        bounds = pc.min_max(values).as_py()
        told = e.And(told, e.GreaterThanOrEqual(name, e.literal(bounds["min"])))
        told = e.And(told, e.LessThanOrEqual(name, e.literal(bounds["max"])))
    return told
