"""What stays of a job that has ended and whose checkpoints were retained: these checkpoints, and no other files (C24).

A coordinator that closes drops the deletions that it has not made yet. Normally the job's next coordinator makes up for
them. After the job's last coordinator nobody would.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import structlog

from minflinkd.checkpoint import layout
from minflinkd.checkpoint.metadata import CorruptMetadata, MetadataTooNew
from minflinkd.checkpoint.orphans import BATCH, delete_in_batches, referenced
from minflinkd.checkpoint.store import read_checkpoint
from minflinkd.storage.location import Location

log = structlog.get_logger(__name__)

_UNREADABLE = (CorruptMetadata, MetadataTooNew)


async def retain_only(directory: Location, kept: Collection[int], *, leads: Callable[[], bool]) -> None:
    """Delete a job's checkpoints except those `kept`, then the physical files to which nothing refers any more.

    Only for a job that has ended, because files of a checkpoint in flight have no metadata yet. Idempotent: it may be
    interrupted anywhere and repeated. `kept` must be known beforehand. A job that claims a kept checkpoint deletes it,
    and the last ones that exist would then be the wrong ones.

    As with orphans, no file is deleted while metadata is unreadable. Savepoints stay, wherever they were moved to.

    Raises NotLeading, StorageError, ObjectNotFound if somebody deletes metadata at the same time: then repeat it.
    """
    names = await _names(directory)
    subsumed = [name for name in names if await _is_subsumed(directory, name, kept)]
    blocks = sorted(name for name in names if layout.parse_id_block(name) is not None)
    await delete_in_batches([*subsumed, *blocks[:-1]], directory.delete_children, leads=leads)
    # After the metadata: without its record, a damaged checkpoint might be restored.
    gone = {layout.parse_metadata_file(name) for name in subsumed}
    records = [name for name in names if layout.parse_damage_record(name) in gone - {None}]
    await delete_in_batches(records, directory.delete_children, leads=leads)
    # List again. Whoever else deletes a checkpoint here leaves the files that it shares with the subsumed ones to us.
    names = await _names(directory)
    try:
        needed = await referenced(directory, [name for name in names if layout.is_metadata_file(name)])
    except _UNREADABLE as error:
        log.warning("files stay while checkpoint metadata is unreadable", directory=directory.uri, error=str(error))
        return
    unneeded = [name for name in names if layout.is_physical_file(name) and name not in needed]
    await delete_in_batches(unneeded, directory.delete_children, leads=leads)
    if subsumed or unneeded:
        log.info("not retained", directory=directory.uri, checkpoints=len(subsumed), files=len(unneeded))


async def retain_offsets(directory: Location) -> None:
    """Delete a job's checkpoints, but not the record of where its sources stood (C26).

    Only for a job that has ended. Idempotent. Raises StorageError.
    """
    names = await _names(directory)
    gone = [name for name in names if not layout.outlives_checkpoints(name)]
    if len(gone) == len(names):
        await directory.delete_tree()
    for start in range(0, len(gone), BATCH):
        await directory.delete_children(gone[start : start + BATCH])


async def _names(directory: Location) -> Sequence[str]:
    return [directory.relative(entry.path) async for entry in directory.list()]


async def _is_subsumed(directory: Location, name: str, kept: Collection[int]) -> bool:
    """Whether the object is the metadata of a checkpoint that goes. Unreadable metadata stays, as evidence."""
    number = layout.parse_metadata_file(name)
    if number is None or number in kept:
        return False
    try:
        return not (await read_checkpoint(directory.child(name))).self_contained
    except _UNREADABLE:
        return False
