"""Keeps the logs that processes print from filling the disk. The JVM rotates its own log.

`session.log` is open in the session child and its JVM, `taskmanager.log` in the supervisor. They append, and none of
them can be told to open another file. So a log that has become large is copied, and then emptied in place. What is
printed in between may be lost.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

PRINTED = ("session.log", "taskmanager.log")
LARGEST = 10_000_000  # bytes
KEPT = 3  # older parts, `session.log.1` the newest
INTERVAL = 60.0  # seconds between two looks


def rotate(directory: Path) -> None:
    """Rotate what has become too large. A full disk gets room at once, without a copy. Raises nothing."""
    for name in PRINTED:
        file = directory / name
        try:
            if file.stat().st_size > LARGEST:
                _rotate(file)
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("a log cannot be rotated", file=str(file), error=str(error))


def _rotate(file: Path) -> None:
    parts = [file.with_name(f"{file.name}.{n}") for n in range(1, KEPT + 1)]
    new = file.with_name(f"{file.name}.0")
    try:
        shutil.copyfile(file, new)
    except OSError as error:
        new.unlink(missing_ok=True)
        log.warning("a log is emptied without a copy", file=str(file), error=str(error))
    else:
        for older, newer in zip(reversed(parts), [*reversed(parts[:-1]), new], strict=True):
            if newer.exists():
                newer.replace(older)
    os.truncate(file, 0)
