"""Stops the query of an attempt, and removes its files from the local disk (J7, C10a)."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import structlog

from minflinkd.runtime.clock import Clock
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import AttemptId
from minflinkd.runtime.supervision import TaskOwner
from minflinkd.taskmanager.attempts.attempt import Attempt
from minflinkd.taskmanager.attempts.collected import CollectedRows
from minflinkd.taskmanager.child import protocol as sp
from minflinkd.taskmanager.child.keeper import SessionKeeper
from minflinkd.taskmanager.child.protocol import SessionLost
from minflinkd.taskmanager.exchange.mirrors import Mirrors

log = structlog.get_logger(__name__)

UNLOAD_TIMEOUT = 30.0  # seconds
LEAST_PATIENCE = 1.0  # seconds for a query to stop even if the deadline has passed
ANSWER_MARGIN = 5.0  # seconds for the session child's answer, beyond the time it was given


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
        self._kept: list[Path] = []  # directories of ended attempts, which the session child may still write to

    async def stop(
        self,
        attempt: Attempt,
        rising: asyncio.Task[None] | None,
        deadline: float,
        *,
        may_condemn: Callable[[], bool] = lambda: True,
    ) -> None:
        """Stop the query. If that fails, end the session child: nothing else ends a thread that user code blocks.

        `rising` is the asyncio task that brings the attempt up. `deadline` is in monotonic seconds. If the session must
        not be condemned, because others need it, the query ends when its user code returns.
        """
        attempt_id = attempt.deployment.attempt_id
        if rising is not None:
            # Otherwise it would still start the query. StopTask below stops what it has requested from the child.
            rising.cancel()
            await asyncio.wait({rising}, timeout=max(0.0, deadline - self._clock.monotonic()))
            self.leave(attempt.directory)  # a thread that lays out files may outlive its asyncio task
        await self._mirrors.close(attempt_id)
        if attempt.generation != self._keeper.generation:
            return  # its session child is gone, and the directory with it
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
        if not stopped.ended and not may_condemn():
            self.leave(attempt.directory)
            log.warning("a query ends when its user code returns", attempt=attempt_id)
            return
        if not stopped.ended:
            self._keeper.condemn(attempt.generation, f"attempt {attempt_id} could not be cancelled")
            await self._keeper.gone(attempt.generation)
            return
        self._tasks.job(f"unload {attempt_id}", self._unload(attempt))

    def leave(self, directory: Path) -> None:
        """Remove the directory when the session ends: something may still write there."""
        self._kept.append(directory)

    async def _unload(self, attempt: Attempt) -> None:
        """Unload the attempt's state in the background.

        What comes next need not wait: it uses another directory (C10a), or is the heir that goes on in this one (H4).
        """
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
            self._kept += attempt.directories  # kept until the child ends: a state store may still write there

    def _inherits(self, heir_id: AttemptId, attempt: Attempt) -> bool:
        """Leave the attempt's directories to its heir, which removes them with its own. Return False if it cannot."""
        heir = self._attempts.get(heir_id)
        if heir is None or heir.removed:
            return False
        heir.inherited += attempt.directories
        attempt.removed = True
        return True

    def session_gone(self, attempts: Sequence[Attempt]) -> None:
        """Remove the directories of a lost session, since nobody writes to them any more."""
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
