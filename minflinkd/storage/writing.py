"""Writes of many steps, none of which may be missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from minflinkd.storage.interface import StorageUnavailable


class Unbroken:
    """The steps of one write. After one that failed or was cancelled, a piece may be missing or still be on its way:

    what was committed then would be an object with a gap.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._broken = False

    @contextmanager
    def step(self) -> Iterator[None]:
        """Raises StorageUnavailable, for good, where an earlier step has not ended well."""
        if self._broken:
            why = f"{self._path}: the write was broken off before"
            raise StorageUnavailable(why, hint="write it anew", settled=True)
        self._broken = True
        yield
        self._broken = False
