"""The files sinks of one job between its attempts, and at its end (J12).

Nobody but the JobMaster discards what is staged, and only while it has no attempt of that sink deployed that counts: a
TaskManager that comes back late can therefore never take the files of its successor away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from functools import partial

import structlog

from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.checkpoint.turn import StorageTurn
from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.model import JobGraph
from minflinkd.jobgraph.params import substitute
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import JobId, TaskId, VertexId
from minflinkd.storage.interface import StorageUnavailable
from minflinkd.storage.publication import discard_staged, publish, remove_service_directories
from minflinkd.storage.registry import Storages

log = structlog.get_logger(__name__)

STEP_TIMEOUT = 120.0  # seconds for one sink's transaction or directory: a storage that takes longer is taken to hang

Step = Callable[[], Awaitable[object]]
SinkRoot = tuple[VertexId, str]  # a sink that writes files, and the URI of their directory


def sink_roots(graph: JobGraph) -> tuple[SinkRoot, ...]:
    return tuple(
        (vertex.id, substitute(vertex.sink.path, graph.params))
        for vertex in graph.vertices
        if vertex.sink is not None and vertex.sink.path is not None
    )


def leaves_sinks(old: JobGraph, new: JobGraph) -> bool:
    """Whether a sink of the old version is in no task of the new one, or in another than it was."""
    before, after = _homes(old), _homes(new)
    return any(after.get(sink) != task for sink, task in before.items())


def _homes(graph: JobGraph) -> dict[VertexId, TaskId]:
    return {vertex.id: task.id for task in chain(graph) for vertex in task.vertices if vertex.sink is not None}


class JobSinks:
    """Everything here is idempotent. One call at a time: a slow one of an older round, or of an earlier JobMaster with

    the same `turn`, must not overlap the next.

    Raises StorageError; StorageUnavailable, which may be tried again, where the storage does not answer.
    """

    def __init__(
        self,
        storages: Storages,
        *,
        job_id: JobId,
        graph: JobGraph,
        turn: StorageTurn | None = None,
        of_other_versions: Collection[SinkRoot] = (),
    ) -> None:
        """`of_other_versions`: what those left is discarded too, as far as their storage answers."""
        self._storages = storages
        self._job_id = job_id
        self._own = sink_roots(graph)
        self._others = tuple(root for root in of_other_versions if root not in self._own)
        self._turn = turn or StorageTurn(f"job {job_id}")

    async def prepare(self, point: CompletedCheckpoint | None, vertices: frozenset[VertexId] | None = None) -> None:
        """Before a deployment: publish what `point` promised, discard what it does not cover.

        With `vertices` only sinks among them: the others' tasks run on, and what those stage is theirs.
        """
        discard = [
            partial(discard_staged, self._storages, root, self._job_id, sink)
            for sink, root in self._own
            if vertices is None or sink in vertices
        ]
        left = [self._if_possible(discard_staged, root, self._job_id, sink) for sink, root in self._others]
        await self._in_turn([*self._publications(point, vertices), *discard, *(left if vertices is None else ())])

    async def close(self, point: CompletedCheckpoint | None) -> None:
        """At the job's end: as `prepare`, and nothing but manifests stays."""
        remove = [partial(remove_service_directories, self._storages, root, self._job_id) for _, root in self._own]
        left = [self._if_possible(remove_service_directories, root, self._job_id) for _, root in self._others]
        await self._in_turn([*self._publications(point, None), *remove, *left])

    def _publications(self, point: CompletedCheckpoint | None, vertices: frozenset[VertexId] | None) -> Iterator[Step]:
        for snapshot in point.tasks if point is not None else ():
            for transaction in snapshot.transactions:
                if vertices is None or transaction.sink in vertices:
                    yield partial(publish, self._storages, transaction)

    def _if_possible(self, step: Callable[..., Awaitable[object]], root: str, *arguments: object) -> Step:
        """Nothing of the job depends on it: the storage of a sink that is gone may be gone as well."""

        async def tried() -> None:
            try:
                await step(self._storages, root, *arguments)
            except MinflinkError as error:
                log.warning("what another version staged is left", job=self._job_id, root=root, error=str(error))

        return tried

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
