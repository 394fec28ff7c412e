"""The types of Spark's columns, as text and as Arrow's: `struct<carrier:string,time:timestamp>`. Pure."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pyarrow as pa

_WORD = re.compile(r"[a-z_ ]+(?:\([^)]*\))?")
_SIMPLE: dict[str, Any] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


class UnknownType(ValueError):
    """A type for which no rows can be written by hand (an interval, a variant)."""


@cache
def parse(text: str) -> Any:
    """Return the Arrow type of what Spark calls `simpleString`. Raises UnknownType."""
    found, rest = _parse(text)
    if rest:
        raise UnknownType(text)
    return found


def _parse(text: str) -> tuple[Any, str]:
    if text.startswith("struct<"):
        return _struct(text.removeprefix("struct<"))
    if text.startswith("array<"):
        element, rest = _parse(text.removeprefix("array<"))
        return pa.list_(element), _closed(rest)
    if text.startswith("map<"):
        key, rest = _parse(text.removeprefix("map<"))
        value, rest = _parse(rest.removeprefix(","))
        return pa.map_(key, value), _closed(rest)
    word = _WORD.match(text)
    name = word[0] if word else ""
    if name.startswith("decimal("):
        precision, scale = name.removeprefix("decimal(").rstrip(")").split(",")
        return pa.decimal128(int(precision), int(scale)), text[len(name) :]
    if name.startswith(("char(", "varchar(")):
        return pa.string(), text[len(name) :]
    if name not in _SIMPLE:
        raise UnknownType(name or text[:40])
    return _SIMPLE[name], text[len(name) :]


def _struct(text: str) -> tuple[Any, str]:
    fields = []
    while not text.startswith(">"):
        name, _, text = text.partition(":")
        kind, text = _parse(text)
        fields.append(pa.field(name, kind))
        text = text.removeprefix(",")
        if not text:
            raise UnknownType("struct")
    return pa.struct(fields), text[1:]


def _closed(text: str) -> str:
    if not text.startswith(">"):
        raise UnknownType(text[:40])
    return text[1:]


def ddl(kind: Any) -> str:
    """Return an Arrow type as it is written in a schema of Spark."""
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{_quoted(field.name)}: {ddl(field.type)}' for field in kind)}>"
    if pa.types.is_map(kind):
        return f"MAP<{ddl(kind.key_type)}, {ddl(kind.item_type)}>"
    if pa.types.is_list(kind):
        return f"ARRAY<{ddl(kind.value_type)}>"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    return next((name.upper() for name, known in _SIMPLE.items() if known == kind), str(kind))


def schema_ddl(kind: Any) -> str:
    """Return the columns of a struct as the schema of a source: `carrier STRING, time TIMESTAMP`."""
    return ", ".join(f"{_quoted(field.name)} {ddl(field.type)}" for field in kind)


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else "`" + name.replace("`", "``") + "`"
