"""How one value of a series is kept: in two bytes to a tenth of a percent, or in one byte.

Code 0 always means that nothing is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Protocol

UNKNOWN: Final = 0

# Two bytes: a sign, 6 bits of exponent and 9 of mantissa. So whole numbers up to 1,024 are exact.
_SIGN: Final = 1 << 15
_ZERO: Final = 1
_FIRST: Final = 2  # the code of the smallest number
_STEPS: Final = 512  # to a power of two
_LEAST_EXPONENT: Final = -13  # the smallest number is 2**-14, the largest about 2**50

_SHORTEST: Final = 0.001  # seconds; Spark counts whole milliseconds
_LONGEST: Final = 36_000.0
_LOG_STEP: Final = math.log(_LONGEST / _SHORTEST) / 253


class Codec(Protocol):
    """`table` has the value of each code; it is shorter to look a value up than to compute it."""

    @property
    def wide(self) -> bool: ...

    @property
    def table(self) -> list[float | None]: ...

    def encode(self, value: float | None) -> int: ...


@dataclass(frozen=True)
class _Number:
    wide: bool = True

    def encode(self, value: float | None) -> int:
        if value is None or not math.isfinite(value):
            return UNKNOWN
        if value == 0:
            return _ZERO
        mantissa, exponent = math.frexp(abs(value))
        step = (exponent - _LEAST_EXPONENT) * _STEPS + round((mantissa - 0.5) * 2 * _STEPS)
        if step < 0:
            return _ZERO
        number = min(step + _FIRST, _SIGN - 1)
        return number | _SIGN if value < 0 else number

    @cached_property
    def table(self) -> list[float | None]:
        sizes = [_size(number) for number in range(_SIGN)]
        return [*sizes, *(None if size is None else -size for size in sizes)]


def _size(number: int) -> float | None:
    if number < _FIRST:
        return None if number == UNKNOWN else 0.0
    exponent, step = divmod(number - _FIRST, _STEPS)
    exact = math.ldexp(0.5 + step / (2 * _STEPS), exponent + _LEAST_EXPONENT)
    return float(f"{exact:.5g}")  # more digits would only make answers longer


@dataclass(frozen=True)
class _ShortTime:
    """Seconds, to 3.5 %."""

    wide: bool = False

    def encode(self, value: float | None) -> int:
        if value is None or not math.isfinite(value):
            return UNKNOWN
        if value < _SHORTEST / 2:
            return _ZERO
        return min(_FIRST + max(0, round(math.log(value / _SHORTEST) / _LOG_STEP)), 255)

    @cached_property
    def table(self) -> list[float | None]:
        times = (float(f"{_SHORTEST * math.exp(step * _LOG_STEP):.3g}") for step in range(254))
        return [None, 0.0, *times]


@dataclass(frozen=True)
class _Share:
    """From 0 to 1, to half a percent of the whole."""

    wide: bool = False

    def encode(self, value: float | None) -> int:
        if value is None or not math.isfinite(value):
            return UNKNOWN
        return 1 + round(254 * min(max(value, 0.0), 1.0))

    @cached_property
    def table(self) -> list[float | None]:
        return [None, *(round(step / 254, 3) for step in range(255))]


NUMBER: Final[Codec] = _Number()
SHORT_TIME: Final[Codec] = _ShortTime()
SHARE: Final[Codec] = _Share()
