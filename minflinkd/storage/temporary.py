"""Hidden files beside their targets: an object is written to one, and appears when it gets its name."""

from __future__ import annotations

import posixpath
import secrets

TEMPORARY = ".minflinkd-tmp"  # suffix; such names are hidden, and no object


def temporary_beside(path: str) -> str:
    """A name that nobody else has."""
    return posixpath.join(posixpath.dirname(path), f".{secrets.token_hex(12)}{TEMPORARY}")


def is_temporary(name: str) -> bool:
    return name.endswith(TEMPORARY)
