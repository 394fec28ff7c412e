"""Writes figures as people read them."""

from __future__ import annotations

from minflinkd.runtime.errors import in_a_line

MS = 1
SECOND = 1000 * MS
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE


def span(ms: float) -> str:
    """`430 ms`, `2.5 s`, `4 min`, `3 h 5 min`, `2 days`."""
    if ms < SECOND:
        return f"{ms:.0f} ms"
    if ms < MINUTE:
        return f"{ms / SECOND:.3g} s"
    if ms < HOUR:
        return f"{ms / MINUTE:.0f} min"
    hours, rest = divmod(round(ms / MINUTE), 60)
    if hours < 48:
        return f"{hours} h {rest} min" if rest else f"{hours} h"
    return f"{hours // 24} days"


def size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def number(count: float) -> str:
    return f"{count:,.0f}"


def share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "0 %"


def line(text: str) -> str:
    """Return the first line of a text of a user or of a process that has ended, shortened.

    The end of a process's log would follow, and is not shown.
    """
    return in_a_line(text).removesuffix("; its log ends:")
