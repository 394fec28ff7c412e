"""Names in a job's checkpoint directory (docs/checkpoints.md), all relative to it.

chk-<n>/_metadata                     a completed checkpoint; it is complete once this exists
chk-<n>/_discarded                    what was its metadata, until the files of a claimed checkpoint are deleted
chk-<n>/_damaged                      the checkpoint is damaged, and the job went on from an earlier one
<epoch>-<n>-<TM>-<attempt>-<k>.seg    a physical file, named by `filemerging`, which writes it
offsets.json                          where the sources stand (`offsets`)
source-logs/_logs                     what is kept of the last checkpoint at the job's end (`kept_logs`)
ids/<first>                           a block of checkpoint ids that one coordinator has reserved
"""

from __future__ import annotations

import posixpath
import re

from minflinkd.runtime.errors import Consequence, MinflinkError

METADATA = "_metadata"
DISCARDED = "_discarded"
DAMAGED = "_damaged"
IDS = "ids"
OFFSETS = "offsets.json"
SOURCE_LOGS = "source-logs"
KEPT_LOGS = f"{SOURCE_LOGS}/_logs"
PACKED = ".gz"  # the end of the name of a log's entry that is kept

_CHECKPOINT = re.compile(r"chk-([1-9][0-9]*)")
_PHYSICAL = re.compile(r"([0-9]+)-([0-9]+)-tm-[0-9a-z-]+-[0-9a-f]{32}-[0-9]+\.seg")
_IDS = re.compile(r"ids/([0-9]+)")


class InvalidPhysicalFile(MinflinkError):
    """A name that could lead outside the job's files. Raised before the name is used as a path."""

    code = "invalid-physical-file"
    consequence = Consequence.REFUSED


def checkpoint_directory(checkpoint_id: int) -> str:
    return f"chk-{checkpoint_id}"


def metadata_file(checkpoint_id: int) -> str:
    return f"{checkpoint_directory(checkpoint_id)}/{METADATA}"


def parse_physical_file(name: str) -> tuple[int, int]:
    """Epoch and checkpoint of a physical file. Raises InvalidPhysicalFile."""
    if not (match := _PHYSICAL.fullmatch(name)):
        raise InvalidPhysicalFile(
            f"{name[:120]!r} is not a physical file", hint="<epoch>-<checkpoint>-<TaskManager>-<attempt>-<number>.seg"
        )
    return int(match[1]), int(match[2])


def is_physical_file(name: str) -> bool:
    return _PHYSICAL.fullmatch(name) is not None


def is_metadata_file(name: str) -> bool:
    """Whether it is the metadata of a checkpoint, or of a savepoint that somebody put into the directory."""
    return posixpath.basename(name) == METADATA


def parse_metadata_file(name: str) -> int | None:
    directory, _, file = name.partition("/")
    match = _CHECKPOINT.fullmatch(directory)
    return int(match[1]) if match and file == METADATA else None


def damage_record(checkpoint_id: int) -> str:
    return f"{checkpoint_directory(checkpoint_id)}/{DAMAGED}"


def parse_damage_record(name: str) -> int | None:
    directory, _, file = name.partition("/")
    match = _CHECKPOINT.fullmatch(directory)
    return int(match[1]) if match and file == DAMAGED else None


def outlives_checkpoints(name: str) -> bool:
    """Whether a file tells where the sources of an ended job stood (C26). It stays as long as the job's result."""
    return name == OFFSETS or name.startswith(f"{SOURCE_LOGS}/")


def id_block(first: int) -> str:
    return f"{IDS}/{first:012d}"


def parse_id_block(name: str) -> int | None:
    match = _IDS.fullmatch(name)
    return int(match[1]) if match else None
