"""The files in a directory to which others write, and from which they delete, at the same time."""

from __future__ import annotations

import os
from pathlib import Path


def files_below(directory: Path) -> list[Path]:
    """Return every file below the directory.

    A missing directory has none, and neither has one that disappears meanwhile: `Path.rglob` would fail there.
    """
    return [Path(parent, name) for parent, _, names in os.walk(directory) for name in names]
