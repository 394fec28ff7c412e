"""Keeps one component running: closes a crashed one and starts a new one (A1)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import structlog

from minflinkd.runtime.clock import Clock
from minflinkd.runtime.component import Component, Crashed

log = structlog.get_logger(__name__)

FIRST_PAUSE = 0.1  # seconds before a new one is started; doubles with every crash
LONGEST_PAUSE = 10.0
QUIET = 60.0  # seconds without a crash after which the pause is reset
START_TIMEOUT = 60.0  # seconds; a longer start counts as failed, because others wait for the gate
CLOSE_TIMEOUT = 10.0

C = TypeVar("C", bound=Component)


async def nothing() -> None:
    """Do nothing: the preparation of components that need none."""


class Supervisor(Component, Generic[C]):
    """Runs one component at a time, created by `make`.

    `start` starts the first component and raises what it raises; with `insist` it retries instead, as after a crash.
    `prepare` runs before each component is created; if it fails, the component has failed. It runs outside the gate."""

    def __init__(
        self,
        name: str,
        make: Callable[[], C],
        *,
        clock: Clock,
        insist: bool = False,
        gate: asyncio.Semaphore | None = None,
        prepare: Callable[[], Awaitable[None]] = nothing,
        on_up: Callable[[C], object] = lambda _: None,
        on_down: Callable[[Exception], object] = lambda _: None,
    ) -> None:
        super().__init__(f"supervisor of {name}")
        self._what = name
        self._make = make
        self._clock = clock
        self._insist = insist
        self._prepare = prepare
        self._gate = gate or asyncio.Semaphore()
        self._on_up = on_up
        self._on_down = on_down
        self._current: C | None = None
        self._given_up: set[asyncio.Task[None]] = set()  # starts and closings that hang even when cancelled
        self._up_since = 0.0
        self._hurried = asyncio.Event()
        self._succession = asyncio.Event()
        self._retired = False
        self.error: Exception | None = None  # why there is no component now, or why there was none last time
        self.failures = 0  # crashes and failed starts

    @property
    def current(self) -> C | None:
        """The running component; None if there is none."""
        return self._current if self._current is not None and self._current.running else None

    def retire(self) -> None:
        """Start no further component, even if the current one crashes. `aclose` closes it."""
        self._retired = True
        self.tasks.abandon()

    def hurry(self) -> None:
        """Somebody is waiting: if the component is down, try again now, and start over with short pauses."""
        self._hurried.set()

    def succeed(self) -> None:
        """Close the current component and create another one at once. If there is none, act like `hurry`."""
        self._succession.set()
        if self.current is None:
            self.hurry()

    async def _start(self) -> None:
        try:
            await self._bring_up()
        except Exception as error:
            if not self._insist:
                raise
            self._failed(error)
        self.tasks.loop(f"keep {self._what} running", self._keep)

    async def _stop(self) -> None:
        await self._close()

    async def _keep(self) -> None:
        pause = FIRST_PAUSE
        while True:
            planned = False
            if self._current is not None:
                await _first(self._current.crashed, self._succession)
                planned = not self._current.crashed.is_set()
                if not planned:
                    self._failed(self._current.crash_cause or Crashed(f"{self._what} crashed"))
                if self._retired:  # `_failed` has called somebody who retired it
                    return
                if self._clock.monotonic() - self._up_since >= QUIET:
                    pause = FIRST_PAUSE
                await self._close()
            if not planned:
                pause = FIRST_PAUSE if await self._hurried_within(pause) else min(2 * pause, LONGEST_PAUSE)
            try:
                await self._bring_up()
            except Exception as error:
                self._failed(error)
                if self._retired:
                    return

    async def _bring_up(self) -> None:
        await self._prepare()
        async with self._gate:
            self._succession.clear()  # a request from now on asks for the component after this one
            component = self._make()
            try:
                await self._start_bounded(component)
            except Crashed as told:
                raise component.crash_cause or told from None
            self._current, self._up_since = component, self._clock.monotonic()
        self._hurried.clear()
        self._on_up(component)

    async def _start_bounded(self, component: C) -> None:
        """Start within a time limit. A start that hangs may ignore its cancellation too; it is then abandoned."""
        start = asyncio.create_task(component.start(), name=f"{self.name}: start")
        try:
            await asyncio.wait({start}, timeout=START_TIMEOUT)
            if not start.done():
                raise Crashed(f"{self._what} has not started within {START_TIMEOUT:g} s")
        finally:
            if self._give_up(start):
                await asyncio.wait({start}, timeout=CLOSE_TIMEOUT)
        start.result()

    def _give_up(self, task: asyncio.Task[None]) -> bool:
        """Cancel a task and stop waiting for it. Returns false if it is already done."""
        if not task.cancel():
            return False
        self._given_up.add(task)
        task.add_done_callback(self._ended_after_all)
        return True

    def _ended_after_all(self, task: asyncio.Task[None]) -> None:
        self._given_up.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("what was given up failed", component=self._what, task=task.get_name(), error=_line(error))

    async def _hurried_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._hurried.wait()
        except TimeoutError:
            return False
        self._hurried.clear()
        return True

    def _failed(self, error: Exception) -> None:
        self.error = error
        self.failures += 1
        log.warning("a component is down", component=self._what, failures=self.failures, error=_line(error))
        self._on_down(error)

    async def _close(self) -> None:
        """Close within a time limit. A component that does not end is abandoned: it can decide nothing any more."""
        if self._current is None:
            return
        closing = self._current.begin_closing()
        await asyncio.wait({closing}, timeout=CLOSE_TIMEOUT)  # closing continues if this is cancelled
        self._current = None
        if self._give_up(closing):
            log.error("a component does not end", component=self._what)
        elif not closing.cancelled() and (error := closing.exception()) is not None:
            log.error("a component did not end well", component=self._what, exc_info=error)


async def _first(*events: asyncio.Event) -> None:
    """Wait until one of the events is set."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def _line(error: BaseException) -> str:
    """Return the first line of an error, without the story, which was logged where the error happened."""
    return str(error).partition("\n")[0]
