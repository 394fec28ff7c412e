"""Requests that change something while the daemon stops: those under way are soon refused, later ones at once.

A submission may wait minutes for a TaskManager that will never come. This way its sender gets an answer instead of a
closed connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from minflinkd.rest.errors import RequestError
from minflinkd.runtime.errors import Consequence, Kind

R = TypeVar("R")

GRACE = 0.5  # seconds that requests have to finish by themselves
WITHDRAWAL = 3.0  # seconds that a cancelled request has to undo its work


class DaemonStopping(RequestError):
    """The daemon was told to stop. The request was not carried out; a submitted job is not accepted."""

    code = "daemon-stopping"
    consequence = Consequence.RETRYABLE
    kind = Kind.STOPPING
    status = 503


class Ending:
    """Created with the endpoint; `begin` is called once."""

    def __init__(self) -> None:
        self._begun = asyncio.Event()
        self._under_way: set[asyncio.Task[Any]] = set()

    async def carry_out(self, work: Coroutine[Any, Any, R]) -> R:
        """Run `work` and return its result. Raises what it raises, and DaemonStopping."""
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
        """Refuse requests from now on. Returns when those under way have ended or take too long to withdraw."""
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
