"""Writes the expression for how many bytes a row of state has, as Spark keeps it: an UnsafeRow. Pure.

Spark tells nobody the size of a row, but it follows from the row's types and values: eight bytes for each column and
for each 64 columns, and what does not fit into eight bytes after them, in multiples of eight. RocksDB adds a few bytes
to each row, and compresses what it writes, so files have other sizes.
"""

from __future__ import annotations

from itertools import count

from pyspark.sql import types as t

from minflinkd.taskmanager.session.spark.frames import quoted

_WIDTHS: dict[type[t.DataType], int] = {  # of elements of an array; all others have 8 bytes
    t.BooleanType: 1,
    t.ByteType: 1,
    t.ShortType: 2,
    t.IntegerType: 4,
    t.DateType: 4,
    t.FloatType: 4,
}


def row_bytes(schema: t.StructType, column: str) -> str:
    """Return an SQL expression for the bytes of the struct `column`; 0 if it is null."""
    return _Sizes().of_row(schema, column)


class _Sizes:
    def __init__(self) -> None:
        self._numbers = count()

    def of_row(self, schema: t.StructType, column: str) -> str:
        fixed = 8 * len(schema.fields) + 8 * -(-len(schema.fields) // 64)
        after = [self._after(field.dataType, f"{column}.{quoted(field.name)}") for field in schema.fields]
        total = " + ".join([f"{fixed}L", *filter(None, after)])
        return f"if({column} IS NULL, 0L, {total})"

    def _after(self, kind: t.DataType, value: str) -> str:
        """Return the bytes after the fixed ones; empty for a value that fits there."""
        if isinstance(kind, t.UserDefinedType):
            return self._after(kind.sqlType(), value)
        if isinstance(kind, t.StringType | t.BinaryType | t.CharType | t.VarcharType):
            return f"coalesce((octet_length({value}) + 7) & -8, 0)"
        if isinstance(kind, t.DecimalType):
            return "16" if kind.precision > 18 else ""
        if isinstance(kind, t.CalendarIntervalType):
            return "16"
        if isinstance(kind, t.StructType):
            return self.of_row(kind, value)
        if isinstance(kind, t.ArrayType):
            return f"coalesce({self._array(kind.elementType, value)}, 0L)"
        if isinstance(kind, t.MapType):
            keys = self._array(kind.keyType, f"map_keys({value})")
            values = self._array(kind.valueType, f"map_values({value})")
            return f"coalesce(8L + {keys} + {values}, 0L)"
        if isinstance(kind, t.VariantType):
            return f"coalesce((octet_length(to_json({value})) + 7) & -8, 0)"  # nearly: Spark has no function for it
        return ""

    def _array(self, kind: t.DataType, value: str) -> str:
        size = f"CAST(size({value}) AS BIGINT)"
        head = f"8L + ceil({size} / 64) * 8"
        width = _WIDTHS.get(type(kind), 8)
        if width < 8:
            return f"if({value} IS NULL, NULL, {head} + (({size} * {width} + 7) & -8))"
        number = next(self._numbers)
        element = self._after(kind, f"e{number}")
        rest = f"aggregate({value}, 0L, (a{number}, e{number}) -> a{number} + {element})" if element else "0L"
        return f"if({value} IS NULL, NULL, {head} + 8L * {size} + {rest})"
