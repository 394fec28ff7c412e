"""A log of one TaskManager, and its mirror on another one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import aiohttp

from minflinkd.runtime.ids import AttemptId, ResourceId
from minflinkd.taskmanager.exchange.log import DATA, ENTRIES, DataFile, Entry, EntryKind, LogWriter
from minflinkd.taskmanager.exchange.mirror import Mirror
from minflinkd.taskmanager.exchange.remote_log import RemoteLog

WRITER, READER = AttemptId("a" * 32), AttemptId("b" * 32)
TOKEN, TASK, PLENTY = "token", "reader", 1 << 40
HERE, THERE = ResourceId("tm-here"), ResourceId("tm-there")


def add(log: LogWriter, *contents: bytes) -> Entry:
    """Append one micro-batch with one file for each content."""
    files = []
    for content in contents:
        name = f"{uuid4().hex}.parquet"
        (log.directory / DATA / name).write_bytes(content)
        files.append(DataFile(name, 1, len(content)))
    entry = Entry(kind=EntryKind.DATA, files=tuple(files), batch_id=log.next)
    log.append(entry)
    return entry


def barrier(log: LogWriter, number: int) -> Entry:
    entry = Entry(kind=EntryKind.BARRIER, checkpoint_id=number)
    log.append(entry)
    return entry


def entries(directory: Path) -> list[int]:
    return sorted(int(path.name) for path in (directory / ENTRIES).glob("[0-9]*"))


class Running:
    """A mirror at work in `directory`. `failure` is the error that ended it."""

    def __init__(self, mirror: Mirror, directory: Path) -> None:
        self.directory = directory
        self.task = asyncio.create_task(mirror.run())

    async def failure(self) -> BaseException | None:
        async with asyncio.timeout(20):
            await asyncio.wait({self.task})
        return self.task.exception()


@contextlib.asynccontextmanager
async def mirroring(
    http: aiohttp.ClientSession,
    url: str,
    directory: Path,
    *,
    first: int = 0,
    max_backlog: int = PLENTY,
    patience: float = 20.0,
) -> AsyncIterator[Running]:
    source = RemoteLog(http, url, WRITER, token=TOKEN)
    mirror = Mirror(source, directory, reader=TASK, first=first, max_backlog=max_backlog, patience=patience)
    running = Running(mirror, directory)
    try:
        yield running
    finally:
        running.task.cancel()
        await asyncio.wait({running.task})
