"""Watches an event loop: which callback has kept it for how long."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class LongestCallback:
    """`seconds` of processor time of the loop's thread. What other processes do to the machine does not count."""

    seconds: float = 0.0
    callback: str = "none"


@contextmanager
def watched(thread: threading.Thread) -> Iterator[LongestCallback]:
    """Measure the callbacks that run in the loop of this thread."""
    longest, run = LongestCallback(), asyncio.Handle._run

    def measured(handle: asyncio.Handle) -> Any:
        if threading.current_thread() is not thread:
            return run(handle)
        before = time.thread_time()
        try:
            return run(handle)
        finally:
            took = time.thread_time() - before
            if took > longest.seconds:
                longest.seconds, longest.callback = took, repr(handle)

    asyncio.Handle._run = measured  # type: ignore[method-assign]
    try:
        yield longest
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]
