"""The lifecycle of a component (A1): `start` returns when it is ready, `aclose` is idempotent and frees everything."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from minflinkd.runtime.supervision import TaskOwner


class Component:
    """A part of a process with a life of its own. Dependencies come by keyword; nothing is global.

    Subclasses override `_start` and `_stop`. When `_start` raises, `_stop` runs before the error goes on, so a
    component that did not start leaves nothing behind.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.tasks = TaskOwner(name)
        self._running = False

    @property
    def running(self) -> bool:
        return self._running

    async def start(self) -> None:
        try:
            await self._start()
        except BaseException:
            await self.tasks.aclose()
            await self._stop()
            raise
        self._running = True

    async def aclose(self) -> None:
        was_running, self._running = self._running, False
        try:
            if was_running:
                await self._before_stop()
        finally:
            await self.tasks.aclose()
            if was_running:
                await self._stop()

    async def _start(self) -> None: ...

    async def _before_stop(self) -> None:
        """Last words, while the component's tasks still run."""

    async def _stop(self) -> None: ...

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
