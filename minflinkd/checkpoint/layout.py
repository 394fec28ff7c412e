"""Names in a job's checkpoint directory (docs/checkpoints.md), all relative to it.

chk-<n>/_metadata                     a completed checkpoint; its presence is the completion
files/e<epoch>-c<n>-<attempt>-<k>     a physical file: segments of one TaskManager and checkpoint
ids/<first>                           a block of checkpoint ids that one coordinator has reserved
"""

from __future__ import annotations

import re

from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.runtime.ids import AttemptId

METADATA = "_metadata"
FILES = "files"
IDS = "ids"

_CHECKPOINT = re.compile(r"chk-([1-9][0-9]*)")
_PHYSICAL = re.compile(r"files/e([0-9]+)-c([1-9][0-9]*)-[0-9A-Za-z.-]+")
_IDS = re.compile(r"ids/([0-9]+)")


class InvalidPhysicalFile(MinflinkError):
    """A name that could lead outside of the job's files; raised before it touches a path."""

    code = "invalid-physical-file"
    consequence = Consequence.REFUSED


def checkpoint_directory(checkpoint_id: int) -> str:
    return f"chk-{checkpoint_id}"


def metadata_file(checkpoint_id: int) -> str:
    return f"{checkpoint_directory(checkpoint_id)}/{METADATA}"


def physical_file(epoch: int, checkpoint_id: int, attempt_id: AttemptId, number: int = 0) -> str:
    """A name that no other leader, checkpoint or attempt makes, so that no file is ever written twice (F5)."""
    return f"{FILES}/e{epoch}-c{checkpoint_id}-{attempt_id[:16]}-{number}"


def parse_physical_file(name: str) -> tuple[int, int]:
    """Epoch and checkpoint of a physical file. Raises InvalidPhysicalFile."""
    if not (match := _PHYSICAL.fullmatch(name)):
        raise InvalidPhysicalFile(f"{name[:120]!r} is not a physical file", hint="files/e<epoch>-c<checkpoint>-...")
    return int(match[1]), int(match[2])


def parse_metadata_file(name: str) -> int | None:
    directory, _, file = name.partition("/")
    match = _CHECKPOINT.fullmatch(directory)
    return int(match[1]) if match and file == METADATA else None


def id_block(first: int) -> str:
    return f"{IDS}/{first:012d}"


def parse_id_block(name: str) -> int | None:
    match = _IDS.fullmatch(name)
    return int(match[1]) if match else None
