"""What a user may have meant by a name that does not exist. Pure."""

from __future__ import annotations

from collections.abc import Iterable

_CLOSE = 0.6  # of 1: how alike two names must be
_SHORTEST = 3  # characters of the beginning of an id that can be a typing error


def nearest(text: str, names: Iterable[str]) -> str | None:
    """Return the name that is most like `text`, if one is. Case does not count."""
    import difflib

    by_lower = {name.lower(): name for name in names}
    if begun := [name for lower, name in by_lower.items() if text and lower.startswith(text.lower())]:
        return min(begun, key=len)
    found = difflib.get_close_matches(text.lower(), by_lower, n=1, cutoff=_CLOSE)
    return by_lower[found[0]] if found else None


def nearest_id(text: str, ids: Iterable[str]) -> str | None:
    """Return the id of which `text` may be the beginning, with one character wrong, missing or too many."""
    import difflib

    text = text.lower()
    if len(text) < _SHORTEST:
        return None
    alike = [(difflib.SequenceMatcher(None, text, one[: len(text)]).ratio(), one) for one in ids]
    best, found = max(alike, default=(0.0, ""))
    return found if best >= 1 - 1.5 / len(text) else None


def did_you_mean(text: str, names: Iterable[str]) -> str:
    """Return the question with a space after it; empty if no name is like `text`."""
    found = nearest(text, names)
    return f"Did you mean {found!r}? " if found else ""
