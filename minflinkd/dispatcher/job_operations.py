"""Requests to a job that take a while, by their trigger ids. Later daemons know them as well (A14c).

A request is stored before it is answered, and an outcome before it is reported. So the next daemon gives a client the
same answer. If it finds a request without an outcome, it first *settles* it: it finds out what became of it.
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
    """`tasks` owns the operations under way. They end when it ends, and the next daemon settles them."""

    def __init__(self, *, store: JobStore, tasks: TaskOwner, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._here = Operations(tasks)  # those that this daemon began, and those that it settles
        self._turn = asyncio.Lock()

    async def recover(self, settle: Callable[[StoredTrigger], Work]) -> None:
        """Begin to settle what earlier daemons had under way. It is IN_PROGRESS until then. Raises StorageError.

        `settle` returns a function that returns the location of the result, or raises the reason why there is none.
        """
        for trigger in await self._store.triggers():
            if await self._store.outcome(trigger.job_id, trigger.trigger_id) is not None:
                await self._tidy(trigger)
                continue
            log.warning("the daemon was lost with an operation", job=trigger.job_id, operation=trigger.trigger_id)
            work = partial(self._recorded, trigger, settle(trigger))
            self._here.begin((trigger.job_id, trigger.trigger_id), work)

    async def begin(self, job_id: JobId, trigger_id: str, prepare: Callable[[], tuple[StoredTrigger, Work]]) -> None:
        """Begin an operation. It is durable on return. A known trigger begins nothing, even if its operation has ended.

        `prepare` returns the record to store, and a function that does the work and returns the location of the result.
        Raises what `prepare` raises, and StorageError. Then nothing was begun.
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
