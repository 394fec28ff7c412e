"""Values with units, as people write them (`10 s`, `64 MiB`) and as they are in messages and files."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Self, TypeVar

from minflinkd.runtime.errors import Consequence, MinflinkError

_DURATIONS = {"ms": 0.001, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATIONS |= {"second": 1.0, "seconds": 1.0, "minute": 60.0, "minutes": 60.0}
_DURATIONS |= {"hour": 3600.0, "hours": 3600.0, "day": 86400.0, "days": 86400.0}
_SIZES = {"b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "tb": 1000**4}
_SIZES |= {"kib": 1024, "mib": 1024**2, "gib": 1024**3, "tib": 1024**4, "k": 1024, "m": 1024**2, "g": 1024**3}
_VALUE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def _text(units: Mapping[str, object]) -> str:
    """Return what `parse` takes of a text, for those who have no regular expressions without regard to case."""
    names = "|".join("".join(f"[{c}{c.upper()}]" for c in unit) for unit in units)
    return rf"\s*[0-9]+(\.[0-9]+)?\s*({names})?\s*"


DURATION_TEXT, SIZE_TEXT = _text(_DURATIONS), _text(_SIZES)

_Factor = TypeVar("_Factor", int, float)


class InvalidUnit(MinflinkError, ValueError):  # a ValueError, so that msgspec adds the position in the document
    code = "invalid-unit"
    consequence = Consequence.REFUSED


class Duration(float):
    """Seconds. Written as `500 ms`, `10 s`, `2 min`, `1 h`, `1 d`; a bare number is seconds."""

    @classmethod
    def parse(cls, value: object) -> Self:
        """Raises InvalidUnit."""
        number, factor = _parse(value, _DURATIONS, 1.0, "a duration such as 500 ms, 10 s, 2 min, 1 h")
        return cls(float(number) * factor)

    def __str__(self) -> str:
        """Format in the largest unit that gives a whole number. `parse` returns exactly this value again."""
        seconds = float(self)
        if seconds > 0 and math.isfinite(seconds):
            for unit in ("d", "h", "min", "s", "ms"):
                number = round(seconds / _DURATIONS[unit])
                if number * _DURATIONS[unit] == seconds:
                    return f"{number} {unit}"
        return f"{_decimal(seconds)} s"

    __repr__ = __str__


class MemorySize(int):
    """Bytes. Written as `512 KiB`, `64 MiB`, `1 GiB`, `10 MB`; a bare number is bytes."""

    @classmethod
    def parse(cls, value: object) -> Self:
        """Raises InvalidUnit. Fractions of a byte are rounded."""
        number, factor = _parse(value, _SIZES, 1, "a size such as 512 KiB, 64 MiB, 1 GiB")
        return cls(round(Decimal(number) * factor))  # exact: a float would lose the last bytes

    def __str__(self) -> str:
        for unit, factor in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
            if self and self % factor == 0:
                return f"{self // factor} {unit}"
        return f"{int(self)} B"

    __repr__ = __str__


def _decimal(value: float) -> str:
    """Return all digits of a float, without an exponent."""
    text = format(Decimal(float.__repr__(value)), "f")
    return text.removesuffix(".0")


def _parse(value: object, units: Mapping[str, _Factor], bare: _Factor, want: str) -> tuple[str, _Factor]:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InvalidUnit(f"{value!r} is not {want}")
    match = _VALUE.fullmatch(_decimal(value) if isinstance(value, float) else str(value))
    factor = bare if match and not match[2] else units.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise InvalidUnit(f"{value!r} is not {want}")
    return match[1], factor


def encode_unit(value: object) -> object:
    """msgspec's enc_hook for Duration and MemorySize."""
    if isinstance(value, Duration):
        return float(value)
    if isinstance(value, MemorySize):
        return int(value)
    raise NotImplementedError(f"no wire form for {type(value).__name__}")


def decode_unit(kind: type, value: object) -> object:
    """msgspec's dec_hook for Duration and MemorySize. Raises InvalidUnit."""
    if issubclass(kind, Duration | MemorySize):
        return kind.parse(value)
    raise NotImplementedError(f"no wire form for {kind.__name__}")
