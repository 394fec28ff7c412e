"""Files of daemon and TaskManager are for their own user; files that jobs write are as the operator's umask says (E40).

A daemon takes a umask of 077 for itself. It tells the umask that it was started with to its TaskManagers, and these to
their sessions, in which sinks write for others to read.
"""

from __future__ import annotations

import os
import secrets
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


def write_whole(path: Path, data: bytes, mode: int, *, as_owner_of: Path | None = None) -> None:
    """Write the file whole or not at all. It is durable on return. Raises OSError.

    `as_owner_of`: if root writes the file, it belongs to the owner of this one.
    """
    temporary, flags = path.with_name(f".{path.name}.{os.getpid()}"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
    if as_owner_of is None:
        flags |= os.O_TRUNC
    else:  # the directory may be another user's, who could put a link there for root to follow
        temporary, flags = temporary.with_name(f"{temporary.name}.{secrets.token_hex(8)}"), flags | os.O_EXCL
    try:
        with os.fdopen(os.open(temporary, flags, mode), "wb") as file:
            if as_owner_of is not None and os.geteuid() == 0:
                owner = as_owner_of.stat()
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:  # the disk is full, for example
        temporary.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)  # sync the name, too: an epoch that a power cut takes back would be used again
    finally:
        os.close(directory)


def close_to_others(directory: Path) -> int:
    """Take away the access that other users have to a directory of this user. Return their permissions until now, or 0.

    Its group keeps what the operator gave it. Raises OSError if the directory belongs to somebody else.
    """
    mode = directory.stat().st_mode
    if open_to := mode & OTHERS:
        directory.chmod(stat.S_IMODE(mode) & ~OTHERS)
    return open_to
