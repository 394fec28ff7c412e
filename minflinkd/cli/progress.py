"""A progress bar for long uploads; nothing if nobody is watching."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from minflinkd.blob.client import SetProgress
from minflinkd.cli.text import duration, size

LARGE = 8 * 1024 * 1024  # bytes of all files; smaller uploads are over before anybody reads a bar


@contextmanager
def upload_bars(files: Mapping[str, Path], tell: Callable[[str], None] | None = None) -> Iterator[SetProgress]:
    """Show a bar for each file on stderr, removed at the end; in a log, one line. Nothing for small uploads."""
    console = Console(stderr=True)
    sizes = {name: path.stat().st_size if path.is_file() else 0 for name, path in files.items()}
    total = sum(sizes.values())
    if not console.is_terminal or total < LARGE:
        began = time.monotonic()
        yield lambda name, sent: None
        if total >= LARGE and tell is not None:
            seconds = max(time.monotonic() - began, 0.001)
            tell(f"Uploaded {size(total)} in {duration(seconds * 1000)} ({size(total / seconds)}/s)")
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        ids = {name: bars.add_task(name, total=of_file) for name, of_file in sizes.items()}
        yield lambda name, sent: bars.update(ids[name], completed=sent)
