"""Runs a blocking call in a thread of its own, for calls that may never return.

A thread of an executor would be joined at the end of the process, and a call that hangs would keep it alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def in_own_thread(action: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Start `action`. If nobody waits any more, its thread ends with the call, or with the process."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(result: T) -> None:
        if not done.done():
            done.set_result(result)

    def tell_failure(error: Exception) -> None:
        if not done.done():
            done.set_exception(error)

    def run() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            try:
                result = action()
            except Exception as error:
                loop.call_soon_threadsafe(tell_failure, error)
            else:
                loop.call_soon_threadsafe(tell, result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return done
