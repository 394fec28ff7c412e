"""Work of Google's libraries that may hang: in threads that neither the loop's end nor the process's waits for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar, cast

from minflinkd.storage.interface import StorageUnavailable

T = TypeVar("T")


class SharedWork(Generic[T]):
    """Of one kind: who asks for it while it is under way waits for that; one who is cancelled leaves it to others."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._under_way: asyncio.Future[T] | None = None

    async def __call__(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises. Raises StorageUnavailable where no thread can be had."""
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
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, result, failure)

        try:
            threading.Thread(target=run, name=self._name, daemon=True).start()
        except RuntimeError as error:
            raise StorageUnavailable(f"gs: {self._name}: {error}") from error
        future.add_done_callback(_take_note)
        return future


def _take_note(future: asyncio.Future[T]) -> None:
    if not future.cancelled():
        future.exception()  # also where nobody waits any more
