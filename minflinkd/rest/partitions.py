"""Asks TaskManagers for the partitions of a task, while somebody looks at them.

A page that shows a vertex sends several requests at once, every few seconds. They share an answer. A TaskManager that
does not answer is left alone for a while: a vertex is shown without it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

import structlog

from minflinkd.rest.backend import Backend
from minflinkd.rpc.jobs import TaskDetails
from minflinkd.rpc.messages import ReadPartitions, TaskPartitions
from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.runtime.ids import AttemptId, ResourceId

log = structlog.get_logger(__name__)

FRESH = 1.0  # seconds for which everybody gets the same answer
SILENT = 10.0  # seconds for which a TaskManager that has not answered is not asked about this task
PATIENCE = 3.0  # seconds for its answer
KEPT = 128  # answers


@dataclass(frozen=True)
class _Known:
    until: float  # of the monotonic clock
    found: TaskPartitions | None


class Partitions:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._known: OrderedDict[AttemptId, _Known] = OrderedDict()
        self._asking: dict[AttemptId, asyncio.Lock] = {}

    async def of(self, task: TaskDetails) -> TaskPartitions | None:
        """Return the partitions of a task; None if it does not run, or its TaskManager does not answer."""
        attempt_id, resource_id = task.attempt_id, task.resource_id
        if attempt_id is None or resource_id is None or task.end_ms >= 0:
            return None
        if (known := self._fresh(attempt_id)) is not None:
            return known.found
        lock = self._asking.setdefault(attempt_id, asyncio.Lock())
        try:
            async with lock:
                known = self._fresh(attempt_id) or await self._ask(resource_id, attempt_id)
        finally:
            if not lock.locked():
                self._asking.pop(attempt_id, None)
        return known.found

    def _fresh(self, attempt_id: AttemptId) -> _Known | None:
        known = self._known.get(attempt_id)
        return known if known is not None and self._backend.clock.monotonic() < known.until else None

    async def _ask(self, resource_id: ResourceId, attempt_id: AttemptId) -> _Known:
        found, fresh = None, SILENT
        try:
            ask = ReadPartitions(attempt_id=attempt_id)
            found = await self._backend.task_manager(resource_id, ask, min(PATIENCE, self._backend.timeout))
            fresh = FRESH
        except MinflinkError as error:
            if error.info().consequence is Consequence.REFUSED:  # it does not run the task yet, or not any more
                fresh = FRESH
            log.info("the partitions of a task are not known", attempt=attempt_id, error=str(error))
        known = self._known[attempt_id] = _Known(self._backend.clock.monotonic() + fresh, found)
        self._known.move_to_end(attempt_id)
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        return known
