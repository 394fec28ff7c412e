"""The figures of earlier runs of `make bench`: one line for each, in `history.jsonl`, which is committed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from benchmarks.figures import Figure, Row
from benchmarks.noise import Noise

HISTORY = Path(__file__).with_name("history.jsonl")


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    run: str  # when it began, in UTC
    commit: str  # with a "+" if files were changed
    machine: str  # figures of another one cannot be compared
    figure: Figure
    quick: bool = False
    noise: Noise | None = None


def commit() -> str:
    """Return the commit that is measured; "unknown" outside a git checkout."""
    git = ["git", "-C", str(HISTORY.parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


def append(records: Iterable[Record], path: Path = HISTORY) -> None:
    with path.open("ab") as file:
        file.writelines(msgspec.json.encode(record) + b"\n" for record in records)


def of_row(row: Row, run: str, measured: str, machine: str, *, quick: bool) -> Iterator[Record]:
    """Return a record for each figure of the row. `measured`: the commit."""
    for figure in row.figures:
        yield Record(run, measured, machine, figure, quick, row.noise)


def stored(path: Path = HISTORY) -> list[Record]:
    """Return all records, oldest first. Raises msgspec.DecodeError if the file holds anything else."""
    if not path.exists():
        return []
    return [msgspec.json.decode(line, type=Record) for line in path.read_bytes().splitlines()]
