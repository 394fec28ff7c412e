"""Requests that change something while the daemon ends: those under way are refused soon, later ones at once.

A submission may wait for minutes for a TaskManager that will not come any more. Its sender gets an answer instead of a
closed connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from minflinkd.rest.errors import RequestError
from minflinkd.runtime.errors import Consequence

R = TypeVar("R")

GRACE = 0.5  # seconds that requests have to come to their end by themselves
WITHDRAWAL = 3.0  # seconds that one has to take back what it has begun


class DaemonStopping(RequestError):
    """The daemon was told to end. What was asked for was not done; a submitted job is not accepted."""

    code = "daemon-stopping"
    consequence = Consequence.RETRYABLE
    status = 503


class Ending:
    """Made with the endpoint, and begun once."""

    def __init__(self) -> None:
        self._begun = asyncio.Event()
        self._under_way: set[asyncio.Task[Any]] = set()

    async def carry_out(self, work: Coroutine[Any, Any, R]) -> R:
        """Its result. Raises what it raises, and DaemonStopping."""
        if self._begun.is_set():
            work.close()
            raise _stopping()
        task = asyncio.ensure_future(work)
        self._under_way.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if self._begun.is_set() and task.cancelled():
                raise _stopping() from None
            task.cancel()
            raise
        finally:
            self._under_way.discard(task)

    async def begin(self) -> None:
        """Returns when none is under way any more, or takes too long to be given up."""
        self._begun.set()
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=GRACE)
        late = set(self._under_way)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=WITHDRAWAL)


def _stopping() -> DaemonStopping:
    return DaemonStopping(
        "the daemon is shutting down, and has not carried out the request",
        hint="send it again when the daemon is back; a job that was being submitted is not accepted",
    )
