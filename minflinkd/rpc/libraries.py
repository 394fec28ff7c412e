"""Which code fits into one session (B31). Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from minflinkd.rpc.messages import Library
from minflinkd.runtime.errors import Consequence, Kind, MinflinkError


class LibraryConflict(MinflinkError):
    """B31: the session holds another version of a library that it cannot hold twice; another session may have room."""

    code = "library-conflict"
    consequence = Consequence.RETRYABLE
    kind = Kind.SESSION_TAKEN


def clash(held: Iterable[Library], wanted: Iterable[Library]) -> tuple[str, ...]:
    """Return the units that would be loaded in two versions; none if everything fits."""
    digests: dict[str, set[str]] = {}
    for library in (*held, *wanted):
        digests.setdefault(library.unit, set()).add(library.digest)
    return tuple(sorted(unit for unit, found in digests.items() if len(found) > 1))


def contains(held: Iterable[Library], wanted: Collection[Library]) -> bool:
    """Whether there are `wanted` libraries and all of them are held."""
    return bool(wanted) and set(wanted) <= set(held)


def together(*several: Iterable[Library]) -> tuple[Library, ...]:
    """Return each library once, sorted."""
    return tuple(sorted({library for some in several for library in some}))
