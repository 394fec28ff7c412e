"""Strategies for instances of message types, made from msgspec's knowledge of the types."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from msgspec import inspect

from minflinkd.runtime.units import Duration, MemorySize

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
NUMBERS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False)


def instances(kind: Any) -> st.SearchStrategy[Any]:
    return _of(inspect.type_info(kind))


def _of(kind: inspect.Type) -> st.SearchStrategy[Any]:
    match kind:
        case inspect.Metadata():
            return _of(kind.type)
        case inspect.StructType() | inspect.DataclassType():
            fields = {f.name: _of(f.type) for f in kind.fields}
            return st.builds(kind.cls, **fields)
        case inspect.VarTupleType():
            return st.lists(_of(kind.item_type), max_size=2).map(tuple)
        case inspect.TupleType():
            return st.tuples(*map(_of, kind.item_types))
        case inspect.DictType():
            return st.dictionaries(_of(kind.key_type), _of(kind.value_type), max_size=2)
        case inspect.UnionType():
            return st.one_of(*map(_of, kind.types))
        case inspect.EnumType():
            return st.sampled_from(list(kind.cls))
        case inspect.IntType():
            return st.integers(-(2**63) if kind.ge is None else kind.ge, 2**63 - 1)
        case inspect.FloatType():
            return FLOATS
        case inspect.StrType():
            return TEXT
        case inspect.BytesType():
            return st.binary(max_size=8)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.AnyType():  # anything that a job file may hold
            return st.one_of(st.none(), st.booleans(), NUMBERS, FLOATS, TEXT, st.lists(NUMBERS, max_size=2))
        case inspect.CustomType(cls=cls) if cls is Duration:
            return st.floats(0, 1e6, allow_nan=False).map(Duration)
        case inspect.CustomType(cls=cls) if cls is MemorySize:
            return st.integers(0, 2**50).map(MemorySize)
    raise NotImplementedError(f"no instances of {kind}")
