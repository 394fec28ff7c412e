"""Files of daemon and TaskManager are for their own user; files that jobs write are as the operator's umask says (E40).

A daemon takes a umask of 077 for itself. It tells the umask that it was started with to its TaskManagers, and these to
their sessions, in which sinks write for others to read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import MutableMapping
from pathlib import Path

PRIVATE = 0o077
OTHERS = 0o007
VARIABLE = "MINFLINKD_UMASK"  # the umask for what jobs write, in octal digits


def make_private(environ: MutableMapping[str, str]) -> None:
    """Make every new file of this process private. Idempotent."""
    environ.setdefault(VARIABLE, f"{os.umask(PRIVATE):03o}")
    os.umask(PRIVATE)


def as_started(environ: MutableMapping[str, str]) -> None:
    """Return to the umask of whoever started the daemon, for a process that runs jobs."""
    given = environ.get(VARIABLE, "")
    if given and all(digit in "01234567" for digit in given):
        os.umask(int(given, 8) & 0o777)


def close_to_others(directory: Path) -> int:
    """Take away the access that other users have to a directory of this user. Return their permissions until now, or 0.

    Its group keeps what the operator gave it. Raises OSError if the directory belongs to somebody else.
    """
    mode = directory.stat().st_mode
    if open_to := mode & OTHERS:
        directory.chmod(stat.S_IMODE(mode) & ~OTHERS)
    return open_to
