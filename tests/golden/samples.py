"""A value of any type of message or record.

A sample has every field set, and not to its default, down to the last part. So a field that is renamed, dropped or
given another type shows when the sample of an earlier version is read.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import inspect

from minflinkd.runtime.units import Duration, MemorySize


def sample(kind: Any) -> Any:
    return _filled(inspect.type_info(kind), "sample", msgspec.NODEFAULT)


def _filled(kind: inspect.Type, name: str, default: Any) -> Any:
    match kind:
        case inspect.Metadata():
            return _filled(kind.type, name, default)
        case inspect.StructType():
            return kind.cls(**{field.name: _filled(field.type, field.name, field.default) for field in kind.fields})
        case inspect.VarTupleType():
            return (_filled(kind.item_type, name, msgspec.NODEFAULT),)
        case inspect.TupleType():
            return tuple(_filled(each, name, msgspec.NODEFAULT) for each in kind.item_types)
        case inspect.DictType():
            return {_filled(kind.key_type, name, msgspec.NODEFAULT): _filled(kind.value_type, name, msgspec.NODEFAULT)}
        case inspect.UnionType():
            some = next(each for each in kind.types if not isinstance(each, inspect.NoneType))
            return _filled(some, name, default)
        case inspect.EnumType():
            return next(value for value in reversed(list(kind.cls)) if value != default)
        case inspect.BoolType():
            return default is not True
        case inspect.IntType() if name == "version" and default is not msgspec.NODEFAULT:
            return default  # of the format: another would not be read
        case inspect.IntType():
            return 7
        case inspect.FloatType():
            return 1.5
        case inspect.StrType():
            return name
        case inspect.BytesType():
            return name.encode()
        case inspect.AnyType():
            return [name, 7, {"deep": True}]
        case inspect.RawType():
            return msgspec.Raw(msgspec.msgpack.encode({"field": name}))
        case inspect.CustomType(cls=cls) if cls is Duration:
            return Duration(2.5)
        case inspect.CustomType(cls=cls) if cls is MemorySize:
            return MemorySize(1024)
    raise NotImplementedError(f"no sample of {kind}")
