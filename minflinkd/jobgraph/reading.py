"""Converts plain values to the model: every field by the type that the model declares, every fault noted.

msgspec itself stops at the first fault. Here the structs of `model` are the table, and msgspec converts only the
leaves. Covers shape, types and units of single values, but not what they mean together (`rules`, `topology`).
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from enum import Enum
from functools import cache, partial
from typing import Annotated, Any, Final, NewType, TypeVar, get_args, get_origin

import msgspec

from minflinkd.jobgraph.faults import Faults, at, meant, nearest, show
from minflinkd.jobgraph.model import Artifact, Input, RestartStrategy, Struct, Vertex
from minflinkd.jobgraph.places import file_name
from minflinkd.runtime.ids import VertexId, is_vertex_id
from minflinkd.runtime.secrets import without_credentials
from minflinkd.runtime.units import Duration, InvalidUnit, MemorySize

T = TypeVar("T", bound=Struct)

WRONG: Final = object()  # stands for a faulty value; its fault is noted

_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def option_text(value: object) -> str | None:
    """Return a scalar in the form that Spark's options and settings have; None if it is no scalar."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None


# A text alone may replace one of these structs: it stands for this one of its fields.
SHORT_FORMS: Final[Mapping[type[Struct], str]] = {Input: "id", Artifact: "path", RestartStrategy: "kind"}


def _in_full(kind: type[Struct], value: object) -> object:
    """Return the mapping that a short form stands for; anything else as it is."""
    if isinstance(value, str) and kind in SHORT_FORMS:
        value = {SHORT_FORMS[kind]: value}
    if kind is Artifact and isinstance(value, Mapping) and "name" not in value and isinstance(value.get("path"), str):
        return {**value, "name": file_name(value["path"])}
    return value


