"""How large the archives of a job may become when they are unpacked (E45).

Example: a zip file of 408 KB that unpacks to 419 MB. Each session that runs the job unpacks it, so some of them fill a
disk. An archive says at its end what it holds; this is compared with limits before anything is unpacked.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minflinkd.jobgraph import libraries
from minflinkd.runtime.units import MemorySize

MOST_UNITS = 2000  # of one jar; they are stored and sent with the job
_UNSUSPICIOUS = 64 << 20  # bytes; what unpacks to less may be compressed as much as it likes
_ENTRY = 512  # bytes of an archive's directory for each member that it may have
_END, _END_64 = b"PK\x05\x06", b"PK\x06\x06"
_LONGEST_END = 22 + 65535 + 76  # bytes: the record, its comment, and the records of an archive of more than 4 GiB


@dataclass(frozen=True)
class ArchiveLimits:
    unpacked: int = 4 << 30  # bytes
    members: int = 100_000
    ratio: int = 200  # unpacked size to the size of the file


@dataclass(frozen=True)
class Contents:
    """The files in an archive, and their size when they are unpacked, in bytes."""

    members: tuple[str, ...] = ()
    unpacked: int = 0


def contents(path: Path, limits: ArchiveLimits) -> Contents | str:
    """Read the directory of an archive; no contents if it is damaged. Return why it is refused if it has too many.

    Raises OSError for problems of this machine.
    """
    try:
        if directory_size(path) > limits.members * _ENTRY:  # reading it would take too much memory
            return _too_many("too many", limits)
        with zipfile.ZipFile(path) as archive:
            found = [member for member in archive.infolist() if not member.is_dir()]
    except Exception as error:
        if not libraries.is_damage(error):
            raise
        return Contents()
    return Contents(tuple(member.filename for member in found), sum(member.file_size for member in found))


def why_refused(found: Contents, packed: int, units: Sequence[str], limits: ArchiveLimits) -> str:
    """Return why an archive is refused; empty if it is not. `packed`: the size of its file in bytes. Pure."""
    if len(found.members) > limits.members:
        return _too_many(f"{len(found.members):,}", limits)
    if found.unpacked > limits.unpacked:
        largest = MemorySize(limits.unpacked)
        return f"it unpacks to {found.unpacked:,} bytes; at most {largest} are allowed (artifacts.max-unpacked-size)"
    if found.unpacked > max(_UNSUSPICIOUS, packed * limits.ratio):
        times = found.unpacked // max(1, packed)
        return f"it unpacks to {times:,} times its size; {limits.ratio} times are allowed (artifacts.max-ratio)"
    if len(units) > MOST_UNITS:
        return f"it has classes in {len(units):,} packages of Java; at most {MOST_UNITS:,} are allowed"
    return ""


def directory_size(path: Path) -> int:
    """Return the size of an archive's directory in bytes, as the archive itself says; 0 if it does not say."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _LONGEST_END))
        end = file.read()
    at = end.rfind(_END)
    if at < 0 or len(end) < at + 22:
        return 0
    (found,) = struct.unpack_from("<L", end, at + 12)
    if found == 0xFFFFFFFF and (large := end.rfind(_END_64, 0, at)) >= 0 and len(end) >= large + 48:
        (found,) = struct.unpack_from("<Q", end, large + 40)
    return int(found)


def _too_many(count: str, limits: ArchiveLimits) -> str:
    return f"it holds {count} files; at most {limits.members:,} are allowed (artifacts.max-members)"
