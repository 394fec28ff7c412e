"""A bar for uploads that take a while; nothing where nobody is watching."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from minflinkd.blob.client import SetProgress

LARGE = 8 * 1024 * 1024  # bytes of all files: less is there before a bar is read


@contextmanager
def upload_bars(files: Mapping[str, Path]) -> Iterator[SetProgress]:
    """One bar a file on stderr, gone at the end; none where stderr is no terminal, or there is little to send."""
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
