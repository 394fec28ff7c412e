"""What lies in a directory while others still write there, and delete."""

from __future__ import annotations

import os
from pathlib import Path


def files_below(directory: Path) -> list[Path]:
    """Every file. A directory that is gone has none, also one that goes meanwhile: `Path.rglob` fails there."""
    return [Path(parent, name) for parent, _, names in os.walk(directory) for name in names]
