"""The files sinks of one job between its attempts, and at its end (J12).

Nobody but the JobMaster discards what is staged, and only while it has no attempt of that sink deployed that counts: a
TaskManager that comes back late can therefore never take the files of its successor away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial

from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.checkpoint.turn import StorageTurn
from minflinkd.jobgraph.model import JobGraph
from minflinkd.jobgraph.params import substitute
from minflinkd.runtime.ids import JobId, VertexId
from minflinkd.storage.interface import StorageUnavailable
from minflinkd.storage.publication import discard_staged, publish, remove_service_directories
from minflinkd.storage.registry import Storages

STEP_TIMEOUT = 120.0  # seconds for one sink's transaction or directory: a storage that takes longer is taken to hang

Step = Callable[[], Awaitable[object]]


class JobSinks:
    """Everything here is idempotent. One call at a time: a slow one of an older round, or of an earlier JobMaster with

    the same `turn`, must not overlap the next.

    Raises StorageError; StorageUnavailable, which may be tried again, where the storage does not answer.
    """

    def __init__(self, storages: Storages, *, job_id: JobId, graph: JobGraph, turn: StorageTurn | None = None) -> None:
        self._storages = storages
        self._job_id = job_id
        self._graph = graph
        self._turn = turn or StorageTurn(f"job {job_id}")

    async def prepare(self, point: CompletedCheckpoint | None, vertices: frozenset[VertexId] | None = None) -> None:
        """Before a deployment: publish what `point` promised, discard what it does not cover.

        With `vertices` only sinks among them: the others' tasks run on, and what those stage is theirs.
        """
        discard = [
            partial(discard_staged, self._storages, root, self._job_id, sink)
            for sink, root in self._roots()
            if vertices is None or sink in vertices
        ]
        await self._in_turn([*self._publications(point, vertices), *discard])

    async def close(self, point: CompletedCheckpoint | None) -> None:
        """At the job's end: as `prepare`, and nothing but manifests stays."""
        remove = [partial(remove_service_directories, self._storages, root, self._job_id) for _, root in self._roots()]
        await self._in_turn([*self._publications(point, None), *remove])

    def _publications(self, point: CompletedCheckpoint | None, vertices: frozenset[VertexId] | None) -> Iterator[Step]:
        for snapshot in point.tasks if point is not None else ():
            for transaction in snapshot.transactions:
                if vertices is None or transaction.sink in vertices:
                    yield partial(publish, self._storages, transaction)

    def _roots(self) -> Iterator[tuple[VertexId, str]]:
        for vertex in self._graph.vertices:
            if vertex.sink is not None and vertex.sink.path is not None:
                yield vertex.id, substitute(vertex.sink.path, self._graph.params)

    async def _in_turn(self, steps: Sequence[Step]) -> None:
        """One after the other; given up where one does not end in time. The step that hangs is the last, and keeps the

        turn until it has ended: whoever comes next is told to come again.
        """
        progress, given_up = 0, False

        async def work() -> None:
            nonlocal progress
            for step in steps:
                if given_up:
                    return
                progress += 1
                await step()

        task = asyncio.create_task(self._turn.take(work, patience=STEP_TIMEOUT), name=f"sinks of {self._job_id}")
        try:
            while not task.done():
                before = progress
                await asyncio.wait({task}, timeout=STEP_TIMEOUT)
                if not task.done() and progress == before > 0:
                    raise StorageUnavailable(
                        "the storage of the job's sinks does not answer: "
                        f"step {progress} of {len(steps)} has not ended in {STEP_TIMEOUT:g} s",
                        hint="is its mount, or its server, there?",
                    )
        finally:
            given_up = True
            task.cancel()
        task.result()
