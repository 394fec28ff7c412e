"""A storage as a daemon sees it that is killed."""

from __future__ import annotations

from minflinkd.storage.faulty import FaultyStorage
from minflinkd.storage.interface import StorageUnavailable


class DyingStorage(FaultyStorage):
    """A storage in which every request fails from the n-th on, as for a process that was killed then.

    The n-th request may have been carried out.
    """

    dead = False

    def _count(self, *, done: bool) -> None:
        if self.dead:
            raise StorageUnavailable("injected: dead")
        try:
            super()._count(done=done)
        except StorageUnavailable:
            self.dead = True
            raise
