"""Named, owned, guarded asyncio tasks.

Every task of a process belongs to one `TaskOwner`; nothing is fired and forgotten. A *loop* should run until it is
cancelled. If it fails, the failure is logged and the loop is restarted after a growing pause; if it returns, that is
logged too. A *job* may end; its failure goes to `on_error` or the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog

log = structlog.get_logger(__name__)

FIRST_PAUSE = 0.1  # seconds
LONGEST_PAUSE = 10.0


class TaskOwner:
    """The tasks of one component. `aclose` cancels them, waits, and logs the names of those that do not end."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def closed(self) -> bool:
        """Whether it refuses to start new tasks."""
        return self._closed

    def names(self) -> list[str]:
        return sorted(task.get_name() for task in self._tasks)

    def loop(self, name: str, body: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Run `body` forever. If it fails, the failure is logged and the body is restarted."""
        return self._spawn(name, self._guard(name, body))

    def job(
        self,
        name: str,
        coroutine: Coroutine[Any, Any, None],
        *,
        on_error: Callable[[Exception], object] | None = None,
    ) -> asyncio.Task[None]:
        """Run one coroutine to its end."""
        try:
            task = self._spawn(name, self._once(name, coroutine, on_error))
        except RuntimeError:
            coroutine.close()
            raise
        task.add_done_callback(lambda _: coroutine.close())  # needed if cancelled before the first step
        return task

    def abandon(self) -> None:
        """Start no more tasks, and cancel all except the calling one. `aclose` waits for them."""
        self._closed = True
        for task in self._others():
            task.cancel()

    async def aclose(self, timeout: float = 5.0) -> None:
        """Cancel all tasks and wait for them, but not for the calling task. Idempotent."""
        self.abandon()
        waiting = self._others()
        if not waiting:
            return
        _, stuck = await asyncio.wait(waiting, timeout=timeout)
        for task in stuck:
            log.error("task does not end", owner=self.name, task=task.get_name(), stack=str(task.get_stack(limit=3)))

    def _others(self) -> set[asyncio.Task[None]]:
        current = asyncio.current_task()
        return {task for task in self._tasks if task is not current}

    def _spawn(self, name: str, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        if self._closed:
            coroutine.close()
            raise RuntimeError(f"{self.name} is closed; it cannot start {name!r}")
        task = asyncio.get_running_loop().create_task(coroutine, name=f"{self.name}: {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _guard(self, name: str, body: Callable[[], Awaitable[None]]) -> None:
        pause = FIRST_PAUSE
        clock = asyncio.get_running_loop().time
        while True:
            started = clock()
            try:
                await body()
                if self._closed:
                    return
                log.error("a loop that should run for ever returned", owner=self.name, loop=name)
            except Exception:
                if self._closed:  # the component has crashed or is closing
                    return
                log.exception("a loop failed and is started again", owner=self.name, loop=name, pause=pause)
            if clock() - started > LONGEST_PAUSE:
                pause = FIRST_PAUSE
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _once(
        self, name: str, coroutine: Coroutine[Any, Any, None], on_error: Callable[[Exception], object] | None
    ) -> None:
        try:
            await coroutine
        except Exception as error:
            if on_error is None:
                log.exception("a task failed", owner=self.name, task=name)
            else:
                on_error(error)
