"""The JSON Schema of a job document: what `reading` takes, made from the same structs and the same short forms (J4).

Covers what `reading` covers: shape, types and units of single values. What the values must mean together is in no
schema, so a document that fits may still be refused.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any, Final, NewType, get_args, get_origin

import msgspec

from minflinkd.jobgraph.model import Artifact, JobGraph, Struct, Vertex
from minflinkd.jobgraph.reading import SHORT_FORMS
from minflinkd.runtime.ids import VERTEX_ID, VertexId
from minflinkd.runtime.units import DURATION_TEXT, SIZE_TEXT, Duration, MemorySize

Schema = dict[str, Any]

_VERTEX_ID: Final[Schema] = {"type": "string", "pattern": f"^{VERTEX_ID.pattern}$"}
_DURATION: Final[Schema] = {
    "description": "A duration such as 500 ms, 10 s, 2 min, 1 h; a number is seconds.",
    "anyOf": [{"type": "string", "pattern": f"^{DURATION_TEXT}$"}, {"type": "number", "minimum": 0, "maximum": 1e9}],
}
_SIZE: Final[Schema] = {
    "description": "A size such as 512 KiB, 64 MiB, 1 GiB; a number is bytes.",
    "anyOf": [{"type": "string", "pattern": f"^{SIZE_TEXT}$"}, {"type": "number", "minimum": 0}],
}
_SCALAR: Final[Schema] = {"type": ["string", "number", "boolean"]}  # Spark's options are texts in the end
_NAMED_VERTEX: Final = "NamedVertex"  # a vertex whose id is its key


def job_schemas(reference: str) -> dict[str, Schema]:
    """Return the schema of a job document under `JobGraph`, and those of its parts under their names.

    `reference`: how a part is referred to, such as `#/components/schemas/{name}`.
    """
    writer = _Writer(reference)
    writer.refer(JobGraph)
    return writer.schemas


class _Writer:
    def __init__(self, reference: str) -> None:
        self._reference = reference
        self.schemas: dict[str, Schema] = {}

    def refer(self, kind: type[Struct], name: str = "", left_out: str = "") -> Schema:
        """Return a reference to the schema of a struct, which is made if it is not there yet."""
        name = name or kind.__name__
        if name not in self.schemas:
            self.schemas[name] = {}  # so that a struct may contain itself
            self.schemas[name] = self._struct(kind, left_out)
        return {"$ref": self._reference.format(name=name)}

    def _struct(self, kind: type[Struct], left_out: str) -> Schema:
        fields = msgspec.structs.fields(kind)
        properties = {f.encode_name: self._value(f.type) for f in fields}
        required = [f.encode_name for f in fields if f.required and f.encode_name != left_out]
        for field in fields:
            if not field.required and type(None) not in get_args(field.type):  # null counts as not given
                properties[field.encode_name] = _or(properties[field.encode_name], {"type": "null"})
        schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
        if kind is Artifact:  # its name follows from its path
            schema["anyOf"] = [
                {"required": required},
                {"required": ["path"], "properties": {"path": {"type": "string"}}},
            ]
        elif required:
            schema["required"] = required
        if kind in SHORT_FORMS:
            return _or(schema, self._value(_type_of(kind, SHORT_FORMS[kind])))
        return schema

    def _value(self, kind: Any) -> Schema:
        """The cases are those of `Reader.value`."""
        origin, args = get_origin(kind), get_args(kind)
        if kind is Any:
            return {}
        if kind is types.NoneType:
            return {"type": "null"}
        if origin is types.UnionType:
            return _or(*(self._value(each) for each in args))
        if origin is tuple:
            if args[0] is Vertex:
                return self._vertices()
            return {"type": "array", "items": self._value(args[0])}
        if origin is dict:
            if isinstance(args[1], type) and issubclass(args[1], Struct):
                return {"type": "object", "additionalProperties": self.refer(args[1])}
            return {"type": "object", "additionalProperties": {} if args[1] is Any else _SCALAR}
        if isinstance(kind, type) and issubclass(kind, Struct):
            return self.refer(kind)
        return _leaf(kind)

    def _vertices(self) -> Schema:
        named = self.refer(Vertex, _NAMED_VERTEX, left_out="id")
        by_id = {"type": "object", "propertyNames": _VERTEX_ID, "additionalProperties": named}
        return _or(by_id, {"type": "array", "items": self.refer(Vertex)})


def _leaf(kind: Any) -> Schema:
    plain = kind.__origin__ if get_origin(kind) is Annotated else kind
    if plain is VertexId:
        return _VERTEX_ID
    if plain is Duration:
        return _DURATION
    if plain is MemorySize:
        return _SIZE
    if isinstance(plain, type) and issubclass(plain, Enum):
        return {"enum": [member.value for member in plain]}
    return msgspec.json.schema(kind.__supertype__ if isinstance(kind, NewType) else kind)


def _type_of(kind: type[Struct], field: str) -> Any:
    """Return the type of a field that is given: without None."""
    found = next(f.type for f in msgspec.structs.fields(kind) if f.encode_name == field)
    return next(a for a in get_args(found) if a is not types.NoneType) if get_args(found) else found


def _or(*schemas: Mapping[str, Any]) -> Schema:
    """Return a schema that any of these makes true, flat."""
    flat: list[Schema] = []
    for schema in schemas:
        flat += schema["anyOf"] if schema.keys() == {"anyOf"} else [dict(schema)]
    if {} in flat:
        return {}
    return {"anyOf": flat} if len(flat) > 1 else flat[0]
