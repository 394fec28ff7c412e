"""A progress bar for long uploads; nothing if nobody is watching."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from minflinkd.blob.client import SetProgress

LARGE = 8 * 1024 * 1024  # bytes of all files; smaller uploads are over before anybody reads a bar


@contextmanager
def upload_bars(files: Mapping[str, Path]) -> Iterator[SetProgress]:
    """Show a bar for each file on stderr, removed at the end. None if stderr is no terminal, or for small uploads."""
    console = Console(stderr=True)
    sizes = {name: path.stat().st_size if path.is_file() else 0 for name, path in files.items()}
    if not console.is_terminal or sum(sizes.values()) < LARGE:
        yield lambda name, sent: None
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        ids = {name: bars.add_task(name, total=size) for name, size in sizes.items()}
        yield lambda name, sent: bars.update(ids[name], completed=sent)
