"""Temporary files of writers that were killed: hidden, and deleted when a directory that they keep from going is met.

Nothing tells such a file from one that is being written but its age and its lease: the NameNode lets nobody append to a
file whose writer has been heard of within the last minute.
"""

from __future__ import annotations

import time
from collections.abc import Container

from hdfs_native import AsyncClient

from minflinkd.storage.interface import StorageUnavailable
from minflinkd.storage.temporary import is_temporary
from minflinkd_hdfs.errors import hdfs_errors

_REMEMBERED = 10_000  # directories


class Leftovers:
    """Of one process. A directory is looked through once in `age` seconds, however often it is met."""

    def __init__(self, age: float) -> None:
        self._age = age
        self._met: dict[tuple[str, str], tuple[float, str]] = {}  # (authority, directory) -> (time of next look, bound)

    async def clear(self, client: AsyncClient, authority: str, directory: str, bound: str) -> bool:
        """Delete those in a directory that could not be removed. Whether it may be empty now.

        `bound`: which of the directories above it stay, when it goes at last.
        """
        place = authority, directory
        if time.monotonic() < self._met.get(place, (0.0, ""))[0]:
            return False
        temporary, other = list[str](), False
        with hdfs_errors(authority + directory):
            try:
                async for status in client.list_status(directory):
                    if status.isdir or not is_temporary(status.path):
                        other = True
                    elif not (self._is_old(status.modification_time) and await _delete_dead(client, status.path)):
                        temporary.append(status.path)
            except FileNotFoundError:
                return False
        if not other and not temporary:
            self._met.pop(place, None)
            return True
        self.look_later(authority, directory, bound)
        return False

    def due(self, authorities: Container[str]) -> list[tuple[str, str, str]]:
        """(authority, directory, bound) of those to be looked through again, on these NameNodes."""
        now = time.monotonic()
        return [(*at, bound) for at, (when, bound) in self._met.items() if when <= now and at[0] in authorities]

    def look_later(self, authority: str, directory: str, bound: str) -> None:
        while len(self._met) >= _REMEMBERED:
            del self._met[next(iter(self._met))]
        self._met[authority, directory] = time.monotonic() + self._age, bound

    def forget(self, authority: str, directory: str) -> None:
        self._met.pop((authority, directory), None)

    def _is_old(self, modified_ms: int) -> bool:
        return modified_ms / 1000 < time.time() - self._age


async def _delete_dead(client: AsyncClient, name: str) -> bool:
    """Delete a temporary file, unless its writer holds its lease. Whether it is gone."""
    try:
        with hdfs_errors(name):
            try:
                await client.append(name)
            except FileExistsError:
                return False  # its writer lives
            except FileNotFoundError:
                return True
    except StorageUnavailable as error:
        if "RecoveryInProgressException" not in error.message:  # of a lease that has run out
            raise
    with hdfs_errors(name):
        await client.delete(name)
    return True
