"""state-version: the format of a state directory, so that an earlier minflinkd does not use a later directory (A15c).

    <format> <version of minflinkd>

Raise the format if an earlier minflinkd would misread the directory: it would not find or understand a record, or would
break a rule about files. This version reads every format up to its own. The second word is for people: the version that
used the directory last. A directory without the file has format 1, or is new.
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
            f"{path} contains {found[:80]!r}, which is not the version of a state directory",
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
