"""The story of one run: what was sent, lost, doubled and late, who crashed, and which states changed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from minflinkd.rpc.messages import Message

SHORT = 6  # number of digits that tell an id from the others of a run
LEADER = 32  # number of digits of a LeaderId
_HEX = re.compile(r"[0-9a-f]{12,}")


class Violation(AssertionError):
    """The run broke a rule: an invariant, or a bound on the time in which something had to happen."""


class Journal:
    """Entries are formatted only when somebody reads them, because most runs are never read."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, str, tuple[Any, ...]]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def note(self, now: float, text: str, *values: Any) -> None:
        """Add an entry. `values` fill the braces of `text` when it is read, so they must be immutable."""
        self._entries.append((now, text, values))

    def lines(self) -> Iterator[str]:
        for now, text, values in self._entries:
            yield f"{now:9.3f}  {text.format(*map(shown, values))}"


def shown(value: Any) -> str:
    """Return a value as the story shows it, without fields that have their defaults, and with shortened ids."""
    if isinstance(value, Message):
        fields = ((name, getattr(value, name)) for name in value.__struct_fields__)
        defaults = dict(zip(value.__struct_fields__[::-1], value.__struct_defaults__[::-1], strict=False))
        told = ", ".join(f"{n}={shown(v)}" for n, v in fields if n not in defaults or defaults[n] != v)
        return f"{type(value).__name__}({told})"
    if isinstance(value, msgspec.Struct):
        return type(value).__name__
    if isinstance(value, str):
        return cut(value)
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{shown(k)}: {shown(v)}' for k, v in value.items())}}}"
    if isinstance(value, float):
        return f"{value:.3f}"
    return str(value)


def cut(text: str) -> str:
    """Shorten ids to their beginning, and LeaderIds to the parts that differ."""
    return _HEX.sub(_shortened, text)


def _shortened(found: re.Match[str]) -> str:
    hex_digits = found.group()
    if len(hex_digits) == LEADER and hex_digits.startswith("000000"):
        return f"leader-{int(hex_digits[:8], 16)}.{int(hex_digits[8:16], 16)}"
    return hex_digits[:SHORT]
