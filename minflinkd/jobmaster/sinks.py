"""The files sinks of one job between its attempts, and at its end (J12).

Nobody but the JobMaster discards what is staged, and only while it has no attempt deployed that counts: a TaskManager
that comes back late can therefore never take the files of its successor away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.jobgraph.model import JobGraph
from minflinkd.jobgraph.params import substitute
from minflinkd.runtime.ids import JobId, VertexId
from minflinkd.storage.publication import discard_staged, publish, remove_service_directories
from minflinkd.storage.registry import Storages


class JobSinks:
    """Everything here is idempotent. One call at a time: a slow one of an older round must not overlap the next."""

    def __init__(self, storages: Storages, *, job_id: JobId, graph: JobGraph) -> None:
        self._storages = storages
        self._job_id = job_id
        self._graph = graph
        self._turn = asyncio.Lock()

    async def prepare(self, point: CompletedCheckpoint | None) -> None:
        """Before a deployment: publish what `point` promised, discard what it does not cover. Raises StorageError."""
        async with self._turn:
            await self._publish(point)
            for sink, root in self._roots():
                await discard_staged(self._storages, root, self._job_id, sink)

    async def close(self, point: CompletedCheckpoint | None) -> None:
        """At the job's end: as `prepare`, and nothing but manifests stays. Raises StorageError."""
        async with self._turn:
            await self._publish(point)
            for _, root in self._roots():
                await remove_service_directories(self._storages, root, self._job_id)

    async def _publish(self, point: CompletedCheckpoint | None) -> None:
        for snapshot in point.tasks if point is not None else ():
            for transaction in snapshot.transactions:
                await publish(self._storages, transaction)

    def _roots(self) -> Iterator[tuple[VertexId, str]]:
        for vertex in self._graph.vertices:
            if vertex.sink is not None and vertex.sink.path is not None:
                yield vertex.id, substitute(vertex.sink.path, self._graph.params)
