"""Sinks on object stores: Spark writes their files to the TaskManager's disk, and the supervisor stages them (J12).

pyspark has no connector to any object store, while the storage plugins support them all. The files of a micro-batch
wait below the attempt's directory until a snapshot covers them. Its checkpoint is acknowledged after they were
uploaded.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from minflinkd.storage.location import Location
from minflinkd.storage.parallel import for_each
from minflinkd.storage.publication import SinkTransaction, StagedFile
from minflinkd.storage.registry import Storages

_UPLOADS = 4  # files of a sink uploaded at a time
_PIECE = 4 << 20  # bytes


def spark_writes(root: str) -> bool:
    """Whether Spark itself can write to a sink's root: pyspark has clients for some schemes only."""
    return urlsplit(root).scheme in ("", "file", "hdfs")


def waiting_directory(attempt_directory: str, sink: str) -> str:
    """Return where files of a sink wait, with the same layout as they will have below its root."""
    return f"{attempt_directory}/sinks/{sink}"


async def stage(
    storages: Storages, transaction: SinkTransaction, attempt_directory: str, known: dict[str, set[str]]
) -> None:
    """Upload the files of a transaction that still wait. `known` records, by sink, what was staged so far.

    Raises StorageError; files uploaded before it are recorded. `make_durable` reports files that are missing
    everywhere.
    """
    if not transaction.files or spark_writes(transaction.root):
        return
    place = storages.at(transaction.root)
    waiting = Path(waiting_directory(attempt_directory, transaction.sink))
    staged = known.setdefault(transaction.sink, set())
    staged &= {file.staged for file in transaction.files}  # the others are published and confirmed

    async def upload(file: StagedFile) -> None:
        if file.staged in staged:
            return
        try:
            source = await asyncio.to_thread((waiting / file.staged).open, "rb")
        except FileNotFoundError:  # another snapshot has staged it meanwhile
            return
        await _upload(source, place.child(file.staged))
        staged.add(file.staged)
        await asyncio.to_thread((waiting / file.staged).unlink, missing_ok=True)

    await for_each(transaction.files, upload, limit=_UPLOADS)


async def _upload(source: BinaryIO, target: Location) -> None:
    with source:
        async with await target.create() as writer:
            while piece := await asyncio.to_thread(source.read, _PIECE):
                await writer.append(piece)
            await writer.commit()
