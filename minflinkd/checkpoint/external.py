"""A checkpoint or savepoint that is named by its path, whoever took it (C24, C25).

<directory>/chk-<n>/_metadata    a checkpoint: its files lie in <directory>, beside those of other checkpoints
<savepoint>/_metadata            a savepoint: its files lie beside its metadata, wherever it was moved to
.../_discarded                   what was its metadata; its files are being deleted
"""

from __future__ import annotations

import contextlib
import posixpath
from dataclasses import dataclass, replace

from minflinkd.checkpoint import layout
from minflinkd.checkpoint.metadata import CompletedCheckpoint, CorruptMetadata, MetadataTooNew
from minflinkd.checkpoint.store import read_checkpoint
from minflinkd.runtime.errors import NotFound
from minflinkd.storage.interface import ObjectNotFound
from minflinkd.storage.location import Location
from minflinkd.storage.registry import Storages


class NoCheckpointThere(NotFound):
    """The path leads to no checkpoint and no savepoint."""

    code = "no-checkpoint-there"


@dataclass(frozen=True)
class External:
    """A checkpoint or savepoint that was read. The files of its snapshots are relative to `root`."""

    checkpoint: CompletedCheckpoint
    metadata: Location
    root: Location

    @property
    def directory(self) -> Location:
        return parent(self.metadata)


async def read_external(storages: Storages, path: str) -> External:
    """Read the checkpoint at `path`: its directory, or the `_metadata` in it.

    Raises NoCheckpointThere, CorruptMetadata, MetadataTooNew, UnknownScheme, StorageError.
    """
    metadata = _metadata_at(storages, path)
    try:
        return await _read(metadata, metadata)
    except ObjectNotFound as error:
        raise NoCheckpointThere(
            f"there is no {metadata.uri}", hint="the path of a savepoint, or of a checkpoint's chk-<n> directory"
        ) from error


async def read_to_discard(storages: Storages, path: str) -> External:
    """Like `read_external`, but it also finds what an interrupted deletion has left, so that it can be completed."""
    try:
        return await read_external(storages, path)
    except NoCheckpointThere as error:
        metadata = _metadata_at(storages, path)
        try:
            return await _read(metadata, parent(metadata).child(layout.DISCARDED))
        except ObjectNotFound:
            raise error from None


def _metadata_at(storages: Storages, path: str) -> Location:
    place = storages.at(path.rstrip("/"))
    return place if place.name == layout.METADATA else place.child(layout.METADATA)


async def _read(metadata: Location, object_: Location) -> External:
    checkpoint = await read_checkpoint(object_)
    directory = parent(metadata)
    return External(checkpoint, metadata, directory if checkpoint.self_contained else parent(directory))


async def newest_below(root: Location) -> External | None:
    """Return the latest readable checkpoint of a job's directory, or None if there is none. Raises StorageError.

    Those that the job gave up for an earlier one do not count: their staged output was discarded.
    """
    found: External | None = None
    names = [root.relative(entry.path) async for entry in root.list()]
    given_up = {layout.parse_damage_record(name) for name in names}
    for name in names:
        number = layout.parse_metadata_file(name)
        if number is None or number in given_up or (found is not None and number < found.checkpoint.checkpoint_id):
            continue
        try:
            checkpoint = await read_checkpoint(root.child(name))
        except (ObjectNotFound, CorruptMetadata, MetadataTooNew):
            continue
        found = External(checkpoint, root.child(name), root)
    return found


async def discard_external(external: External) -> None:
    """Delete a checkpoint, and those of its files to which no other checkpoint in the same directory refers.

    Its metadata is renamed first: it is no checkpoint any more, and it is still known which files are to go. So after
    an interruption, `read_to_discard` and another call complete the deletion.

    Raises StorageError, and InvalidPhysicalFile before anything is deleted.
    """
    names = external.checkpoint.physical_files()
    for name in names:
        layout.parse_physical_file(name)
    directory, record = external.directory, external.directory.child(layout.DISCARDED)
    with contextlib.suppress(ObjectNotFound):  # it was renamed before
        await external.metadata.rename(record)
    if external.checkpoint.self_contained:
        await directory.delete_children(names)
    else:
        others, readable = await _others(external.root)
        if readable:  # otherwise they become orphans: unreadable metadata may refer to them
            kept = frozenset[str]().union(*(other.physical_files() for other in others))
            await external.root.delete_children(names - kept)
    await directory.storage.delete([record.path, directory.path], below=directory.path)


async def _others(root: Location) -> tuple[list[CompletedCheckpoint], bool]:
    found, readable = [], True
    async for entry in root.list():
        name = root.relative(entry.path)
        if layout.parse_metadata_file(name) is None:
            continue
        try:
            found.append(await read_checkpoint(root.child(name)))
        except ObjectNotFound:
            continue  # deleted since it was listed
        except (CorruptMetadata, MetadataTooNew):
            readable = False
    return found, readable


def parent(place: Location) -> Location:
    return replace(place, path=posixpath.dirname(place.path.rstrip("/")) or "/")
