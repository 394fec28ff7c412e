"""Operations that were asked of a job and take a while, by their trigger ids, also under later daemons (A14c).

A request is stored before it is answered, and an outcome before it is told. So whoever asks under the next daemon hears
what was told before. What that daemon finds without an outcome, it settles first: it says what became of it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from functools import partial

import structlog
from msgspec.structs import replace

from minflinkd.dispatcher.job_results import until_done
from minflinkd.dispatcher.job_store import JobStore, StoredOutcome, StoredTrigger
from minflinkd.dispatcher.operations import Operations
from minflinkd.rpc.jobs import OperationStatus
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.errors import ErrorInfo, MinflinkError, NotFound, error_info
from minflinkd.runtime.ids import JobId
from minflinkd.runtime.supervision import TaskOwner

log = structlog.get_logger(__name__)

LONGEST_MESSAGE = 2000  # characters of an error that are stored

Work = Callable[[], Awaitable[str]]
_TRIGGER_ID = re.compile(r"[0-9a-f]{32}")


class JobOperations:
    """`tasks` owns the operations under way. They end with it, and the next daemon settles them."""

    def __init__(self, *, store: JobStore, tasks: TaskOwner, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._here = Operations(tasks)  # those of this daemon, and those that it settles
        self._turn = asyncio.Lock()

    async def recover(self, settle: Callable[[StoredTrigger], Work]) -> None:
        """Begin to settle what earlier daemons had under way. It counts as under way until then. Raises StorageError.

        `settle` returns what finds out the location of the result, or raises what became of it instead.
        """
        for trigger in await self._store.triggers():
            if await self._store.outcome(trigger.job_id, trigger.trigger_id) is not None:
                await self._tidy(trigger)
                continue
            log.warning("the daemon was lost with an operation", job=trigger.job_id, operation=trigger.trigger_id)
            work = partial(self._recorded, trigger, settle(trigger))
            self._here.begin((trigger.job_id, trigger.trigger_id), work)

    async def begin(self, job_id: JobId, trigger_id: str, prepare: Callable[[], tuple[StoredTrigger, Work]]) -> None:
        """Begin an operation, which is durable on return. A known trigger begins nothing, also one that is over.

        `prepare` returns what to store, and what returns the location of the result. Raises what it raises, and
        StorageError: then nothing was begun.
        """
        async with self._turn:
            if await self._find(job_id, trigger_id) is None:
                trigger, work = prepare()
                await self._store.put_trigger(trigger)
                self._here.begin((job_id, trigger_id), partial(self._recorded, trigger, work))

    async def status(self, job_id: JobId, trigger_id: str) -> OperationStatus:
        """Raises NotFound, StorageError."""
        found = await self._find(job_id, trigger_id)
        if found is None:
            raise NotFound(
                f"job {job_id} has no operation {trigger_id[:80]!r}", hint="it ended long ago, or was never begun"
            )
        return found

    async def _find(self, job_id: JobId, trigger_id: str) -> OperationStatus | None:
        found = self._here.get((job_id, trigger_id))
        if found is not None or not _TRIGGER_ID.fullmatch(trigger_id):
            return found
        outcome = await self._store.outcome(job_id, trigger_id)
        return None if outcome is None else OperationStatus(done=True, location=outcome.location, error=outcome.error)

    async def _recorded(self, trigger: StoredTrigger, work: Work) -> str:
        """Do the work, and store its outcome. If the daemon ends meanwhile, the next one settles it."""
        try:
            location = await work()
        except Exception as error:
            await self._store_outcome(trigger, error=_short(error_info(error)))
            raise
        await self._store_outcome(trigger, location=location)
        return location

    async def _store_outcome(
        self, trigger: StoredTrigger, *, location: str = "", error: ErrorInfo | None = None
    ) -> None:
        outcome = StoredOutcome(job_id=trigger.job_id, trigger_id=trigger.trigger_id, location=location, error=error)
        what = f"outcome of operation {trigger.trigger_id}"
        await until_done(self._clock, what, lambda: self._store.put_outcome(outcome))
        await self._tidy(trigger)

    async def _tidy(self, trigger: StoredTrigger) -> None:
        """Delete the request, which has an outcome, and the job's oldest outcomes. What is left does no harm."""
        try:
            await self._store.drop_trigger(trigger)
            await self._store.drop_old_outcomes(trigger.job_id)
        except MinflinkError as error:
            log.info("records of operations are left", job=trigger.job_id, error=str(error))


def _short(error: ErrorInfo) -> ErrorInfo:
    return replace(error, message=error.message[:LONGEST_MESSAGE], traceback="")
