"""The file sinks of one job between its attempts, and at its end (J12).

Only the JobMaster discards staged output, and only while no valid attempt of that sink is deployed. So a TaskManager
that comes back late can never delete the files of its successor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from functools import partial

import structlog

from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.checkpoint.turn import StorageTurn
from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.formats import FILE_FORMATS
from minflinkd.jobgraph.model import JobGraph
from minflinkd.jobgraph.params import substitute
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import JobId, TaskId, VertexId
from minflinkd.storage.interface import StorageUnavailable
from minflinkd.storage.publication import discard_staged, publish, remove_service_directories
from minflinkd.storage.registry import Storages

log = structlog.get_logger(__name__)

STEP_TIMEOUT = 120.0  # seconds for one sink's transaction or directory; a slower storage is considered hung

Step = Callable[[], Awaitable[object]]
SinkRoot = tuple[VertexId, str]  # a sink that writes files, and the URI of its directory


def sink_roots(graph: JobGraph) -> tuple[SinkRoot, ...]:
    return tuple(
        (vertex.id, substitute(vertex.sink.path, graph.params))
        for vertex in graph.vertices
        if vertex.sink is not None and vertex.sink.format in FILE_FORMATS and vertex.sink.path is not None
    )


def leaves_sinks(old: JobGraph, new: JobGraph) -> bool:
    """Whether a sink of the old version is missing in the new one, or belongs to another task there."""
    before, after = _homes(old), _homes(new)
    return any(after.get(sink) != task for sink, task in before.items())


def _homes(graph: JobGraph) -> dict[VertexId, TaskId]:
    return {vertex.id: task.id for task in chain(graph) for vertex in task.vertices if vertex.sink is not None}


class JobSinks:
    """Publishes and discards sink output. All methods are idempotent.

    Calls run one at a time: a slow call of an older round, or of an earlier JobMaster with the same `turn`, must not
    overlap the next.

    Raises StorageError. Raises StorageUnavailable, which may be retried, if the storage does not answer.
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
        """`of_other_versions`: discard what these sinks left as well, if their storage answers."""
        self._storages = storages
        self._job_id = job_id
        self._own = sink_roots(graph)
        self._others = tuple(root for root in of_other_versions if root not in self._own)
        self._turn = turn or StorageTurn(f"job {job_id}")

    async def prepare(self, point: CompletedCheckpoint | None, vertices: frozenset[VertexId] | None = None) -> None:
        """Before a deployment: publish what `point` promised, and discard what it does not cover.

        With `vertices`, do this only for these sinks: the other tasks run on, and what they stage is still theirs.
        """
        discard = [
            partial(discard_staged, self._storages, root, self._job_id, sink)
            for sink, root in self._own
            if vertices is None or sink in vertices
        ]
        left = [self._if_possible(discard_staged, root, self._job_id, sink) for sink, root in self._others]
        await self._in_turn([*self._publications(point, vertices), *discard, *(left if vertices is None else ())])

    async def close(self, point: CompletedCheckpoint | None) -> None:
        """At the job's end: do the same as `prepare`, and remove everything but the manifests."""
        remove = [partial(remove_service_directories, self._storages, root, self._job_id) for _, root in self._own]
        left = [self._if_possible(remove_service_directories, root, self._job_id) for _, root in self._others]
        await self._in_turn([*self._publications(point, None), *remove, *left])

    def _publications(self, point: CompletedCheckpoint | None, vertices: frozenset[VertexId] | None) -> Iterator[Step]:
        for snapshot in point.tasks if point is not None else ():
            for transaction in snapshot.transactions:
                if vertices is None or transaction.sink in vertices:
                    yield partial(publish, self._storages, transaction)

    def _if_possible(self, step: Callable[..., Awaitable[object]], root: str, *arguments: object) -> Step:
        """Return `step` as one that may fail. Nothing depends on it: the storage of a removed sink may be gone too."""

        async def tried() -> None:
            try:
                await step(self._storages, root, *arguments)
            except MinflinkError as error:
                log.warning("what another version staged is left", job=self._job_id, root=root, error=str(error))

        return tried

    async def _in_turn(self, steps: Sequence[Step]) -> None:
        """Run the steps one after the other, and give up if one does not end in time.

        A step that hangs is the last one. It keeps the turn until it has ended, and the next caller gets
        StorageUnavailable.
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
                # While no step has begun, the work waits for its turn, which has a limit of its own.
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
