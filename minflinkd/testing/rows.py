"""Rows as a test writes and reads them: dictionaries of plain values, checked against the schema of a vertex. Pure.

A time is written as a datetime or as text (`2026-01-01T00:00`), in UTC unless it says otherwise. It is read as a
datetime, with the zone UTC for TIMESTAMP and without one for TIMESTAMP_NTZ.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from minflinkd.jobgraph.faults import meant, show
from minflinkd.testing.types import ddl

Row = dict[str, Any]

_UTC = datetime.timezone.utc  # noqa: UP017 - what repr shows in a failed comparison
_INTEGERS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}


class WrongRow(ValueError):
    """A row that does not fit the schema of its vertex."""


def converted(row: object, schema: Any, vertex: str, *, partial: bool = False) -> Row:
    """Return a row with its values in the types of the schema. A missing column is null.

    `partial`: missing columns are left out. Raises WrongRow.
    """
    if not isinstance(row, Mapping):
        raise WrongRow(f"{vertex}: a row is a mapping of columns, not {show(row)}")
    known = {field.name: field.type for field in schema}
    for name in row:
        if name not in known:
            hint = meant(str(name), known, "its columns are")
            raise WrongRow(f"{vertex} has no column {show(name)} ({hint})")
    names = [name for name in known if name in row] if partial else list(known)
    return {name: value(row.get(name), known[name], f"{vertex}.{name}") for name in names}


def value(given: Any, kind: Any, place: str) -> Any:
    """Return a value in a type, as Arrow takes and gives it. Raises WrongRow."""
    if given is None:
        return None
    try:
        found = _value(given, kind, place)
    except (ValueError, OverflowError, InvalidOperation) as error:
        if isinstance(error, WrongRow):
            raise
        raise WrongRow(f"{place}: {show(given)} is not {_described(kind)}: {error}") from None
    if found is None:
        raise WrongRow(f"{place}: {show(given)} is not {_described(kind)}")
    return found


def _described(kind: Any) -> str:
    hints = {"TIMESTAMP": "2026-01-01T00:00", "TIMESTAMP_NTZ": "2026-01-01T00:00", "DATE": "2026-01-01"}
    name = ddl(kind)
    return f"a {name} (such as {hints[name]})" if name in hints else f"of type {name}"


def _value(given: Any, kind: Any, place: str) -> Any:
    """Return the value; None if it is of another type."""
    if pa.types.is_struct(kind):
        return converted(given, kind, place) if isinstance(given, Mapping) else None
    if pa.types.is_map(kind):
        return _map(given, kind, place) if isinstance(given, Mapping) else None
    if pa.types.is_list(kind):
        if not isinstance(given, Sequence) or isinstance(given, str | bytes):
            return None
        return [value(entry, kind.value_type, f"{place}[{i}]") for i, entry in enumerate(given)]
    if pa.types.is_timestamp(kind):
        return _time(given, zoned=kind.tz is not None)
    if pa.types.is_date(kind):
        if isinstance(given, datetime.datetime):
            return None
        return given if isinstance(given, datetime.date) else _read(given, datetime.date.fromisoformat)
    if pa.types.is_string(kind):
        return given if isinstance(given, str) else None
    if pa.types.is_binary(kind):
        return given if isinstance(given, bytes) else given.encode() if isinstance(given, str) else None
    if pa.types.is_boolean(kind):
        return given if isinstance(given, bool) else None
    return None if isinstance(given, bool) else _number(given, kind)


def _map(given: Mapping[Any, Any], kind: Any, place: str) -> dict[Any, Any]:
    return {
        value(key, kind.key_type, f"a key of {place}"): value(entry, kind.item_type, f"{place}[{show(key)}]")
        for key, entry in given.items()
    }


def _read(given: Any, read: Any) -> Any:
    return read(given) if isinstance(given, str) else None


def _time(given: Any, *, zoned: bool) -> datetime.datetime | None:
    found = given if isinstance(given, datetime.datetime) else _read(given, datetime.datetime.fromisoformat)
    if found is None or (not zoned and found.tzinfo is not None):
        return None
    if not zoned:
        return found
    return found.replace(tzinfo=_UTC) if found.tzinfo is None else found.astimezone(_UTC)


def _number(given: Any, kind: Any) -> Any:
    if pa.types.is_decimal(kind):
        found = Decimal(str(given)) if isinstance(given, int | float | str | Decimal) else None
        if found is None:
            return None
        exact = found.quantize(Decimal(1).scaleb(-kind.scale))
        return exact if exact == found and len(exact.as_tuple().digits) <= kind.precision else None
    if (bits := _INTEGERS.get(kind)) is not None:
        return given if isinstance(given, int) and -(2 ** (bits - 1)) <= given < 2 ** (bits - 1) else None
    return float(given) if isinstance(given, int | float) else None


def table(rows: Sequence[Row], schema: Any) -> Any:
    """Return converted rows as an Arrow table."""
    arrays = []
    for field in schema:
        values = [row[field.name] for row in rows]
        if pa.types.is_map(field.type):
            values = [None if entry is None else list(entry.items()) for entry in values]
        arrays.append(pa.array(values, field.type))
    return pa.Table.from_arrays(arrays, schema=pa.schema(list(schema)))


def plain(found: Any) -> list[Row]:
    """Return the rows of an Arrow table in plain values."""
    kinds = {field.name: field.type for field in found.schema}
    return [{name: _plain(entry, kinds[name]) for name, entry in row.items()} for row in found.to_pylist()]


def _plain(given: Any, kind: Any) -> Any:
    if given is None:
        return None
    if pa.types.is_map(kind):
        return {_plain(key, kind.key_type): _plain(entry, kind.item_type) for key, entry in given}
    if pa.types.is_list(kind):
        return [_plain(entry, kind.value_type) for entry in given]
    if pa.types.is_struct(kind):
        return {field.name: _plain(given[field.name], field.type) for field in kind}
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return given.astimezone(_UTC)
    return given


def same(one: Any, other: Any) -> bool:
    """Whether two plain values are equal. Floats may differ in the last digits, as sums depend on the order."""
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=1e-9)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def difference(found: Sequence[Row], wanted: Sequence[Row], columns: Sequence[str], *, ordered: bool) -> str:
    """Return in lines what is missing and what is too much; "" if the rows are the same.

    Only these columns are compared. The order counts if `ordered`.
    """
    have = [{name: row[name] for name in columns if name in row} for row in found]
    if ordered and (len(have) != len(wanted) or not all(map(same, have, wanted))):
        return "\n".join(["rows, in this order:", *_lines(have, "  "), "expected:", *_lines(wanted, "  ")])
    left, missing = list(have), []
    for row in wanted:
        position = next((i for i, other in enumerate(left) if same(other, row)), None)
        if position is None:
            missing.append(row)
        else:
            left.pop(position)
    lines = [*_lines(missing, "- "), *_lines(left, "+ ")]
    return (
        "\n".join([f"{len(have)} rows, {len(wanted)} expected (-: missing, +: not expected)", *lines]) if lines else ""
    )


_MOST = 20  # rows of a kind that are shown


def _lines(rows: Sequence[Row], mark: str) -> list[str]:
    shown = [mark + ", ".join(f"{name}={_shown(entry)}" for name, entry in row.items()) for row in rows[:_MOST]]
    return [*shown, f"{mark}... {len(rows) - _MOST} more"] if len(rows) > _MOST else shown


def _shown(entry: Any) -> str:
    if isinstance(entry, datetime.datetime):
        return entry.replace(tzinfo=None).isoformat(timespec="auto")
    return entry.isoformat() if isinstance(entry, datetime.date) else repr(entry)
