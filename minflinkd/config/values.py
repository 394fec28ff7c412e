"""The types of option values, and their conversion from text and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from minflinkd.config.declaration import Option
from minflinkd.runtime.secrets import MASK, is_sensitive
from minflinkd.runtime.units import Duration, InvalidUnit, MemorySize

_BOOLS: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class PortRange:
    """Ports to try in order: `0` (any free one), `50100`, or `50100-50200`. Iterating yields them."""

    first: int = 0
    last: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError."""
        first, dash, last = text.partition("-")
        ports = cls(int(first), int(last if dash else first))
        if not 0 <= ports.first <= ports.last <= 65535 or (dash and ports.first == 0):
            raise ValueError(text)
        return ports

    @property
    def fixed(self) -> int | None:
        """The port, if it is known beforehand."""
        return self.first if self.first == self.last != 0 else None

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))

    def __contains__(self, port: int) -> bool:
        return self.first <= port <= self.last

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


def socket_addresses(text: str) -> list[tuple[str, int]]:
    """Return the hosts and ports in `host:port,[v6]:port`. Raises ValueError with what is wrong."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        host, colon, port = part.rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"{part[:120]!r} is not host:port")
        found.append((host.removeprefix("[").removesuffix("]"), int(port)))
    return found


def socket_address(host: str, port: int) -> str:
    """Return what `socket_addresses` reads as this host and port."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class NotAllowed(ValueError):
    """The text is not a valid value of the option; the message says what is."""


def parse(option: Option, text: str | None) -> object:
    """Parse a value; None stands for YAML's null. Raises NotAllowed."""
    if text is None or (option.optional and text.strip() in ("", "null", "~")):
        if option.optional:
            return None
        raise NotAllowed(allowed(option))
    try:
        value = _reader(option.kind)(text if option.kind is str else text.strip())
    except (ValueError, KeyError, InvalidUnit):
        raise NotAllowed(allowed(option)) from None
    if isinstance(value, int | float) and not _within(option, value):
        raise NotAllowed(allowed(option))
    return value


def _reader(kind: type) -> Callable[[str], object]:
    if kind is bool:
        return lambda text: _BOOLS[text.lower()]
    if issubclass(kind, Duration | MemorySize | PortRange):
        return kind.parse
    return kind  # int, float, str and enums read their own text


def _within(option: Option, value: float) -> bool:
    if not float("-inf") < value < float("inf"):
        return False
    return (option.at_least is None or value >= option.at_least) and (option.at_most is None or value <= option.at_most)


def allowed(option: Option) -> str:
    """Return which values the option allows, in words for errors and the documentation."""
    types = [text for of, text in _ALLOWED if issubclass(option.kind, of) and not issubclass(option.kind, StrEnum)]
    return ", ".join(types[:1] + limits(option))


def limits(option: Option) -> list[str]:
    """Return the restrictions on the option's type, in words."""
    found = []
    if issubclass(option.kind, StrEnum):
        found.append("one of " + ", ".join(option.kind))
    if option.at_least is not None:
        found.append(f"at least {_limit(option, option.at_least)}")
    if option.at_most is not None:
        found.append(f"at most {_limit(option, option.at_most)}")
    if option.optional:
        found.append("or null")
    return found


_ALLOWED: Final[tuple[tuple[type, str], ...]] = (
    (bool, "true or false"),
    (Duration, "a duration such as 500 ms, 10 s, 2 min, 1 h"),
    (MemorySize, "a size such as 512 KiB, 64 MiB, 1 GiB"),
    (PortRange, "a port, or a range of ports such as 50100-50200, or 0 for any free one"),
    (int, "a whole number"),
    (float, "a number"),
    (dict, "a map from names to texts"),
    (str, "a text"),
)


def _limit(option: Option, limit: float) -> str:
    if issubclass(option.kind, Duration | MemorySize):
        return str(option.kind(limit))
    return f"{limit:g}"


def format_value(value: object) -> str:
    """Format a value so that `parse` reads it back. A map becomes JSON."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def masked(option: Option, value: object) -> object:
    """Return the value as it may be shown."""
    if not option.sensitive or not value:
        return value
    if isinstance(value, dict):
        return {name: MASK if is_sensitive(name) else text for name, text in value.items()}
    return MASK
