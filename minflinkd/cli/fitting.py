"""Makes one line fit a terminal: the least important parts are shortened first, then left out.

`RUNNING  tasks 2/2  rows in 1,234,567, out 123,456 (9,876/s)` in 40 columns is `RUNNING  tasks 2/2  rows 1.2M in, 123k
out`, which never wraps. A line that wraps would be drawn again and again below itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

GAP = "  "


@dataclass(frozen=True)
class Part:
    """A part of the line, in forms from longest to shortest. The part with the lowest `rank` is shortened first."""

    forms: tuple[str, ...]
    rank: int


def fit(parts: Sequence[Part], width: int | None) -> str:
    """Join the parts in order, in at most `width` columns; None: in full."""
    chosen = [part.forms[0] for part in parts]
    if width is None:
        return _joined(chosen)
    order = sorted(range(len(parts)), key=lambda i: parts[i].rank)
    shortenings = [(i, form) for i in order for form in parts[i].forms[1:]] + [(i, "") for i in order[:-1]]
    for i, form in shortenings:
        if len(_joined(chosen)) <= width:
            break
        chosen[i] = form
    return _joined(chosen)[: max(width, 0)]


def _joined(texts: Sequence[str]) -> str:
    return GAP.join(filter(None, texts))


def short(count: float) -> str:
    """Format like `950`, `12k`, `1.2M`, `3.4G`."""
    for unit in ("", "k", "M"):
        if count < 999.5:
            return f"{count:.1f}{unit}" if unit and count < 9.95 else f"{count:.0f}{unit}"
        count /= 1000
    return f"{count:.1f}G"


def stderr_width() -> int | None:
    """Return the columns of the terminal of stderr, otherwise $COLUMNS, otherwise None: a log file has no limit."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or None
    except (OSError, ValueError):  # not a terminal, or not even a file
        columns = os.environ.get("COLUMNS", "")
        return int(columns) if columns.isdecimal() and int(columns) > 0 else None
