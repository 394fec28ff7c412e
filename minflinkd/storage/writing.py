"""Writes of many steps where no step may be missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from minflinkd.storage.interface import StorageUnavailable


class Unbroken:
    """The steps of one write.

    After a step that failed or was cancelled, a piece may be missing or still on its way. A commit then would create an
    object with a gap.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._broken = False

    @contextmanager
    def step(self) -> Iterator[None]:
        """Run one step. Raises StorageUnavailable, not worth retrying, if an earlier step did not succeed."""
        if self._broken:
            why = f"{self._path}: the write was broken off before"
            raise StorageUnavailable(why, hint="write it anew", settled=True)
        self._broken = True
        yield
        self._broken = False
