"""What somebody who knows an earlier form of a document sees in a later one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def differences(earlier: Any, now: Any, place: str = "") -> Iterable[str]:
    """Yield what somebody who knows only the fields of `earlier`, and skips all others, sees differently in `now`."""
    if isinstance(earlier, dict) and isinstance(now, dict):
        for key, value in earlier.items():
            yield from differences(value, now[key], f"{place}.{key}") if key in now else (f"{place}.{key} is missing",)
    elif isinstance(earlier, list) and isinstance(now, list) and len(earlier) == len(now):
        for number, (one, other) in enumerate(zip(earlier, now, strict=True)):
            yield from differences(one, other, f"{place}[{number}]")
    elif earlier != now:
        yield f"{place} was {earlier!r}, and is {now!r}"
