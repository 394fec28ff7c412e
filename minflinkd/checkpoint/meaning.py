"""Whether state that is gone on with still means the same: kept by the same keys, of the same aggregates (C25). Pure.

How many keys and aggregates there are, and of which types, Spark compares itself, and knows better: it leaves out what
nobody reads. So where their numbers differ nothing is said here.
"""

from __future__ import annotations

from collections.abc import Sequence

from minflinkd.rpc.snapshot import Meant, Role

_KEPT = {
    "Join": ("finds rows by", "found them by"),
    "Deduplicate": ("knows rows by", "knew them by"),
    "DeduplicateWithinWatermark": ("knows rows by", "knew them by"),
    "Distinct": ("knows rows by", "knew them by"),
}


def change(kind: str, old: Sequence[Meant], new: Sequence[Meant]) -> str:
    """What is another thing now, in a user's words; "" where nothing is, or where it was not recorded.

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
    """It has the form of what was in its place, and is exactly what was in another one."""
    after = has[place].exact
    return after != had[place].exact and any(before.exact == after for before in had)


def _in_another_order(had: Sequence[Meant], has: Sequence[Meant]) -> bool:
    return sorted(meant.exact for meant in had) == sorted(meant.exact for meant in has)


def _told(kind: str, role: Role, before: Meant, after: Meant, *, ordered: bool) -> str:
    was, now = before.text, after.text
    if was == now:  # then it is another column that a projection gives this name
        was, now = (before.form, after.form) if before.form != after.form else (before.exact, after.exact)
    why = "; Spark knows them by their order alone" if ordered else ""
    if role is Role.AGGREGATE:
        return f"is of {was}, and would go on as that of {now}{why}"
    has, had = _KEPT.get(kind, ("is kept by", "was kept by"))
    return f"now {has} {now}, and {had} {was}{why}"
