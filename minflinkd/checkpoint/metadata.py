"""The metadata file of a checkpoint: its contents and format.

A line of text, then a JSON document, so that `head -1` and `tail -n +2 | jq` can read it:

    minflinkd-checkpoint <version> xxh3-128:<hex> <length of the document in bytes>

Readers accept every version up to their own. A field may be added within a version if it has a default.
"""

from __future__ import annotations

import re

import msgspec
import xxhash

from minflinkd.checkpoint.causes import CheckpointKind
from minflinkd.checkpoint.statistics import CheckpointCounts
from minflinkd.rpc.snapshot import TaskSnapshot
from minflinkd.runtime.errors import MALFORMED, MinflinkError
from minflinkd.runtime.ids import JobId

MAGIC = b"minflinkd-checkpoint"
VERSION = 1

_HEADER = re.compile(rb"minflinkd-checkpoint ([0-9]{1,6}) xxh3-128:([0-9a-f]{32}) ([0-9]{1,18})")
_ANY_VERSION = re.compile(rb"minflinkd-checkpoint ([0-9]{1,6})(?: .*)?")


class CorruptMetadata(MinflinkError):
    """Torn, damaged, or not checkpoint metadata at all."""

    code = "checkpoint-metadata-corrupt"


class MetadataTooNew(MinflinkError):
    """Written by a later minflinkd. Nothing is wrong with the file."""

    code = "checkpoint-metadata-too-new"


class HookState(msgspec.Struct, frozen=True):
    """The state that a master hook returned, kept with the checkpoint (C27)."""

    name: str
    state: bytes  # base64 in the document


class CompletedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A consistent cut through all tasks of a job: everything that a restore needs to know."""

    job_id: JobId
    checkpoint_id: int
    epoch: int  # of the leader that completed it
    kind: CheckpointKind
    triggered_ms: int
    completed_ms: int  # when the last task acknowledged
    tasks: tuple[TaskSnapshot, ...] = ()
    hooks: tuple[HookState, ...] = ()
    self_contained: bool = False  # a savepoint: its files lie beside its metadata
    counts: CheckpointCounts | None = None  # of the job, this one included; None: written before this was recorded

    def physical_files(self) -> frozenset[str]:
        """Return every physical file that must exist for a restore."""
        return frozenset(file.handle.file for task in self.tasks for file in task.files)


def encode(checkpoint: CompletedCheckpoint) -> bytes:
    body = msgspec.json.encode(checkpoint)
    return b"%s %d xxh3-128:%s %d\n%s" % (MAGIC, VERSION, _checksum(body), len(body), body)


def decode(data: bytes) -> CompletedCheckpoint:
    """Raises CorruptMetadata, MetadataTooNew."""
    first, _, body = data.partition(b"\n")
    known = _ANY_VERSION.fullmatch(first)
    if known and int(known[1]) > VERSION:
        raise MetadataTooNew(
            f"the metadata has format version {int(known[1])}; this minflinkd reads versions up to {VERSION}",
            hint="restore with the minflinkd that wrote it, or a later one",
        )
    header = _HEADER.fullmatch(first)
    if header is None or int(header[1]) < 1:
        raise CorruptMetadata("this is not checkpoint metadata: its first line is not the header")
    if len(body) != int(header[3]):
        raise CorruptMetadata(f"the metadata is torn: {len(body)} of {int(header[3])} bytes")
    if _checksum(body) != header[2]:
        raise CorruptMetadata("the metadata is damaged: its checksum differs")
    try:
        return msgspec.json.decode(body, type=CompletedCheckpoint)
    except MALFORMED as error:
        raise CorruptMetadata(f"the metadata cannot be read: {error}") from error


def restore_point(completed: tuple[CompletedCheckpoint, ...]) -> CompletedCheckpoint | None:
    """Return the latest checkpoint, with what tasks may not have published of the earlier ones (J12).

    `completed` is in the order of ids. Publication is idempotent, so an extra transaction does no harm.
    """
    if not completed:
        return None
    earlier, latest = completed[:-1], completed[-1]
    tasks = []
    for task in latest.tasks:
        owed = [t for c in earlier for old in c.tasks if old.task_id == task.task_id for t in old.transactions]
        transactions = tuple(dict.fromkeys([*owed, *task.transactions]))
        tasks.append(msgspec.structs.replace(task, transactions=transactions))
    return msgspec.structs.replace(latest, tasks=tuple(tasks))


def _checksum(body: bytes) -> bytes:
    return xxhash.xxh3_128_hexdigest(body).encode()
