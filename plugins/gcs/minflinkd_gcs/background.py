"""Runs work of Google's libraries that may hang, in threads that keep neither the loop nor the process from ending."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar, cast

from minflinkd.storage.interface import StorageUnavailable

T = TypeVar("T")


class SharedWork(Generic[T]):
    """Work that concurrent callers share. A cancelled caller does not cancel it for the others."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._under_way: asyncio.Future[T] | None = None

    async def __call__(self, work: Callable[[], T]) -> T:
        """Return or raise what `work` does. Raises StorageUnavailable if no thread can be started."""
        if self._under_way is None or self._under_way.done():
            self._under_way = self._start(work)
        return await asyncio.shield(self._under_way)

    def _start(self, work: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: Exception | None) -> None:
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(cast("T", result))

        def run() -> None:
            result, failure = None, None
            try:
                result = work()
            except Exception as error:
                failure = error
            with suppress(RuntimeError):  # the loop is closed, so nobody waits any more
                loop.call_soon_threadsafe(settle, result, failure)

        try:
            threading.Thread(target=run, name=self._name, daemon=True).start()
        except RuntimeError as error:
            raise StorageUnavailable(f"gs: {self._name}: {error}") from error
        future.add_done_callback(_take_note)
        return future


def _take_note(future: asyncio.Future[T]) -> None:
    if not future.cancelled():
        future.exception()  # mark as retrieved, even if nobody waits any more
