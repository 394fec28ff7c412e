"""Stops the query of an attempt, and removes what it leaves on the local disk (J7, C10a)."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import structlog

from minflinkd.runtime.clock import Clock
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import AttemptId
from minflinkd.runtime.supervision import TaskOwner
from minflinkd.taskmanager import session_protocol as sp
from minflinkd.taskmanager.attempt import Attempt
from minflinkd.taskmanager.collected import CollectedRows
from minflinkd.taskmanager.exchange.mirrors import Mirrors
from minflinkd.taskmanager.session_keeper import SessionKeeper
from minflinkd.taskmanager.session_protocol import SessionLost

log = structlog.get_logger(__name__)

UNLOAD_TIMEOUT = 30.0  # seconds
LEAST_PATIENCE = 1.0  # seconds for a query to stop, when the time is over already
ANSWER_MARGIN = 5.0  # seconds beyond a time that the session child was given, for its answer


class Stopping:
    def __init__(
        self,
        *,
        attempts: Mapping[AttemptId, Attempt],
        keeper: SessionKeeper,
        mirrors: Mirrors,
        collected: CollectedRows,
        clock: Clock,
        tasks: TaskOwner,
    ) -> None:
        self._attempts = attempts
        self._keeper = keeper
        self._mirrors = mirrors
        self._collected = collected
        self._clock = clock
        self._tasks = tasks
        self._kept: list[Path] = []  # directories of ended attempts that the session child may still write to

    async def stop(self, attempt: Attempt, rising: asyncio.Task[None] | None, deadline: float) -> None:
        """`rising`: the task that brings it up; `deadline`: monotonic seconds.

        A child whose user code does not come back is given up: nothing else ends a thread.
        """
        attempt_id = attempt.deployment.attempt_id
        if rising is not None:
            # Else it would start the query behind our back; what it has asked of the child is stopped there.
            rising.cancel()
            await asyncio.wait({rising}, timeout=max(0.0, deadline - self._clock.monotonic()))
            self._kept.append(attempt.directory)  # a thread that lays files out ends later than its task
        await self._mirrors.close(attempt_id)
        if attempt.generation != self._keeper.generation:
            return  # its child is gone, and its directory with it
        await self._collected.keep(attempt)
        patience = max(LEAST_PATIENCE, deadline - self._clock.monotonic())
        try:
            stop = sp.StopTask(attempt_id=attempt_id, timeout=patience)
            stopped = await self._keeper.session().ask(stop, patience + ANSWER_MARGIN)
        except SessionLost:
            await self._keeper.gone(attempt.generation)
            return
        except MinflinkError as error:
            log.warning("a query could not be stopped", attempt=attempt_id, error=str(error))
            stopped = sp.TaskStopped(ended=False)
        if not stopped.ended:
            self._keeper.condemn(attempt.generation, f"attempt {attempt_id} could not be cancelled")
            await self._keeper.gone(attempt.generation)
            return
        self._tasks.job(f"unload {attempt_id}", self._unload(attempt))

    async def _unload(self, attempt: Attempt) -> None:
        """Beside whatever comes next: the attempt's directory is nobody else's (C10a), or it has an heir (H4)."""
        request = sp.UnloadTask(attempt_id=attempt.deployment.attempt_id)
        try:
            answer = await self._keeper.session().ask(request, UNLOAD_TIMEOUT)
            if answer.heir is not None and self._inherits(answer.heir, attempt):
                return
            unloaded = answer.unloaded
        except SessionLost:
            await self._keeper.gone(attempt.generation)
            unloaded = True
        except MinflinkError as error:
            log.warning("a query's state is not unloaded", attempt=request.attempt_id, error=str(error))
            unloaded = False
        attempt.removed = True
        if unloaded or attempt.generation != self._keeper.generation:
            await remove_all(attempt.directories)
        else:
            self._kept += attempt.directories  # until the child goes: a store may still write there

    def _inherits(self, heir_id: AttemptId, attempt: Attempt) -> bool:
        """What is to be removed behind the attempt is removed behind its heir, if that is still to come."""
        heir = self._attempts.get(heir_id)
        if heir is None or heir.removed:
            return False
        heir.inherited += attempt.directories
        attempt.removed = True
        return True

    def session_lost(self, attempts: Sequence[Attempt]) -> None:
        """Nobody writes to its attempts' directories any more."""
        gone = [directory for a in attempts for directory in a.directories] + self._kept
        self._kept = []
        self._tasks.job("remove directories of the lost session", self._remove_lost(attempts, gone))

    async def _remove_lost(self, attempts: Sequence[Attempt], directories: Sequence[Path]) -> None:
        for attempt in attempts:
            await self._mirrors.close(attempt.deployment.attempt_id)
        await remove_all(directories)


async def remove_all(directories: Iterable[Path]) -> None:
    for directory in directories:
        await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
