"""Which code fits into one session (blob.md B31). Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from minflinkd.rpc.messages import Library
from minflinkd.runtime.errors import Consequence, MinflinkError


class LibraryConflict(MinflinkError):
    """B31: the session holds another version of what it cannot hold twice; another TaskManager's may not."""

    code = "library-conflict"
    consequence = Consequence.RETRYABLE


def clash(held: Iterable[Library], wanted: Iterable[Library]) -> tuple[str, ...]:
    """The units that would be there in two versions; none, where all fit."""
    digests: dict[str, set[str]] = {}
    for library in (*held, *wanted):
        digests.setdefault(library.unit, set()).add(library.digest)
    return tuple(sorted(unit for unit, found in digests.items() if len(found) > 1))


def contains(held: Iterable[Library], wanted: Collection[Library]) -> bool:
    """Whether all of them are there, of which there is at least one."""
    return bool(wanted) and set(wanted) <= set(held)


def together(*several: Iterable[Library]) -> tuple[Library, ...]:
    """Each once, in their order."""
    return tuple(sorted({library for some in several for library in some}))
