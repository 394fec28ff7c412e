"""The turn of one job in its storage. Its JobMasters commit, discard and publish, one piece of work at a time.

All JobMasters of the job in this process share it. Nothing can stop a thread in a system call, so work that a crashed
JobMaster began goes on. It keeps the turn until it has really ended, and the successor does not look at the storage
before that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import structlog

from minflinkd.storage.interface import StorageUnavailable

log = structlog.get_logger(__name__)

PATIENCE = 30.0  # seconds; a caller that does not get its turn within them must try again later

R = TypeVar("R")


class StorageTurn:
    """The turn of `what`, which its messages name. Whoever has waited `patience` seconds must try again later."""

    def __init__(self, what: str, patience: float | None = None) -> None:
        self._what = what
        self._patience = PATIENCE if patience is None else patience
        self._turn = asyncio.Lock()
        self._under_way: asyncio.Task[Any] | None = None
        self._beside: set[asyncio.Task[Any]] = set()

    async def take(self, work: Callable[[], Coroutine[Any, Any, R]], *, patience: float | None = None) -> R:
        """Do `work` when its turn comes. Once begun, it runs to its end even if the caller is cancelled.

        Raises what `work` raises, StorageUnavailable if its turn does not come within `patience` seconds.
        """
        await self._acquire(self._patience if patience is None else patience)
        self._under_way = task = asyncio.create_task(work(), name=f"{self._what}: work in the storage")
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    async def beside(self, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Do `work` at once, whoever has the turn, because it touches nothing that others touch.

        Otherwise like `take`.
        """
        task = asyncio.create_task(work(), name=f"{self._what}: work beside the others in the storage")
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)
        task.add_done_callback(self._report)
        return await asyncio.shield(task)

    async def wait(self) -> None:
        """Return when nothing is under way, neither in the turn nor beside it. Raises StorageUnavailable."""
        await self._acquire(self._patience)
        self._turn.release()
        if self._beside:
            _, late = await asyncio.wait(self._beside, timeout=self._patience)
            if late:
                raise self._unavailable(self._patience)

    async def _acquire(self, patience: float) -> None:
        try:
            async with asyncio.timeout(patience):
                await self._turn.acquire()
        except TimeoutError as error:
            raise self._unavailable(patience) from error

    def _unavailable(self, patience: float) -> StorageUnavailable:
        log.warning("earlier work in the storage has not ended", job=self._what, seconds=patience)
        return StorageUnavailable(
            f"the storage of {self._what} does not answer: an earlier request has not ended in {patience:g} s",
            hint="check its mount or its server",
        )

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._under_way = None
        self._turn.release()
        self._report(task)

    def _report(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.info("work in the storage failed", job=self._what, error=str(error))
