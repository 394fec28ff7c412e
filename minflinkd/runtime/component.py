"""The lifecycle of a component (A1): `start` returns when it is ready, `aclose` when everything is freed, whoever
began to close it.

A component that cannot trust its own state any more crashes: it says so, takes no message from then on, and leaves
it to its `runtime.supervisor.Supervisor` to put a new one in its place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

import structlog

from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.runtime.machine import IllegalTransition, InvariantViolated
from minflinkd.runtime.supervision import TaskOwner

log = structlog.get_logger(__name__)

R = TypeVar("R")


class Crashed(MinflinkError):
    """The party that was asked has crashed; another one takes its place."""

    code = "crashed"
    consequence = Consequence.RETRYABLE


class Component:
    """A part of a process with a life of its own. Dependencies come by keyword; nothing is global.

    Subclasses override `_start` and `_stop`, and `_on_crash` where they take messages. When `_start` raises, `_stop`
    runs before the error goes on, so a component that did not start leaves nothing behind.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.tasks = TaskOwner(name)
        self.crashed = asyncio.Event()
        self.crash_cause: Exception | None = None
        self.falls_with: Callable[[Exception], object] | None = None  # `crash` of the component that this is a part of
        self._started = False
        self._closing_task: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        return self._started and not self.crashed.is_set()

    async def start(self) -> None:
        try:
            await self._start()
        except BaseException:
            await self.tasks.aclose()
            await self._stop()
            raise
        self._started = True

    async def aclose(self) -> None:
        """Idempotent. Who is cancelled while it waits leaves the rest to go on, and to be waited for by others."""
        if self._closing_task is not None and self._closing_task.done() and not self._started:
            return
        closing = self.begin_closing()
        await asyncio.wait({closing})
        if not closing.cancelled():
            closing.result()

    def begin_closing(self) -> asyncio.Task[None]:
        """The one task that closes this, begun already where somebody has closed it before."""
        if self._closing_task is None or self._started:
            was_started, self._started = self._started, False
            self._closing_task = asyncio.create_task(self._wind_up(was_started), name=f"{self.name}: close")
        return self._closing_task

    async def _wind_up(self, was_started: bool) -> None:
        try:
            if was_started and not self.crashed.is_set():
                await self._before_stop()
        finally:
            await self.tasks.aclose()
            if was_started:
                await self._stop()

    def crash(self, error: Exception) -> Crashed:
        """Decide nothing any more; for an exception that deciding was not to raise. The first one counts.

        Returns what whoever asked is to be told: `raise self.crash(error) from error`.
        """
        if not self.crashed.is_set():
            self.crash_cause = error
            self.crashed.set()
            log.error("a component crashed", component=self.name, error=str(error), exc_info=error)
            self.tasks.abandon()
            self._on_crash()
            if self.falls_with is not None:
                self.falls_with(error)
        return Crashed(f"{self.name} crashed: {self.crash_cause}", hint="a new one is started; ask again")

    def deciding(self, act: Callable[[], R]) -> R:
        """Do `act`, which decides. Raises its refusals, and Crashed: where it raises what it was not to raise, the
        state is not to be trusted.
        """
        if self.crashed.is_set():
            raise Crashed(f"{self.name} crashed: {self.crash_cause}")
        try:
            return act()
        except (IllegalTransition, InvariantViolated) as error:
            raise self.crash(error) from error
        except MinflinkError:
            raise
        except Exception as error:
            raise self.crash(error) from error

    async def _start(self) -> None: ...

    async def _before_stop(self) -> None:
        """Last words, while the component's tasks still run; a crashed one has none."""

    async def _stop(self) -> None: ...

    def _on_crash(self) -> None:
        """Take no message any more: detach mailboxes. `_stop` follows in its time."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