@cache
def _fields(kind: type[Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Cached, because msgspec evaluates the annotations anew each time.

    That costs more than the rest of reading a job.
    """
    return msgspec.structs.fields(kind)


class Reader:
    """Reads plain values. Faults go to `faults`, and reading continues."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def struct(self, kind: type[T], value: object, path: str) -> T | None:
        """Read a struct. Faulty optional fields keep their defaults; None if a required field is faulty."""
        fields = self.fields(kind, _in_full(kind, value), path)
        required = {f.name for f in _fields(kind) if f.required}
        return kind(**fields) if fields is not None and required <= fields.keys() else None

    def fields(self, kind: type[Struct], value: object, path: str) -> dict[str, Any] | None:
        """Return the good fields of a struct by their Python names; None if the value is no mapping at all."""
        if not isinstance(value, Mapping):
            self._faults.add(path, f"{show(value)} is not a mapping", f"with {', '.join(_keys(kind))}")
            return None
        known = {f.encode_name: f for f in _fields(kind)}
        misspelt = set()  # known keys that misspelt ones stand for
        for key in value:
            if key not in known:
                misspelt.add(None if self._faults.full else nearest(str(key), known))
                hint = partial(meant, str(key), known)
                self._faults.add(at(path, str(key)), f"unknown key {show(str(key))}", hint)
        good = {}
        for key, field in known.items():
            if value.get(key) is not None:  # an empty YAML value counts as not given
                read = self.value(field.type, value[key], at(path, key))
                if read is not WRONG:
                    good[field.name] = read
            elif field.required and key not in misspelt:
                self._faults.add(at(path, key), f"{key} is missing")
        return good

    def value(self, kind: Any, value: object, path: str) -> Any:
        """Read a value of any type that the model uses. Return WRONG if it is faulty."""
        origin, args = get_origin(kind), get_args(kind)
        if kind is Any:
            return value
        if origin is types.UnionType:  # the value is not None
            return self.value(_meant_by(args, value), value, path)
        if origin is tuple:
            return self._vertices(value, path) if args[0] is Vertex else self._list(args[0], value, path)
        if origin is dict:
            return self._mapping(args[1], value, path)
        if isinstance(kind, type) and issubclass(kind, Struct):
            read = self.struct(kind, value, path)
            return WRONG if read is None else read
        return self._leaf(kind, value, path)

    def _list(self, kind: Any, value: object, path: str) -> Any:
        if not isinstance(value, list | tuple):
            self._faults.add(
                path,
                f"{show(value)} is not a list",
                f"[{without_credentials(value)}]" if isinstance(value, str) else "",
            )
            return WRONG
        read = [self.value(kind, entry, at(path, i)) for i, entry in enumerate(value)]
        return tuple(entry for entry in read if entry is not WRONG)

    def _mapping(self, kind: Any, value: object, path: str) -> Any:
        if not isinstance(value, Mapping):
            self._faults.add(path, f"{show(value)} is not a mapping")
            return WRONG
        if kind is Any:
            return {str(key): entry for key, entry in value.items()}
        if isinstance(kind, type) and issubclass(kind, Struct):
            parts = {str(key): self.value(kind, entry, at(path, str(key))) for key, entry in value.items()}
            return {key: part for key, part in parts.items() if part is not WRONG}
        texts = {str(key): option_text(entry) for key, entry in value.items()}
        for key, text in texts.items():
            if text is None:
                self._faults.add(at(path, key), f"{show(value.get(key))} is not a text, a number, true or false")
        return {key: text for key, text in texts.items() if text is not None}

    def _vertices(self, value: object, path: str) -> Any:
        """Read a mapping id -> vertex, or a list of vertices with ids. From here on, each is at `vertices.<id>`."""
        if isinstance(value, Mapping):
            entries = [(at(path, str(key)), self._named(str(key), entry, path)) for key, entry in value.items()]
        elif isinstance(value, list | tuple):
            entries = [(self._place(entry, path, i), entry) for i, entry in enumerate(value)]
        else:
            self._faults.add(path, f"{show(value)} is not a mapping id -> vertex, nor a list of vertices with ids")
            return WRONG
        good: dict[str, Vertex] = {}
        for i, (place, entry) in enumerate(entries):
            vertex = self.struct(Vertex, entry, place)
            if vertex is not None and good.setdefault(vertex.id, vertex) is not vertex:
                self._faults.add(at(at(path, i), "id"), f"{vertex.id} is the id of two vertices", "ids are unique")
        return tuple(good.values())

    def _named(self, key: str, entry: object, path: str) -> object:
        if not isinstance(entry, Mapping):
            return entry
        if entry.get("id", key) != key:
            self._faults.add(at(at(path, key), "id"), f"id {show(entry['id'])} differs from the key {show(key)}")
        return {**entry, "id": key}

    def _place(self, entry: object, path: str, index: int) -> str:
        name = entry.get("id") if isinstance(entry, Mapping) else None
        return at(path, name) if isinstance(name, str) and is_vertex_id(name) else at(path, index)

    def _leaf(self, kind: Any, value: object, path: str) -> Any:
        plain = kind.__origin__ if get_origin(kind) is Annotated else kind
        if plain is VertexId:
            if isinstance(value, str) and is_vertex_id(value):
                return value
            self._faults.add(path, f"{show(value)} is not a vertex id", "a letter or _, then letters, digits and _")
            return WRONG
        try:
            if plain is Duration:
                return _duration(value)
            if plain is MemorySize:
                return MemorySize.parse(value)
            return msgspec.convert(value, kind.__supertype__ if isinstance(kind, NewType) else kind)
        except (msgspec.ValidationError, InvalidUnit, ValueError):
            self._faults.add(path, f"{show(value)} is not {_describe(kind)}", partial(_choice, plain, value))
            return WRONG


def _meant_by(kinds: tuple[Any, ...], value: object) -> Any:
    """Return which type of a union a value is meant to have. The first one is a mapping if there are several."""
    if not isinstance(value, Mapping):
        for kind in kinds:
            if (kind is str and isinstance(value, str)) or (isinstance(kind, type) and issubclass(kind, Enum)):
                return kind
    return kinds[0]


def _duration(value: object) -> Duration:
    duration = Duration.parse(value)
    if duration > 1e9:
        raise InvalidUnit(f"{duration} is more than 30 years")
    return duration


def _keys(kind: type[Struct]) -> list[str]:
    return [f.encode_name for f in _fields(kind)]


def _describe(kind: Any) -> str:
    if get_origin(kind) is Annotated:
        least = next((m.ge for m in get_args(kind)[1:] if isinstance(m, msgspec.Meta)), None)
        return _describe(get_args(kind)[0]) + (f", at least {least}" if least is not None else "")
    if kind is Duration:
        return "a duration such as 500 ms, 10 s, 2 min, 1 h"
    if kind is MemorySize:
        return "a size such as 512 KiB, 64 MiB, 1 GiB"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f"one of {', '.join(str(member.value) for member in kind)}"
    return _WORDS.get(kind, "what belongs here")


def _choice(kind: Any, value: object) -> str:
    if isinstance(kind, type) and issubclass(kind, Enum) and isinstance(value, str):
        hint = meant(value, [str(member.value) for member in kind])
        return hint if hint.startswith("did") else ""
    return ""
