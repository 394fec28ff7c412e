"""The local disk without time limits, for tests in virtual time: whatever the disk does takes no time at all.

Each call is carried out at once, in the event loop. In a thread, as elsewhere, it would be invisible to the loop, whose
time jumps while nothing is due: minutes would pass while the disk is busy for half a second, and whoever waits for it
would give up.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from minflinkd.checkpoint.turn import StorageTurn
from minflinkd.storage.registry import Storages
from minflinkd_local import LocalStorage
from minflinkd_local.threads import MountThreads, Threads

T = TypeVar("T")


def untimed_storages() -> Storages:
    storages, local = Storages(), LocalStorage()
    local._threads = _AtOnce()
    storages.add(local)
    return storages


def untimed_turn(what: str) -> StorageTurn:
    """Return a turn that is waited for as long as it takes: hours of virtual time may be a moment of the disk's."""
    return StorageTurn(what, patience=7 * 24 * 3600.0)


class _AtOnce(MountThreads):
    def _of(self, path: str) -> Threads:
        return _NoThreads(path)


class _NoThreads(Threads):
    def submit(self, act: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(act())
        except Exception as error:
            future.set_exception(error)
        return future
