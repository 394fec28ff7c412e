"""What a user may say to choose keys: a text, or fields of the key with their values. Pure, but for `condition`.

k1                                          any field of the key has this text
{"key": "k1"}                               this field has it
{"window.start": "2024-01-01 10:00:00"}     a field of a struct; times are UTC, as Spark prints them
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

import msgspec
from pyspark.sql import Column
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

from minflinkd.runtime.errors import MALFORMED, Consequence, MinflinkError

Fields = Mapping[str, str | None]


class StateKeyRefused(MinflinkError):
    """A key that cannot be looked for: it has other fields than the keys of the store, or is no JSON object."""

    code = "state-key-refused"
    consequence = Consequence.REFUSED


def parse(text: str) -> str | Fields:
    """Return the text, or the fields if it is a JSON object. Raises StateKeyRefused."""
    if not text.startswith("{"):
        return text
    try:
        found = msgspec.json.decode(text, type=dict[str, str | int | float | bool | None])
    except MALFORMED as error:
        raise StateKeyRefused(
            f"the key is no JSON object of plain values: {error}", hint='such as {"carrier": "AA"}, or only AA'
        ) from error
    return {name: _text(value) for name, value in found.items()}


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)


def leaves(schema: StructType, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of each field of a key that is no struct."""
    for field in schema.fields:
        path = (*above, field.name)
        if isinstance(field.dataType, StructType):
            yield from leaves(field.dataType, path)
        else:
            yield path


def conditions(schema: StructType, wanted: str | Fields) -> list[list[tuple[tuple[str, ...], str | None]]]:
    """Return what must hold: one of each list. Raises StateKeyRefused."""
    known = {".".join(path): path for path in leaves(schema)}
    if isinstance(wanted, str):
        return [[(path, wanted) for path in known.values()]]
    found = []
    for name, value in wanted.items():
        if name not in known:
            raise StateKeyRefused(f"the keys of the store have no field {name[:100]!r}", hint=f"{', '.join(known)}")
        found.append([(known[name], value)])
    return found


def condition(schema: StructType, text: str, column: str) -> Column:
    """Return the condition for rows whose key is meant. Raises StateKeyRefused."""
    groups = [
        reduce(Column.__or__, [_equal(column, path, value) for path, value in group])
        for group in conditions(schema, parse(text))
        if group
    ]
    return reduce(Column.__and__, groups, fn.lit(True))


def _equal(column: str, path: tuple[str, ...], value: str | None) -> Column:
    field = reduce(lambda above, name: above.getField(name), path, fn.col(column))
    return field.isNull() if value is None else field.cast("string").eqNullSafe(fn.lit(value))
