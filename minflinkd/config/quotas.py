"""How much each user may have at a time: `security.quotas.<user>.<limit>`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from minflinkd.runtime.units import InvalidUnit, MemorySize

EVERYBODY: Final = "*"  # the user whose limits count for all who have none of their own
KINDS: Final = ("jobs", "slots", "artifacts")
_NO_LIMIT: Final = "none"
_KEY: Final = "security.quotas"


@dataclass(frozen=True, slots=True)
class Limit:
    """`most`: None is no limit; artifacts are in bytes. `option`: the key that says so; empty if none does."""

    most: int | None = None
    option: str = ""


@dataclass(frozen=True, slots=True)
class Quotas:
    """The limits by user and kind."""

    limits: Mapping[tuple[str, str], int | None] = field(default_factory=dict)

    @classmethod
    def parse(cls, entries: Mapping[str, str]) -> Quotas:
        """Read the entries of the option, `<user>.<limit>` -> value. Raises ValueError with what is wrong."""
        return cls({_place(name): _most(_place(name)[1], text) for name, text in entries.items()})

    def of(self, user: str, kind: str) -> Limit:
        """Return the user's own limit, otherwise everybody's. A user may have a limit of one kind alone."""
        for name in (user, EVERYBODY):
            if (name, kind) in self.limits:
                return Limit(self.limits[name, kind], f"{_KEY}.{name}.{kind}")
        return Limit()

    @property
    def users(self) -> frozenset[str]:
        """The users that have limits of their own."""
        return frozenset(user for user, _ in self.limits) - {EVERYBODY}


def _place(name: str) -> tuple[str, str]:
    """Split a name at its last dot: names of users may have dots. Raises ValueError."""
    user, _, kind = name.rpartition(".")
    if not user or kind not in KINDS:
        raise ValueError(f"{name[:120]!r} is not <user>.<limit>, where the limit is one of {', '.join(KINDS)}")
    return user, kind


def _most(kind: str, text: str) -> int | None:
    """Raises ValueError."""
    text = text.strip()
    if text == _NO_LIMIT:
        return None
    if kind == "artifacts":
        try:
            return MemorySize.parse(text)
        except InvalidUnit:
            raise ValueError(f"{text[:80]!r} is not a size such as 512 MiB or 2 GiB, or {_NO_LIMIT}") from None
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise ValueError(f"{text[:80]!r} is not a whole number, or {_NO_LIMIT}")
    return int(text)
