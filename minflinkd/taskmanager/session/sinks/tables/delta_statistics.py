"""The statistics of a file in Delta's log, from the footer of the file. Pure.

Readers skip a file by them. So a bound may be too wide, but never too narrow. One that is not known is left out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow.parquet

MOST_COLUMNS: Final = 32  # that have bounds, as with Delta's own writers
LONGEST: Final = 32  # characters of a text's bound


def statistics(footer: pyarrow.parquet.FileMetaData) -> str:
    """Return `numRecords`, and `minValues`, `maxValues` and `nullCount` of columns that are not in lists or maps."""
    smallest: dict[str, Any] = {}
    largest: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for index, path in list(_columns(footer))[:MOST_COLUMNS]:
        found = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
        if any(each is None for each in found):
            continue
        if all(each.has_null_count for each in found):
            _put(nulls, path, sum(each.null_count for each in found))
        bounded = [each for each in found if each.num_values]
        if bounded and all(each.has_min_max for each in bounded):
            with suppress(OverflowError, ValueError):  # a time that Python does not have
                low, high = lower(min(each.min for each in bounded)), upper(max(each.max for each in bounded))
                if low is not None and high is not None:
                    _put(smallest, path, low)
                    _put(largest, path, high)
    told = {"numRecords": footer.num_rows, "minValues": smallest, "maxValues": largest, "nullCount": nulls}
    return json.dumps(told, allow_nan=False, ensure_ascii=False)


def lower(value: Any) -> Any:
    """Return a smallest value as the log has it, or one that is smaller; None if there is none."""
    if isinstance(value, str):
        return value[:LONGEST]
    if isinstance(value, datetime):
        return _text(value, value.microsecond // 1000 * 1000)
    return _plain(value)


def upper(value: Any) -> Any:
    """Return a largest value as the log has it, or one that is larger; None if there is none."""
    if isinstance(value, str):
        return value if len(value) <= LONGEST else f"{value[:LONGEST]}{chr(0x10FFFF)}"
    if isinstance(value, datetime):
        cut = value.microsecond // 1000 * 1000
        return _text(value, cut) if cut == value.microsecond else _text(value + timedelta(milliseconds=1), None)
    return _plain(value)


def _plain(value: Any) -> Any:
    """Return a bound as it is; None for booleans and bytes, and for floats: NaN may be among them, and is larger."""
    if isinstance(value, Decimal):
        return float(value) if len(value.as_tuple().digits) <= sys.float_info.dig else None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return value.isoformat() if isinstance(value, date) else None


def _text(value: datetime, microsecond: int | None) -> str:
    rounded = value.replace(microsecond=value.microsecond // 1000 * 1000 if microsecond is None else microsecond)
    return rounded.replace(tzinfo=None).isoformat(timespec="milliseconds") + ("Z" if value.tzinfo else "")


def _columns(footer: pyarrow.parquet.FileMetaData) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the number and path of each column of plain values."""
    schema = footer.schema
    for index in range(len(schema)):
        column = schema.column(index)
        path = tuple(column.path.split("."))
        if column.max_repetition_level == 0 and column.name == path[-1]:  # else a name has a dot
            yield index, path


def _put(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value
