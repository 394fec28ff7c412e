"""Looks at a job's checkpoints if the latest one may be damaged, and gives up those that are (C28).

Nothing is read before there is a reason: a task that could not restore its state, or metadata that could not be read.
The daemon then looks for itself. A TaskManager that sees another storage, or has bad memory, decides nothing.
"""

from __future__ import annotations

import structlog

from minflinkd.checkpoint.coordinator import CheckpointCoordinator
from minflinkd.checkpoint.damage import CheckpointDamaged, Damage, listed
from minflinkd.checkpoint.metadata import CompletedCheckpoint, restore_point
from minflinkd.jobgraph.formats import FILE_FORMATS
from minflinkd.jobgraph.model import JobGraph, Sink
from minflinkd.jobgraph.params import substitute
from minflinkd.jobmaster.fallback import (
    Damaged,
    FallBack,
    Repeats,
    SinkFinding,
    decide,
    finding_by_guarantee,
    finding_by_tokens,
    named,
    none_whole,
    transactions_of,
)
from minflinkd.rpc.snapshot import StateHandle
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import JobId, VertexId
from minflinkd.storage.published import no_longer_staged, published_after
from minflinkd.storage.registry import Storages

log = structlog.get_logger(__name__)


class AllTasksMustStop(CheckpointDamaged):
    """The job goes on from an earlier checkpoint, so its other tasks cannot run on."""


class FallingBack:
    """`directory`: the URI of the directory of the job's checkpoints."""

    def __init__(
        self,
        job_id: JobId,
        *,
        coordinator: CheckpointCoordinator,
        graph: JobGraph,
        storages: Storages,
        directory: str,
        clock: Clock,
    ) -> None:
        self._job_id = job_id
        self._coordinator = coordinator
        self._graph = graph
        self._storages = storages
        self._directory = directory
        self._clock = clock
        self._log = log.bind(job=job_id)
        self._suspected = False

    def suspect(self) -> None:
        """A task could not restore its state from the latest checkpoint."""
        self._suspected = True

    async def look(self, *, all_tasks: bool) -> FallBack | None:
        """Give up the latest checkpoints if they are damaged, and return what the job goes on from.

        It is also returned if an earlier call gave them up: something may have failed since then, even this daemon.
        Return None if there is no reason to give up any. The caller has waited until the latest one is settled, and
        calls `confirm` after it has discarded what is staged. `all_tasks`: all tasks of the job are to be restored.

        Raises NoWholeCheckpoint, RestoreWouldRepeat, AllTasksMustStop, StorageError.
        """
        lost = self._coordinator.integrity.unreadable()
        given_up = self._coordinator.integrity.given_up()
        if not self._suspected and not lost:
            newest = next(iter(self._coordinator.integrity.restorable()), None)
            if given_up and newest is None:
                raise none_whole(given_up, directory=self._directory)
            return FallBack(newest, given_up, ()) if given_up and newest is not None and all_tasks else None
        damaged = {one.checkpoint_id: one.record().damage for one in lost}
        to = await self._newest_whole(damaged)
        if not damaged:
            self._suspected = False
            if given_up and to is not None:
                return FallBack(to, given_up, ())
            self._log.warning("a task could not restore its state, but the checkpoint is whole", checkpoint=_id(to))
            return None
        if to is None:
            raise none_whole(given_up | damaged, directory=self._directory)
        damaged |= {
            one.checkpoint_id: one.record().damage for one in self._coordinator.integrity.unreadable(to.checkpoint_id)
        }
        if not all_tasks:
            raise AllTasksMustStop(
                f"{named(damaged)}. All tasks restart: the job goes on from checkpoint {to.checkpoint_id}"
            )
        found = FallBack(to, given_up | damaged, await self._sinks(to, given_up | damaged))
        decide(found, self._coordinator.options.on_damage, directory=self._directory)
        await self._coordinator.fall_back(to.checkpoint_id, damaged)
        self._suspected = False
        return found

    async def confirm(self, found: FallBack) -> ErrorInfo:
        """Look again at what was published, and return what users must know.

        A TaskManager that was believed dead may have published until its staged files were discarded. From then on it
        cannot. Raises RestoreWouldRepeat, StorageError.
        """
        again = FallBack(found.to, found.damaged, await self._sinks(found.to, found.damaged, discarded=True))
        decide(again, self._coordinator.options.on_damage, directory=self._directory)
        warning = again.warning(self._clock.epoch_ms())
        self._log.error("the job goes on from an earlier checkpoint", error=warning.message)
        return warning

    async def _newest_whole(self, damaged: dict[int, tuple[Damage, ...]]) -> CompletedCheckpoint | None:
        """Return the newest checkpoint that is whole, and add those after it to `damaged`. Raises StorageError."""
        whole = set[StateHandle]()
        for checkpoint in self._coordinator.integrity.restorable():
            found = await self._coordinator.integrity.find_damage(checkpoint, whole)
            if not found:
                return checkpoint
            self._log.error("a checkpoint is damaged", checkpoint=checkpoint.checkpoint_id, damage=listed(found))
            damaged[checkpoint.checkpoint_id] = found
        return None

    async def _sinks(
        self, to: CompletedCheckpoint, damaged: Damaged, *, discarded: bool = False
    ) -> tuple[SinkFinding, ...]:
        """Find out what each sink would repeat. `discarded`: what was staged since then is discarded already."""
        number = to.checkpoint_id
        point = restore_point(
            tuple(c for c in self._coordinator.integrity.restorable()[::-1] if c.checkpoint_id <= number)
        )
        assert point is not None
        later = self._coordinator.integrity.later_than(number)
        unreadable = damaged.keys() - {checkpoint.checkpoint_id for checkpoint in later}
        found = []
        for vertex in self._graph.vertices:
            sink = vertex.sink
            if sink is None:
                continue
            known = finding_by_guarantee(self._graph, vertex.id, sink)
            if known is None and sink.format in FILE_FORMATS and sink.path is not None:
                known = await self._files(vertex.id, sink, point, () if discarded else later)
            found.append(known or finding_by_tokens(vertex.id, point, later, unreadable))
        return tuple(found)

    async def _files(
        self, sink_id: VertexId, sink: Sink, point: CompletedCheckpoint, later: tuple[CompletedCheckpoint, ...]
    ) -> SinkFinding:
        covered = {file.final for t in transactions_of([point], sink_id) for file in t.files}
        assert sink.path is not None
        root = substitute(sink.path, self._graph.params)
        record = await published_after(self._storages, root, self._job_id, sink_id, point.checkpoint_id, covered)
        if record is not None:
            return SinkFinding(sink_id, Repeats.TWICE, f"{record} names files that were published since then")
        for transaction in transactions_of(later, sink_id):
            files = [file for file in transaction.files if file.final not in covered]
            gone = await no_longer_staged(self._storages, transaction, files)
            if gone is not None:
                why = f"{gone} is not staged any more: it may have been published"
                return SinkFinding(sink_id, Repeats.TWICE, why)
        return SinkFinding(sink_id, Repeats.NOTHING, "nothing was published since then")


def _id(checkpoint: CompletedCheckpoint | None) -> int | None:
    return None if checkpoint is None else checkpoint.checkpoint_id
