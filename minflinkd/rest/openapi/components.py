"""The schemas of `/openapi.json`, from the types that answers are made of and bodies are decoded into (E5)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
from msgspec import inspect

from minflinkd.jobgraph.job_schema import Schema, job_schemas
from minflinkd.jobgraph.model import JobGraph

_REFERENCE: Final = "#/components/schemas/{name}"
_CITED: Final = re.compile(r"\s*\([A-Z]\d+\w?(, [A-Z]\d+\w?)*\)")  # codes of docs/requirements.md


class Components:
    """`schemas` by name, with what they refer to; `of` returns the schema of one of the types."""

    def __init__(self, answers: Iterable[Any], bodies: Iterable[Any]) -> None:
        sent, taken = list(dict.fromkeys(answers)), [each for each in dict.fromkeys(bodies) if each is not JobGraph]
        found, schemas = msgspec.json.schema_components([*sent, *taken], ref_template=_REFERENCE)
        self._schemas = dict(zip([*sent, *taken], found, strict=True)) | {
            JobGraph: {"$ref": _REFERENCE.format(name=JobGraph.__name__)}
        }
        read = set(_structs(taken))
        for struct in _structs(sent):
            if struct not in read:
                _tell_what_is_always_sent(schemas[struct.__name__], struct)
        jobs = job_schemas(_REFERENCE)
        assert not jobs.keys() & schemas.keys(), "two schemas have the same name"
        self.schemas: dict[str, Schema] = {
            name: for_readers(schema) for name, schema in sorted((schemas | jobs).items())
        }

    def of(self, kind: Any) -> Schema:
        schema: Schema = for_readers(self._schemas[kind])
        return schema


def for_readers(schema: Any) -> Any:
    """Return a schema as clients and their generators need it.

    Whole numbers have 64 bits: otherwise clients in Java or C# would take times of day into 32. A list says of what it
    is: otherwise generators refuse it. A description is one line without the codes of our requirements.
    """
    if isinstance(schema, list | tuple):
        return [for_readers(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    shown = {key: for_readers(value) for key, value in schema.items() if key != "title" or not isinstance(value, str)}
    if shown.get("type") == "integer" and "enum" not in shown:
        shown["format"] = "int64"
    if shown.get("type") == "array":
        shown.setdefault("items", {})
    if isinstance(text := shown.get("description"), str):
        shown["description"] = " ".join(_CITED.sub("", text).split())
    return shown


def _tell_what_is_always_sent(schema: Schema, struct: type[msgspec.Struct]) -> None:
    """A field with a default is sent too, and its default is for those who read answers of an earlier version."""
    if struct.__struct_config__.omit_defaults:
        return
    fields = msgspec.structs.fields(struct)
    schema["required"] = [f.encode_name for f in fields if f.default is not msgspec.UNSET]
    for told in schema["properties"].values():
        told.pop("default", None)


def _structs(kinds: Iterable[Any]) -> Iterator[type[msgspec.Struct]]:
    """Yield the structs in these types, each once."""
    seen: set[type[msgspec.Struct]] = set()
    rest = list(inspect.multi_type_info(list(kinds)))
    while rest:
        match rest.pop():
            case inspect.StructType(cls=struct, fields=fields) if struct not in seen:
                seen.add(struct)
                yield struct
                rest += [field.type for field in fields]
            case inspect.UnionType(types=types):
                rest += types
            case inspect.DictType(key_type=key, value_type=value):
                rest += [key, value]
            case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
                rest.append(item)
            case inspect.Metadata(type=inner):
                rest.append(inner)
