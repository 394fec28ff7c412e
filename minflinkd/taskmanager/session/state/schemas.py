"""Describes in the user's words how the schema of state differs between two versions of an operator. Pure.

Spark prints both schemas in full. These are kilobytes if one aggregate keeps dozens of columns: `approx_count_distinct`
keeps `MS[0]` to `MS[51]`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

_SHOWN = 5  # columns on each side
_LONGEST = 60  # characters of a type
_FIELD = re.compile(r"StructField\((?P<name>.*?),(?P<type>[A-Z]\w*Type\b.*),(?:true|false)\)", re.DOTALL)
_NUMBERED = re.compile(r"(?P<name>.*)\[(?P<number>\d+)\] (?P<type>.*)")
_TYPES = {"LongType": "BIGINT", "IntegerType": "INT", "ShortType": "SMALLINT", "ByteType": "TINYINT"}

Column = tuple[str, str]  # name, type


def difference(of: str, stored: str, new: str) -> str:
    """Describe the difference between two schemas. `of`: "key" or "value".

    The schemas are as Spark prints them: `StructType(StructField(n,LongType,true),...)`.
    """
    before, after = columns(stored), columns(new)
    gone, added = Counter(before) - Counter(after), Counter(after) - Counter(before)
    parts = []
    if added:
        parts.append(f"{_listed(added)} would be new in it")
    if gone:
        parts.append(f"{_listed(gone)} would be gone")
    if not parts:
        parts.append("its columns would have another order")
    return f"the schema of its {of}s changes: {', and '.join(parts)}"


def columns(schema: str) -> list[Column]:
    """Return the outermost columns of a schema."""
    inside = schema.strip().removeprefix("StructType(").removesuffix(")")
    found = []
    for field in _apart(inside):
        if (match := _FIELD.fullmatch(field)) is not None:
            found.append((match["name"], _type(match["type"])))
        elif field:
            found.append((field, ""))
    return found


def _apart(fields: str) -> Iterator[str]:
    """Split at the commas that are not in parentheses."""
    depth, begin = 0, 0
    for position, character in enumerate(fields):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            yield fields[begin:position].strip()
            begin = position + 1
    yield fields[begin:].strip()


def _type(text: str) -> str:
    plain = _TYPES.get(text) or (text.removesuffix("Type").upper() if text.isalpha() else text)
    return plain if len(plain) <= _LONGEST else plain[: _LONGEST - 3] + "..."


def _listed(found: Iterable[Column]) -> str:
    names = _folded([f"{name} {kind}".strip() for name, kind in found])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _folded(names: list[str]) -> list[str]:
    """Fold numbered columns into one: `MS[0] BIGINT`, `MS[1] BIGINT`, ... become `MS[0..51] BIGINT`."""
    runs: dict[tuple[str, str], list[int]] = {}
    for name in names:
        match = _NUMBERED.fullmatch(name)
        runs.setdefault((match["name"], match["type"]) if match else (name, ""), []).append(
            int(match["number"]) if match else -1
        )
    told = []
    for (name, kind), numbers in runs.items():
        if numbers[0] < 0:
            told.append(name)
        else:
            span = str(min(numbers)) if len(numbers) == 1 else f"{min(numbers)}..{max(numbers)}"
            told.append(f"{name}[{span}] {kind}")
    return told
