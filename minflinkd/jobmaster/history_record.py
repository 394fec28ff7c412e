"""Stores the record of a job's failures and restarts: reads it once, and writes it after each change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from minflinkd.checkpoint.turn import StorageTurn
from minflinkd.jobmaster.job_history import FILE, JobHistory, decode, encode
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.errors import MALFORMED, MinflinkError
from minflinkd.runtime.ids import JobId
from minflinkd.storage.interface import ObjectNotFound
from minflinkd.storage.location import Location

log = structlog.get_logger(__name__)

PAUSE = 1.0  # seconds between two writes; more frequent failures are written together
PATIENCE = 5.0  # seconds that an ending JobMaster waits for the storage


class HistoryRecord:
    """The stored record of one job.

    `root` is the directory of the job's checkpoints. `look` returns the present history.
    """

    def __init__(
        self, root: Location, *, job_id: JobId, clock: Clock, turn: StorageTurn, look: Callable[[], JobHistory]
    ) -> None:
        self._file = root.child(FILE)
        self._job_id = job_id
        self._clock = clock
        self._turn = turn
        self._look = look
        self._written = JobHistory()
        self._news = asyncio.Event()

    async def load(self) -> JobHistory:
        """Load what earlier JobMasters recorded.

        A record that cannot be read is started afresh: a job must not fail because its counts are lost.
        """
        try:
            self._written = decode(await self._file.read_bytes())
        except ObjectNotFound:
            pass
        except (MinflinkError, *MALFORMED) as error:
            log.warning("the recorded failures cannot be read", job=self._job_id, path=self._file.uri, error=str(error))
        return self._written

    def changed(self) -> None:
        self._news.set()

    async def keep(self) -> None:
        """Write the record after each change, in a loop."""
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self._write()
            except MinflinkError as error:
                log.warning("failures are not recorded yet", job=self._job_id, path=self._file.uri, error=str(error))
                self._news.set()
            await self._clock.sleep(PAUSE)

    async def write_last(self) -> None:
        """Write the record when the JobMaster ends. Do not wait for a storage that does not answer."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self._write()
        except (MinflinkError, TimeoutError) as error:
            why = str(error) or "no answer"
            log.warning("the last failures are not recorded", job=self._job_id, path=self._file.uri, error=why)

    async def _write(self) -> None:
        history = self._look()
        if not _has_news(history, self._written):
            return
        data = encode(history)

        async def work() -> None:
            await self._file.write_bytes(data)

        await self._turn.take(work)
        self._written = history


def _has_news(now: JobHistory, written: JobHistory) -> bool:
    """Whether there is something to write.

    What the metadata of checkpoints also has is not news. Dates are not compared: they differ by the rounding of two
    clocks.
    """

    def shown(history: JobHistory) -> tuple[object, ...]:
        newest = history.failures[0].error if history.failures else None
        counts = history.restarts, history.streak.failures, history.strategy.attempts, history.checkpoints.failed
        return (*counts, newest, history.running)

    return shown(now) != shown(written)
