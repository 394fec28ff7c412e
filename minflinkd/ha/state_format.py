"""state-version: the format of a state directory, so that an earlier minflinkd does not work on a later one (A15c).

    <format> <version of minflinkd>

The format is raised when an earlier minflinkd would misread what is in the directory: a record that it does not find or
understand, or a rule about files that it does not keep. Every format up to this one is read. The second word is for
people: it is the version that used the directory last. Without the file, the directory is of format 1, or new.
"""

from __future__ import annotations

import re
from pathlib import Path

from minflinkd import __version__
from minflinkd.runtime.errors import Consequence, MinflinkError

FILE = "state-version"
FORMAT = 1

_CONTENT = re.compile(r"([1-9][0-9]{0,5})(?: (\S{1,64}))?")


class StateDirectoryNewer(MinflinkError):
    """Written by a later minflinkd. Nothing is wrong with the directory."""

    code = "state-directory-newer"
    consequence = Consequence.REFUSED


class UnusableStateVersion(MinflinkError):
    code = "unusable-state-version"
    consequence = Consequence.REFUSED


def require_known(state: Path) -> bool:
    """Return whether the file already says what `content` returns.

    Raises StateDirectoryNewer, UnusableStateVersion, OSError.
    """
    path = state / FILE
    try:
        found = path.read_bytes()
    except FileNotFoundError:
        return False
    parts = _CONTENT.fullmatch(found.decode(errors="replace").strip())
    if parts is None:
        raise UnusableStateVersion(
            f"{path} holds {found[:80]!r}, which is no version of a state directory",
            hint="restore it: the number of the format, and the version of minflinkd that used the directory last",
        )
    number, by = int(parts[1]), parts[2] or "a later version"
    if number > FORMAT:
        raise StateDirectoryNewer(
            f"the state directory {state} has format {number}, written by minflinkd {by}; "
            f"minflinkd {__version__} reads formats up to {FORMAT}",
            hint=f"start minflinkd {by} or later again, or give this one a copy from before the upgrade",
        )
    return found == content()


def content() -> bytes:
    """Return what this version writes into the file."""
    return f"{FORMAT} {__version__}\n".encode()
