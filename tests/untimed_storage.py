"""The local disk for tests in virtual time: while a thread works on it, time passes no faster than on a clock.

Otherwise minutes pass while the disk is busy for half a second, and whoever waits for it gives up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from minflinkd.checkpoint.turn import StorageTurn
from minflinkd.storage.registry import Storages
from minflinkd_local import LocalStorage
from minflinkd_local.threads import MountThreads, Threads

T = TypeVar("T")


def untimed_storages() -> Storages:
    storages, local = Storages(), LocalStorage()
    local._threads = _SeenThreads()
    storages.add(local)
    return storages


def untimed_turn(what: str) -> StorageTurn:
    """Return a turn that is waited for as long as it takes: hours of virtual time may be a moment of the disk's."""
    return StorageTurn(what, patience=7 * 24 * 3600.0)


class _SeenThreads(MountThreads):
    """Tells the event loop of each call in a thread. looptime lets time jump only while there is none."""

    def _of(self, path: str) -> Threads:
        return _Telling(super()._of(path))


class _Telling(Threads):
    def __init__(self, threads: Threads) -> None:
        super().__init__("told")
        self._those = threads

    def submit(self, act: Callable[[], T]) -> Future[T]:
        future = self._those.submit(act)
        told = asyncio.get_running_loop().run_in_executor(_Begun(), lambda: future)
        told.add_done_callback(lambda done: done.cancelled() or done.exception())  # its caller gets the error
        return future


class _Begun(Executor):
    """Runs nothing: what it is given returns the future of a call that has begun."""

    def submit(self, begun: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = begun()
        return future
