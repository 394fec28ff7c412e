"""What a files sink has published after a checkpoint, as its own records and its staged files say (J12)."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from minflinkd.runtime.errors import MALFORMED
from minflinkd.storage.interface import ObjectNotFound
from minflinkd.storage.location import Location
from minflinkd.storage.publication import (
    MANIFESTS,
    PUBLISHING,
    Manifest,
    SinkTransaction,
    StagedFile,
    service_directory,
)
from minflinkd.storage.registry import Storages


async def published_after(
    storages: Storages, root: str, job_id: str, sink: str, checkpoint_id: int, covered: Collection[str]
) -> str | None:
    """Return the record of something that a checkpoint after `checkpoint_id` has published, or None.

    Every publication writes such a record before it moves a file. `covered`: final names of the files that
    `checkpoint_id` covers itself. A later checkpoint may have published them with its own. Raises StorageError.
    """
    service = storages.at(root).child(service_directory(job_id, sink))
    for directory in (PUBLISHING, MANIFESTS):  # in this order, because a mark becomes a manifest
        records = service.child(directory)
        async for entry in records.list():
            number = _number(records.relative(entry.path))
            if number is None or number <= checkpoint_id:
                continue
            if not await _names_only(records.child(records.relative(entry.path)), covered):
                return f"{records.uri}/{records.relative(entry.path)}"
    return None


async def no_longer_staged(
    storages: Storages, transaction: SinkTransaction, files: Collection[StagedFile]
) -> str | None:
    """Return one of the transaction's `files` that is not staged any more, or None. Raises StorageError."""
    place = storages.at(transaction.root)
    for file in files:
        if not await place.child(file.staged).exists():
            return file.final
    return None


def _number(name: str) -> int | None:
    stem, _, ending = name.partition(".")
    return int(stem) if ending == "json" and stem.isascii() and stem.isdigit() else None


async def _names_only(record: Location, covered: Collection[str]) -> bool:
    try:
        manifest = msgspec.json.decode(await record.read_bytes(), type=Manifest)
    except ObjectNotFound:  # a mark that has just become a manifest
        return True
    except MALFORMED:
        return False
    return all(final in covered for final, _ in manifest.files)
