"""Watches an event loop: which callback has kept it for how long."""

from __future__ import annotations

import asyncio
import gc
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
    """Measure the callbacks that run in the loop of this thread.

    Collecting garbage does not count: the heap is that of the whole test process, and a daemon collects it seldom.
    """
    longest, run = LongestCallback(), asyncio.Handle._run
    began, collecting = 0.0, 0.0

    def collection(phase: str, _: dict[str, int]) -> None:
        nonlocal began, collecting
        if threading.current_thread() is thread:
            if phase == "start":
                began = time.thread_time()
            else:
                collecting += time.thread_time() - began

    def measured(handle: asyncio.Handle) -> Any:
        if threading.current_thread() is not thread:
            return run(handle)
        before, collected = time.thread_time(), collecting
        try:
            return run(handle)
        finally:
            took = time.thread_time() - before - (collecting - collected)
            if took > longest.seconds:
                longest.seconds, longest.callback = took, repr(handle)

    asyncio.Handle._run = measured  # type: ignore[method-assign]
    gc.callbacks.append(collection)
    try:
        yield longest
    finally:
        gc.callbacks.remove(collection)
        asyncio.Handle._run = run  # type: ignore[method-assign]
