"""Hidden files next to their targets. An object is written to one, and appears when the file is renamed."""

from __future__ import annotations

import posixpath
import secrets

TEMPORARY = ".minflinkd-tmp"  # suffix; such files are hidden and are not objects


def temporary_beside(path: str) -> str:
    """Return a unique name."""
    return posixpath.join(posixpath.dirname(path), f".{secrets.token_hex(12)}{TEMPORARY}")


def is_temporary(name: str) -> bool:
    return name.endswith(TEMPORARY)
