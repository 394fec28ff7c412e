"""Checks whether restored state still means the same: the same keys and the same aggregates (C25). Pure.

Spark itself compares the number and types of keys and aggregates. It knows better, because it leaves out what nobody
reads. So nothing is said here if the numbers differ.
"""

from __future__ import annotations

from collections.abc import Sequence

from minflinkd.rpc.snapshot import Meant, Role

_KEPT = {
    "Join": ("found rows by", "now finds rows by"),
    "Deduplicate": ("knew rows by", "now knows rows by"),
    "DeduplicateWithinWatermark": ("knew rows by", "now knows rows by"),
    "Distinct": ("knew rows by", "now knows rows by"),
}


def change(kind: str, old: Sequence[Meant], new: Sequence[Meant]) -> str:
    """Describe what has changed, in a user's words; "" if nothing has, or if it was not recorded.

    `kind`: Spark's name of the operator.
    """
    for role in Role:
        had, has = (tuple(meant for meant in side if meant.role is role) for side in (old, new))
        if len(had) != len(has):
            continue
        for place, (before, after) in enumerate(zip(had, has, strict=True)):
            if not _same(before, after) or _is_moved(place, had, has):
                return _told(kind, role, before, after, ordered=_in_another_order(had, has))
    return ""


def _same(before: Meant, after: Meant) -> bool:
    return before.exact == after.exact or before.form == after.form


def _is_moved(place: int, had: Sequence[Meant], has: Sequence[Meant]) -> bool:
    """Whether the entry at `place` has the form of what was there, but is exactly what was in another place."""
    after = has[place].exact
    return after != had[place].exact and any(before.exact == after for before in had)


def _in_another_order(had: Sequence[Meant], has: Sequence[Meant]) -> bool:
    return sorted(meant.exact for meant in had) == sorted(meant.exact for meant in has)


def _told(kind: str, role: Role, before: Meant, after: Meant, *, ordered: bool) -> str:
    was, now = before.text, after.text
    if was == now:  # a projection now gives this name to another column
        was, now = (before.form, after.form) if before.form != after.form else (before.exact, after.exact)
    why = "; Spark knows them by their order alone" if ordered else ""
    if role is Role.AGGREGATE:
        return f"holds {was}, and would be read as {now}{why}"
    had, has = _KEPT.get(kind, ("was kept by", "is now kept by"))
    return f"{had} {was}, and {has} {now}{why}"
