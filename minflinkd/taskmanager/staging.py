"""Sinks on object stores: Spark writes their files to the TaskManager's disk, and the supervisor stages them (J12).

pyspark has no connector to any object store, while the storage plugins reach them all. A micro-batch's files wait
below the attempt's directory until a snapshot covers them; its checkpoint is acknowledged once they are in the storage.
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

_UPLOADS = 4  # files of a sink at a time
_PIECE = 4 << 20  # bytes


def spark_writes(root: str) -> bool:
    """Whether Spark itself reaches a sink's root: all that pyspark brings clients for."""
    return urlsplit(root).scheme in ("", "file", "hdfs")


def waiting_directory(attempt_directory: str, sink: str) -> str:
    """Where files of a sink wait, laid out as they will be below its root."""
    return f"{attempt_directory}/sinks/{sink}"


async def stage(
    storages: Storages, transaction: SinkTransaction, attempt_directory: str, known: dict[str, set[str]]
) -> None:
    """Upload what still waits of a transaction. `known`: by sink, what earlier calls have staged; it is kept here.

    Raises StorageError; what was uploaded by then is known. A file that is nowhere is left to `make_durable` to name.
    """
    if not transaction.files or spark_writes(transaction.root):
        return
    place = storages.at(transaction.root)
    waiting = Path(waiting_directory(attempt_directory, transaction.sink))
    staged = known.setdefault(transaction.sink, set())
    staged &= {file.staged for file in transaction.files}  # the rest is published and confirmed

    async def upload(file: StagedFile) -> None:
        if file.staged in staged:
            return
        try:
            source = await asyncio.to_thread((waiting / file.staged).open, "rb")
        except FileNotFoundError:  # staged by another snapshot meanwhile
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
