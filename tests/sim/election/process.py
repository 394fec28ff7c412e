"""A process with an event loop in the virtual time of a run. It can be stopped and continued, and die.

So the real asyncio code of the election, the records and the checkpoints runs here unchanged.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any

from minflinkd.runtime.clock import SystemClock
from tests.sim.protocol.journal import Violation
from tests.sim.protocol.party import WAKING
from tests.sim.protocol.universe import Universe

TRIES = 4  # to cancel a task: it may go on after some
TURNS = 30


class NumberedTask(asyncio.Task[Any]):
    """A task whose place in a set does not depend on where it lies in memory, so that a seed repeats a run exactly."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class Process(asyncio.AbstractEventLoop):
    """`pace`: seconds that pass on its clock for each true one."""

    def __init__(self, universe: Universe, name: str, pace: float, turned: Callable[[], None]) -> None:
        """`turned` is called after each turn of the loop."""
        self.name = name
        self.alive = True
        self.stopped = False  # as by SIGSTOP: whatever arrives waits
        self.stood_still = 0.0  # true seconds for which it was stopped so far
        self.stopped_at = 0.0
        self._universe = universe
        self._engine = universe.engine
        self._pace = pace
        self._ready: deque[asyncio.Handle] = deque()
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._turned = turned
        self._over = False

    # --- process -----------------------------------------------------------------------------------------------------

    def gate(self, act: Callable[..., None], *args: Any) -> None:
        """Let something happen to the process. Every event comes through here."""
        if self.stopped:
            self._backlog.append((act, args))
        elif self.alive:
            with self.running():
                act(*args)

    def after(self, delay: float, act: Callable[..., None], *args: Any) -> None:
        """Act in this process after so many true seconds, if it lives then."""
        self._engine.after(delay, self.gate, act, *args)

    def stop_for_now(self) -> None:
        self.stopped, self.stopped_at = True, self._engine.now

    def go_on(self) -> None:
        """Continue. What became due meanwhile happens now, sockets and timers in any order."""
        if not self.alive or not self.stopped:
            return
        self.stopped = False
        self.stood_still += self._engine.now - self.stopped_at
        backlog, self._backlog = self._backlog, []
        for act, args in backlog:
            self.after(WAKING * self._universe.rng.random(), act, *args)

    def die(self) -> None:
        self.alive = self.stopped = False
        self._backlog.clear()
        self._ready.clear()

    def close(self) -> None:
        """End what still runs here when the run is over. Nothing else happens any more."""
        self._over = True
        with self.running():
            for _ in range(TRIES):
                for task in self._tasks:
                    task.cancel()
                for _ in range(TURNS):
                    ready, self._ready = self._ready, deque()
                    for handle in ready:
                        if not handle.cancelled():
                            handle._run()
                self._tasks = [task for task in self._tasks if not task.done()]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let code that is called from outside find this loop."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            yield
        finally:
            asyncio._set_running_loop(before)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine of the simulation's own. It must not fail."""
        task = self.create_task(work)
        task.add_done_callback(self._looked_at)
        return task

    def _looked_at(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            told = error if isinstance(error, Violation) else Violation(f"{self.name} failed: {error!r}")
            self._engine.after(0.0, _raise, told)

    # --- event loop --------------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._engine.now * self._pace

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self._ready and not self._over:
            self._engine.after(0.0, self.gate, self._turn)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._engine.at(when / self._pace, self.gate, self._due, timer)
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        task = NumberedTask(coro, loop=self, name=name, context=context)
        task.number = len(self._tasks)
        self._tasks.append(task)  # kept until `close`: what is collected is closed at some moment
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if isinstance(error := context.get("exception"), Violation):
            self._engine.after(0.0, _raise, error)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def _turn(self) -> None:
        ready, self._ready = self._ready, deque()
        for handle in ready:
            if not handle.cancelled():
                handle._run()
        self._turned()

    def _due(self, timer: asyncio.TimerHandle) -> None:
        if not timer.cancelled():
            timer._run()
            self._turned()


class ProcessClock(SystemClock):
    """Goes on while the process is stopped, as the elector's own clock does."""

    def __init__(self, process: Process) -> None:
        self.process = process

    def monotonic(self) -> float:
        return self.process.time()

    def epoch_ms(self) -> int:
        return round(self.process.time() * 1000)


def _raise(error: Violation) -> None:
    raise error
