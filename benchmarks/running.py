"""Runs a row: its command line, its temporary directory, its progress messages."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from rich.console import Console

from benchmarks import noise
from benchmarks.figures import Row

Measure = Callable[[Path, bool], Awaitable[Row]]

console = Console(stderr=True)
if not console.is_terminal:
    console.width = 150


def say(text: str) -> None:
    console.print(f"[dim]{text}[/dim]", highlight=False)


def run(measure: Measure, *, quick: bool) -> Row:
    """Measure in a temporary directory. JSON lines go to stdout, the table to stderr.

    On SIGTERM or SIGHUP, everything that was started is ended, and then the process.
    """
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="minflinkd-bench-", ignore_cleanup_errors=True) as base:
        try:
            with noise.heard() as loops:
                row = asyncio.run(_measure(measure, Path(base), quick))
        except asyncio.CancelledError:
            sys.exit("ended by a signal")
    row.load, row.noise = load, noise.of_loops(loops)
    print(row.json_lines(), end="", flush=True)
    console.print(row.table())
    if row.noise is not None:
        say(row.noise.sentence())
    return row


async def _measure(measure: Measure, base: Path, quick: bool) -> Row:
    measuring = asyncio.ensure_future(measure(base, quick))
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, measuring.cancel)
    return await measuring


def quick_asked(description: str | None) -> bool:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--quick", action="store_true", help="few repetitions: under a minute a row")
    return bool(parser.parse_args().quick)
