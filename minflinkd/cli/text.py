"""Formats values for people, prints tables of them, and makes a line fit a terminal.

Rich is imported only to print: completion in a shell imports this module with the commands.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

ON_TRIAL = "on trial: no input yet"

_COLOURS = {
    "RUNNING": "green",
    "FINISHED": "blue",
    "COMPLETED": "green",
    "FAILED": "red",
    "FAILING": "red",
    "CANCELED": "yellow",
    "CANCELLING": "yellow",
    "RECONCILING": "yellow",
    "RESTARTING": "yellow",
    "ready": "green",
    "lost": "red",
}

_PIPE_WIDTH = 500  # columns if stdout is no terminal, so that nothing is cut off
TABLE_GAP = 3  # columns between two columns of a table, with its line
SHORTEST_COLUMN = 20  # columns that a column of a table keeps

_GAP = "  "  # between the parts of a line


def console() -> Console:
    """Return a new console for each command, since stdout may have changed."""
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print a table. Columns with a leading `>` in the name are right-aligned.

    On a narrow terminal, long names are shortened, then columns are left out from the right: see `fit_columns`.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    cells = [[cell if isinstance(cell, Text) else Text(str(cell)) for cell in row] for row in rows]
    if not cells:
        click.echo(empty)
        return
    target = console()
    names = [column.removeprefix(">") for column in columns]
    wanted = [max(len(name), *(row[i].cell_len for row in cells)) for i, name in enumerate(names)]
    widths = fit_columns(wanted, target.width) if target.is_terminal else wanted
    table = Table(box=SIMPLE_HEAD if target.is_terminal else None, pad_edge=False, show_edge=False)
    for column, name, width in zip(columns, names, widths, strict=False):
        table.add_column(name, justify="right" if column.startswith(">") else "left", no_wrap=True, width=width)
    for row in cells:
        table.add_row(*row[: len(widths)])
    if target.is_terminal:
        target.print(table)
        if left_out := names[len(widths) :]:
            click.secho(f"(no room for {', '.join(left_out)})", dim=True)
        return
    with target.capture() as lines:
        target.print(table)
    for line in lines.get().splitlines():
        click.echo(line.rstrip())


def fit_columns(wanted: Sequence[int], room: int) -> list[int]:
    """Return the widths of the columns that fit into `room`, in order. `wanted`: the longest cell of each. Pure.

    First the longest columns after the first one, the id, are shortened. For example, a state `RUNNING` stays whole
    while a name is long. If that is not enough, the last columns are left out: one that shows `R...` helps nobody.
    """
    widths = list(wanted)
    while sum(widths) + TABLE_GAP * (len(widths) - 1) > room and len(widths) > 1:
        longest = max(range(1, len(widths)), key=lambda i: widths[i])
        if widths[longest] > SHORTEST_COLUMN:
            widths[longest] -= 1
        else:
            widths = list(wanted[: len(widths) - 1])
    return widths


def print_line(line: str, style: str) -> None:
    """A line that a terminal does not wrap: it is cut there."""
    from rich.text import Text

    target = console()
    if target.is_terminal:
        target.print(Text(line, style=style), no_wrap=True, overflow="ellipsis")
    else:
        click.echo(line)


def state(name: str) -> Text:
    from rich.text import Text

    return Text(name, style=_COLOURS.get(name, ""))


def duration(ms: float) -> str:
    """Format like `430 ms`, `12.3 s`, `5 min 3 s`, `2 h 5 min`, `3 d 4 h`."""
    if ms < 0:
        return "-"
    if ms < 1000:
        return f"{ms:.0f} ms"
    seconds = ms / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if minutes < 60:
        return f"{minutes} min {int(seconds % 60)} s"
    if hours < 24:
        return f"{hours} h {minutes % 60} min"
    return f"{days} d {hours % 24} h"


def size(count: float) -> str:
    """Format like `512 B`, `3.4 KiB`, `1.2 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def moment(ms: int) -> str:
    """Format a date and time, in the user's time zone."""
    from datetime import datetime

    return datetime.fromtimestamp(ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S") if ms > 0 else "-"


def short(count: float) -> str:
    """Format like `950`, `12k`, `1.2M`, `3.4G`."""
    for unit in ("", "k", "M"):
        if count < 999.5:
            return f"{count:.1f}{unit}" if unit and count < 9.95 else f"{count:.0f}{unit}"
        count /= 1000
    return f"{count:.1f}G"


class Part(NamedTuple):
    """A part of the line, in forms from longest to shortest. The part with the lowest `rank` is shortened first."""

    forms: tuple[str, ...]
    rank: int


def fit(parts: Sequence[Part], width: int | None) -> str:
    """Join the parts in order, in at most `width` columns; None: in full.

    The least important parts are shortened first, then left out. In 40 columns, `RUNNING  tasks 2/2  rows in 1,234,567,
    out 123,456 (9,876/s)` is `RUNNING  tasks 2/2  rows 1.2M in, 123k out`. So the line never wraps: a line that wraps
    would be drawn again and again below itself.
    """
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
    return _GAP.join(filter(None, texts))


def stderr_width() -> int | None:
    """Return the columns of the terminal of stderr, otherwise $COLUMNS, otherwise None: a log file has no limit."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or None
    except (OSError, ValueError):  # not a terminal, or not even a file
        columns = os.environ.get("COLUMNS", "")
        return int(columns) if columns.isdecimal() and int(columns) > 0 else None
