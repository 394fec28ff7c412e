"""Avro schemas that evolve, and records of theirs, drawn from a seed.

A writer's schema is an earlier or a later form of the reader's: with fields that are missing, or that the reader does
not know, in another order, and with types that Avro promotes. All of them can be resolved.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from random import Random
from typing import Any
from uuid import UUID

Schema = Any  # as JSON
SYMBOLS = ["red", "green", "blue", "grey"]
_DAY = 24 * 3600 * 10**6  # microseconds


@dataclass(frozen=True)
class Kind:
    """A type. `before`: those that it may have been promoted from."""

    schema: Schema
    draw: Callable[[Random], Any]
    default: Any = None  # None: none
    before: tuple[str, ...] = ()


def _at(random: Random, unit: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=random.randrange(0, 40_000 * _DAY, unit))


def _time(random: Random, unit: int) -> time:
    return (datetime(1970, 1, 1) + timedelta(microseconds=random.randrange(0, _DAY, unit))).time()  # noqa: DTZ001


def _logical(kind: str, logical: str, **more: Any) -> Schema:
    return {"type": kind, "logicalType": logical, **more}


def _decimal(random: Random) -> Decimal:
    return Decimal(random.randrange(-(10**8), 10**8)).scaleb(-3)


def _text(random: Random) -> str:
    return "".join(random.choice("aé漢🙂 \0\"'") for _ in range(random.randrange(12)))


KINDS = {
    "boolean": Kind("boolean", lambda random: random.random() < 0.5, True),
    "int": Kind("int", lambda random: random.randrange(-(2**31), 2**31), -7),
    "long": Kind("long", lambda random: random.choice((0, 1, -1, 2**63 - 1, -(2**63))), 2**40, ("int",)),
    "float": Kind("float", lambda random: random.randrange(-1000, 1000) / 8, 1.5, ("small",)),
    "double": Kind("double", lambda random: random.uniform(-1e300, 1e300), 0.1, ("small", "float")),
    "string": Kind("string", _text, "d"),
    "bytes": Kind("bytes", lambda random: random.randbytes(random.randrange(9))),  # fastavro takes defaults for texts
    "enum": Kind(
        {"type": "enum", "name": "Colour", "symbols": SYMBOLS, "default": "grey"}, lambda random: random.choice(SYMBOLS)
    ),
    "fixed": Kind({"type": "fixed", "name": "Four", "size": 4}, lambda random: random.randbytes(4)),
    "decimal": Kind(_logical("bytes", "decimal", precision=12, scale=3), _decimal, None, ("narrow",)),
    "narrow": Kind(_logical("bytes", "decimal", precision=9, scale=3), _decimal),
    "fixed decimal": Kind(_logical("fixed", "decimal", name="Price", size=8, precision=15, scale=3), _decimal),
    "date": Kind(_logical("int", "date"), lambda random: date(1500, 1, 1) + timedelta(days=random.randrange(300_000))),
    "time-millis": Kind(_logical("int", "time-millis"), lambda random: _time(random, 1000)),
    "time-micros": Kind(_logical("long", "time-micros"), lambda random: _time(random, 1)),
    "timestamp-millis": Kind(_logical("long", "timestamp-millis"), lambda random: _at(random, 1000)),
    "timestamp-micros": Kind(_logical("long", "timestamp-micros"), lambda random: _at(random, 1), None),
    "local-timestamp-micros": Kind(
        _logical("long", "local-timestamp-micros"), lambda random: _at(random, 1).replace(tzinfo=None)
    ),
    "uuid": Kind(_logical("string", "uuid"), lambda random: UUID(int=random.getrandbits(128))),
    "small": Kind("int", lambda random: random.randrange(-1000, 1000)),
}
_OF_READERS = tuple(name for name in KINDS if name not in ("narrow", "small"))
_NAMED = ("enum", "fixed", "fixed decimal")  # once in a schema


def times_as_numbers(schema: Schema) -> Schema:
    """Return the schema without what is a number in Spark."""
    return json.loads(re.sub(r', "logicalType": "time-\w+"', "", json.dumps(schema)))


@dataclass(frozen=True)
class Field:
    """A field of a record. `shape`: of what it holds: one value, one or null, several, or several by name."""

    name: str
    kind: str
    shape: str = "one"
    record: Record | None = None  # in place of a kind
    default: bool = False

    def schema(self) -> dict[str, Any]:
        of: Schema = self.record.schema() if self.record is not None else KINDS[self.kind].schema
        default: dict[str, Any] = {}
        if self.shape == "array":
            of, default = {"type": "array", "items": of}, {"default": []}
        elif self.shape == "map":
            of, default = {"type": "map", "values": of}, {"default": {}}
        elif self.shape == "null":
            of, default = ["null", of], {"default": None}
        elif self.record is None:
            default = {"default": KINDS[self.kind].default}
        return {"name": self.name, "type": of} | (default if self.default else {})

    def may_lack(self) -> bool:
        return self.shape != "one" or (self.record is None and KINDS[self.kind].default is not None)

    def draw(self, random: Random) -> Any:
        def one() -> Any:
            return self.record.draw(random) if self.record is not None else KINDS[self.kind].draw(random)

        if self.shape == "array":
            return [one() for _ in range(random.randrange(4))]
        if self.shape == "map":
            return {f"k{n}": one() for n in range(random.randrange(4))}
        return None if self.shape == "null" and random.random() < 0.4 else one()


@dataclass(frozen=True)
class Record:
    name: str
    fields: tuple[Field, ...]

    def schema(self) -> Schema:
        return {"type": "record", "name": self.name, "fields": [field.schema() for field in self.fields]}

    def draw(self, random: Random) -> dict[str, Any]:
        return {field.name: field.draw(random) for field in self.fields}


def reader(random: Random) -> Record:
    """Draw the schema that records are read with: every type, in some shape, and a record within the record."""
    shapes = ("one", "one", "null", "array", "map")
    kinds = [*_OF_READERS, *random.choices([kind for kind in _OF_READERS if kind not in _NAMED], k=8)]
    random.shuffle(kinds)
    fields = [Field(f"f{number}", kind, random.choice(shapes)) for number, kind in enumerate(kinds)]
    inner = Record("Inner", tuple(_defaulted(random, field) for field in fields[:5]))
    within = Field("within", "", random.choice(shapes), inner)
    return Record("Drawn", tuple(_defaulted(random, field) for field in (*fields[5:], within)))


def _defaulted(random: Random, field: Field) -> Field:
    chosen = field.may_lack() and random.random() < 0.6
    return Field(field.name, field.kind, field.shape, field.record, chosen)


def writer(random: Random, read: Record) -> Record:
    """Draw the schema of a writer whose records can be read."""
    fields = [_changed(random, field) for field in read.fields if not (field.default and random.random() < 0.3)]
    fields += [Field(f"new{n}", random.choice(("int", "string", "date")), "null") for n in range(random.randrange(3))]
    random.shuffle(fields)
    return Record(read.name, tuple(fields))


def _changed(random: Random, field: Field) -> Field:
    record = None if field.record is None else writer(random, field.record)
    before = KINDS[field.kind].before if field.record is None else ()
    kind = random.choice((field.kind, *before))
    shape = "one" if field.shape == "null" and random.random() < 0.3 else field.shape
    return Field(field.name, kind, shape, record)
