"""Checks directories of sinks in storages other than the local one, before a job starts (J4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from urllib.parse import urlsplit

from minflinkd.jobgraph.faults import GraphFault
from minflinkd.jobgraph.formats import FILE_FORMATS
from minflinkd.jobgraph.model import Task
from minflinkd.jobgraph.params import resolve
from minflinkd.rpc.messages import JobContext
from minflinkd.runtime.errors import MinflinkError
from minflinkd.storage.registry import Storages

PATIENCE = 10.0  # seconds for a storage to answer; backends retry on their own


async def sink_path_faults(
    storages: Storages, job: JobContext, tasks: Iterable[Task], patience: float = PATIENCE
) -> tuple[GraphFault, ...]:
    """Return faults of sinks whose storage is unknown here, refuses, or does not answer.

    Writes nothing, except where a storage has to be checked first (`Storages.require_writable`).
    """
    return tuple([fault async for fault in _faults(storages, job, tasks, patience)])


async def _faults(
    storages: Storages, job: JobContext, tasks: Iterable[Task], patience: float
) -> AsyncIterator[GraphFault]:
    for vertex in (vertex for task in tasks for vertex in task.sinks):
        try:
            sink = resolve(vertex, job.params).sink
        except MinflinkError:
            continue  # a param without a value is a fault of its own
        if sink is None or sink.format not in FILE_FORMATS or not sink.path:
            continue
        if urlsplit(sink.path).scheme in ("", "file"):
            continue
        where, here = f"vertices.{vertex.id}.sink.path", f"{sink.path} cannot be written"
        try:
            place = storages.at(sink.path)
            await storages.require_writable(place)  # has a time limit of its own
            async with asyncio.timeout(patience):
                await anext(place.list(), None)
        except TimeoutError:
            hint = "is the storage up, and are the options storage.* of this cluster right?"
            yield GraphFault(path=where, problem=f"{here}: no answer within {patience:g} s", hint=hint)
        except MinflinkError as error:
            yield GraphFault(path=where, problem=f"{here}: {error.message}", hint=error.hint)
