"""Keeps the record of a job's offsets (C26): from what tasks report and what checkpoints publish.

Every write creates a file in the storage, and offsets change with every micro-batch. So only offsets that are recorded
nowhere else are written soon. The metadata of a fresh checkpoint has its offsets as well. What was processed after the
last checkpoint does not count if sinks publish with checkpoints. The rest is written once in a while, and at the end of
the job. Then the logs of file sources are kept too, without which their offsets say nothing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import partial

import structlog

from minflinkd.checkpoint import offsets as record
from minflinkd.checkpoint.kept_logs import keep_logs
from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.checkpoint.offsets import Offsets
from minflinkd.checkpoint.turn import StorageTurn
from minflinkd.jobgraph import delivery
from minflinkd.jobmaster.scheduler.state import JobState
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import JobId
from minflinkd.storage.interface import ObjectNotFound
from minflinkd.storage.location import Location

log = structlog.get_logger(__name__)

INTERVAL = 5.0  # seconds between two checks for something to write
KEEPING = 30.0  # seconds within which the logs of file sources must be copied
BEHIND = 60.0  # seconds that the record may lag if a checkpoint has the offsets as well


class OffsetRecord:
    """The record of one job's offsets, in `root`, the directory of its checkpoints."""

    def __init__(self, root: Location, *, job_id: JobId, clock: Clock, turn: StorageTurn) -> None:
        self._root = root
        self._clock = clock
        self._turn = turn
        self._written: Offsets | None = None
        self._written_at = self._published_at = -math.inf  # on the monotonic clock
        self._published = 0  # id of the latest published checkpoint
        self.offsets = Offsets(job_id=job_id)

    async def load(self) -> None:
        """Load what an earlier JobMaster recorded. A record that cannot be read is started afresh."""
        try:
            self.offsets = self._written = await record.read_offsets(self._root)
        except ObjectNotFound:
            return
        except MinflinkError as error:
            log.warning("the recorded offsets cannot be read", directory=self._root.uri, error=str(error))

    def update(self, state: JobState, published: CompletedCheckpoint | None) -> None:
        sources = {
            task_id: frozenset(v.id for v in task.vertices if v.source is not None)
            for task_id, task in state.tasks.items()
        }
        processed = {task: execution.metrics.source_offsets for task, execution in state.executions.items()}
        sinks = [v.sink for task in state.tasks.values() for v in task.vertices if v.sink is not None]
        # A source may be several exchanges upstream of the sinks that publish what it read.
        staged = dict.fromkeys(state.tasks, any(delivery.stages(sink) for sink in sinks))
        self.offsets = record.advanced(self.offsets, processed, published, sources, staged, self._clock.epoch_ms())
        if published is not None and published.checkpoint_id != self._published:
            self._published, self._published_at = published.checkpoint_id, self._clock.monotonic()

    async def write(self, *, last: bool = False) -> None:
        """Write the record if it has changed and a write is due. Raises StorageError.

        `last` is the job's last write, which is always due.
        """
        offsets = self.offsets
        if offsets is self._written or not any(task.latest or task.processed for task in offsets.tasks.values()):
            return
        if not last and not self._is_due(offsets):
            return
        data = record.encode(offsets)

        async def work() -> None:
            await self._root.child(record.FILE).write_bytes(data)

        await self._turn.take(work)
        self._written, self._written_at = offsets, self._clock.monotonic()

    async def keep(self, look: Callable[[], object]) -> None:
        """Write the record in a loop. `look` updates it before each write."""
        while True:
            await self._clock.sleep(INTERVAL)
            look()
            try:
                await self.write()
            except MinflinkError as error:
                log.warning("the offsets are not recorded", directory=self._root.uri, error=str(error))

    async def write_last(self) -> None:
        """Write the record at the job's end. Do not wait for a storage that does not answer."""
        try:
            async with asyncio.timeout(INTERVAL):
                await self.write(last=True)
        except (MinflinkError, TimeoutError) as error:
            why = str(error) or "no answer"
            log.warning("the last offsets are not recorded", directory=self._root.uri, error=why)

    async def keep_logs(self, point: CompletedCheckpoint | None) -> None:
        """Keep the logs of file sources at the job's end, before its checkpoints are deleted.

        `point`: the job's last checkpoint, which is published. The job ends even if they cannot be kept.
        """
        if point is None:
            return
        try:
            async with asyncio.timeout(KEEPING):
                await self._turn.take(partial(keep_logs, self._root, point))
        except Exception as error:  # whatever the error is, the job must reach its end
            why = str(error) or ("no answer" if isinstance(error, TimeoutError) else repr(error))
            log.warning("the logs of file sources are not kept", directory=self._root.uri, error=why)

    def _is_due(self, offsets: Offsets) -> bool:
        now = self._clock.monotonic()
        said_by_a_checkpoint = now - self._published_at < BEHIND
        unchanged = self._written is not None and offsets.latest() == self._written.latest()
        return now - self._written_at >= BEHIND or not (said_by_a_checkpoint or unchanged)
