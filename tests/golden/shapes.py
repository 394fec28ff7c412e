"""The form of every type that crosses a wire, and which changes of it two versions next to each other cannot bear.

What a peer of the version before sends must be readable here, and what is sent to it must be readable there:

- a field may be added if it has a default: the earlier side skips it, or does not send it;
- no field is removed or renamed, none changes its type, and none loses its default;
- an enumeration loses no value. It gains one only if the earlier version has a word for what it does not know
  (`_missing_`): to all others the whole message would be unreadable;
- where fields that have their default are not sent (`jobgraph.model`), the default stays: each side fills in its own.

`jobgraph.model` refuses fields that it does not know. That is on purpose: a new field of a job with a value of its own
changes what the job does, and an earlier TaskManager must not run the job without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

import msgspec
from msgspec import inspect

from minflinkd.runtime.units import encode_unit

TO_DO = (
    "A TaskManager or daemon of the version before could not be understood any more (A15a). "
    "Either keep it as it was (a new field needs a default), or raise PROTOCOL_VERSION in minflinkd/rpc/"
    "protocol_range.py, go on reading the earlier form, and send it where Connection.protocol is the earlier version."
)


class Field(msgspec.Struct, frozen=True, omit_defaults=True):
    type: str
    default: str | None = None  # as JSON; None: the field must be there


class Shape(msgspec.Struct, frozen=True, omit_defaults=True):
    """A struct has fields, an enumeration has values."""

    fields: dict[str, Field] = {}
    sparse: bool = False  # fields with their defaults are not sent
    values: tuple[str, ...] = ()
    lenient: bool = False  # an unknown value is read as some other one

    @property
    def enumeration(self) -> bool:
        return bool(self.values)


def shapes_of(kinds: Mapping[str, Any]) -> dict[str, Shape]:
    """Return the shape of each struct and enumeration in these types, and in their parts, by name."""
    found: dict[str, Shape] = {}
    for name, kind in kinds.items():
        text = _text(inspect.type_info(kind), found)
        if name not in found:  # an answer, which is made of types that have names of their own
            found[name] = Shape(fields={"": Field(text)})
    return dict(sorted(found.items()))


def incompatible(before: Mapping[str, Shape], now: Mapping[str, Shape]) -> list[str]:
    """Return what a peer with the shapes of `before` and one with those of `now` do not understand of each other."""
    return [
        f"{name}: {what}"
        for name, old in before.items()
        for what in (_changes(old, now[name]) if name in now else ("it was removed or renamed",))
    ]


def _changes(old: Shape, new: Shape) -> Iterable[str]:
    for value in sorted({*old.values} - {*new.values}):
        yield f"the value {value!r} was removed"
    if old.enumeration and not old.lenient:
        for value in sorted({*new.values} - {*old.values}):
            yield f"the value {value!r} was added, which the version before cannot read"
    for name, field in old.fields.items():
        if (there := new.fields.get(name)) is None:
            yield f"the field {name!r} was removed or renamed"
            continue
        if there.type != field.type:
            yield f"the field {name!r} was {field.type}, and is {there.type}"
        if field.default is not None and there.default is None:
            yield f"the field {name!r} has no default any more"
        if (old.sparse or new.sparse) and field.default is not None and there.default not in (None, field.default):
            yield f"the default of the field {name!r} was {field.default}, and is {there.default}"
    for name, field in new.fields.items():
        if name not in old.fields and field.default is None:
            yield f"the field {name!r} was added without a default"
    if new.sparse and not old.sparse:
        yield "fields with their defaults are not sent any more"


def _text(kind: inspect.Type, found: dict[str, Shape]) -> str:
    """Return the type in words, and add what has a name to `found`."""
    match kind:
        case inspect.StructType(cls=cls):
            if cls.__name__ not in found:
                found[cls.__name__] = Shape()  # a type may contain itself
                fields = {field.encode_name: _field(field, found) for field in kind.fields}
                found[cls.__name__] = Shape(fields=fields, sparse=cls.__struct_config__.omit_defaults)
            return cls.__name__
        case inspect.EnumType(cls=cls):
            lenient = cls._missing_.__func__ is not Enum._missing_.__func__  # type: ignore[attr-defined]
            found[cls.__name__] = Shape(values=tuple(sorted(str(each.value) for each in cls)), lenient=lenient)
            return cls.__name__
        case inspect.Metadata():
            return _text(kind.type, found)
        case inspect.UnionType():
            return " | ".join(_text(each, found) for each in kind.types)
        case inspect.VarTupleType() | inspect.ListType():
            return f"list[{_text(kind.item_type, found)}]"
        case inspect.TupleType():
            return f"tuple[{', '.join(_text(each, found) for each in kind.item_types)}]"
        case inspect.DictType():
            return f"dict[{_text(kind.key_type, found)}, {_text(kind.value_type, found)}]"
        case inspect.CustomType(cls=cls):
            return cls.__name__
        case _:
            return type(kind).__name__.removesuffix("Type").lower()


def _field(field: inspect.Field, found: dict[str, Shape]) -> Field:
    default = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    told = None if default is msgspec.NODEFAULT else msgspec.json.encode(default, enc_hook=encode_unit).decode()
    return Field(_text(field.type, found), told)
