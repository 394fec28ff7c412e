"""Verifies all checkpoints in a job's directory, whether or not the job runs (C29)."""

from __future__ import annotations

import msgspec

from minflinkd.checkpoint import layout
from minflinkd.checkpoint.damage import Damage
from minflinkd.checkpoint.metadata import CompletedCheckpoint, CorruptMetadata, decode
from minflinkd.checkpoint.store import pointed_ids
from minflinkd.checkpoint.verification import find_damage, require_directory
from minflinkd.rpc.snapshot import StateHandle
from minflinkd.storage.interface import ObjectNotFound
from minflinkd.storage.location import Location


class VerifiedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that was read as a whole. `damage`: its damaged files; none if it is whole."""

    checkpoint_id: int
    damage: tuple[Damage, ...] = ()
    given_up: bool = False  # the job has gone on from an earlier one, so it is not restored
    files: int = 0  # physical ones
    size: int = 0  # bytes of its segments
    triggered_ms: int = -1  # -1: unknown, since its metadata is damaged


async def verify_all(root: Location, pointers: Location | None) -> tuple[VerifiedCheckpoint, ...]:
    """Read all checkpoints of a job, newest first. `pointers`: as for CheckpointStore.

    A checkpoint that is deleted meanwhile is left out. Raises StorageError if the storage does not answer,
    MetadataTooNew.
    """
    names = [root.relative(entry.path) async for entry in root.list()]
    found = {number for name in names if (number := layout.parse_metadata_file(name)) is not None}
    given_up = {number for name in names if (number := layout.parse_damage_record(name)) is not None}
    pointed = found if pointers is None else await pointed_ids(pointers)
    whole = set[StateHandle]()
    verified = []
    for number in sorted(pointed, reverse=True):
        one = await _verify(root, number, whole)
        still_there = await _exists(root, number) if pointers is None else number in await pointed_ids(pointers)
        if not one.damage or still_there:  # otherwise its files were being deleted
            verified.append(msgspec.structs.replace(one, given_up=number in given_up))
    return tuple(verified)


async def _verify(root: Location, number: int, whole: set[StateHandle]) -> VerifiedCheckpoint:
    name = layout.metadata_file(number)
    try:
        checkpoint = await _read(root.child(name))
    except CorruptMetadata as error:
        return VerifiedCheckpoint(checkpoint_id=number, damage=(Damage(name, error.message),))
    except ObjectNotFound:
        await require_directory(root)
        return VerifiedCheckpoint(checkpoint_id=number, damage=(Damage(name, "it is missing"),))
    handles = {file.handle for task in checkpoint.tasks for file in task.files}
    return VerifiedCheckpoint(
        checkpoint_id=number,
        damage=await find_damage(root, checkpoint, whole=whole),
        files=len(checkpoint.physical_files()),
        size=sum(handle.length for handle in handles),
        triggered_ms=checkpoint.triggered_ms,
    )


async def _read(metadata: Location) -> CompletedCheckpoint:
    try:
        return decode(await metadata.read_bytes())
    except CorruptMetadata:  # once may be an error of memory or of the network
        return decode(await metadata.read_bytes())


async def _exists(root: Location, number: int) -> bool:
    return await root.child(layout.metadata_file(number)).exists()
