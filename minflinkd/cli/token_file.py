"""Reads a token from its file. Imports next to nothing, as completion in a shell needs it."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

_LONGEST: Final = 4096  # bytes of a file with a token


class UnfitFile(ValueError):
    """The file holds no token, or others can read it."""

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint


def token_in(path: Path) -> str:
    """Raises OSError and UnfitFile."""
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        content = file.read(_LONGEST).decode(errors="replace").strip()
    if stat.S_ISREG(mode) and mode & 0o004:
        raise UnfitFile(
            f"every user of this machine can read {path}, which holds a token",
            f"take that away (chmod 600 {path}); if somebody may have read it, revoke the token",
        )
    if not content or any(character.isspace() for character in content):
        raise UnfitFile(f"{path} does not hold one token", "`minflinkd token create` prints one")
    return content
