"""The lifecycle of a component (A1): `start` returns when it is ready, `aclose` when everything is freed.

A component that can no longer trust its own state crashes: it sets `crashed`, accepts no more messages, and its
`runtime.supervisor.Supervisor` replaces it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

import structlog

from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.runtime.supervision import TaskOwner

log = structlog.get_logger(__name__)


class Crashed(MinflinkError):
    """The party that was asked has crashed. A new one replaces it."""

    code = "crashed"
    consequence = Consequence.RETRYABLE


class Component:
    """A part of a process with its own lifecycle. Dependencies are passed by keyword; nothing is global.

    Subclasses override `_start` and `_stop`, and `_on_crash` if they accept messages. If `_start` raises, `_stop` runs
    before the error propagates, so that a component that did not start leaves nothing behind.
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
        """Close the component. Idempotent. If the caller is cancelled, closing continues and others can wait for it."""
        if self._closing_task is not None and self._closing_task.done() and not self._started:
            return
        closing = self.begin_closing()
        await asyncio.wait({closing})
        if not closing.cancelled():
            closing.result()

    def begin_closing(self) -> asyncio.Task[None]:
        """Return the one task that closes this component. Starts it unless closing has begun."""
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
        """Stop deciding, after an exception that no decision should raise. Only the first call counts.

        Returns the error for the caller: `raise self.crash(error) from error`.
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

    def raise_if_crashed(self) -> None:
        """Raises Crashed. Call it before each decision: after a crash the state cannot be trusted."""
        if self.crashed.is_set():
            raise Crashed(f"{self.name} crashed: {self.crash_cause}")

    async def _start(self) -> None: ...

    async def _before_stop(self) -> None:
        """Runs while the component's tasks still run; skipped after a crash."""

    async def _stop(self) -> None: ...

    def _on_crash(self) -> None:
        """Accept no more messages: detach mailboxes. `_stop` follows later."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
