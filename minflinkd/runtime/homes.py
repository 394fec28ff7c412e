"""The working directories of TaskManagers, under `taskmanagers/`. When one has ended, only its `log/` is kept."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from minflinkd.runtime.errors import InvalidId
from minflinkd.runtime.ids import parse_resource_id

LOGS = "log"
LOGS_KEPT = 20  # directories of ended TaskManagers


def homes(directory: Path) -> list[Path]:
    """Return the directories that are named after a TaskManager's id."""
    return [entry for entry in directory.iterdir() if _is_id(entry.name)] if directory.is_dir() else []


def _is_id(name: str) -> bool:
    try:
        parse_resource_id(name)
    except InvalidId:
        return False
    return True


def strip(home: Path) -> None:
    """Remove everything but the logs, after the TaskManager has ended."""
    for entry in home.iterdir():
        if entry.name != LOGS:
            remove(entry)


def prune(directory: Path) -> None:
    """Remove the oldest directories of ended TaskManagers.

    Otherwise they would fill the disk of a host whose TaskManagers keep failing.
    """
    ended: list[tuple[float, Path]] = []
    for home in homes(directory):
        with contextlib.suppress(OSError):  # another process may remove it at the same time
            if [entry.name for entry in home.iterdir()] == [LOGS]:
                ended.append((home.stat().st_mtime, home))
    for _, home in sorted(ended, reverse=True)[LOGS_KEPT:]:
        remove(home)


def remove(path: Path) -> None:
    """Remove a file or a whole directory. Idempotent."""
    if not path.is_symlink() and path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
