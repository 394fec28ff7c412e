"""Hidden temporary files of killed writers. They are deleted when they keep a directory from being deleted.

Only its age and its lease tell such a file from one that is being written: the NameNode lets nobody append to a file if
it has heard from the writer within the last minute.
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
    """The leftovers that one process has found. A directory is searched at most once in `age` seconds."""

    def __init__(self, age: float) -> None:
        self._age = age
        self._met: dict[tuple[str, str], tuple[float, str]] = {}  # (authority, directory) -> (next search, bound)

    async def clear(self, client: AsyncClient, authority: str, directory: str, bound: str) -> bool:
        """Delete the leftovers in a directory that could not be deleted. Returns whether it may be empty now.

        When the directory is deleted at last, so are its empty parents below `bound`.
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
        """Return (authority, directory, bound) of directories on these NameNodes that should be searched again."""
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
    """Delete a temporary file unless its writer holds its lease. Returns whether it is gone."""
    try:
        with hdfs_errors(name):
            try:
                await client.append(name)
            except FileExistsError:
                return False  # its writer is alive
            except FileNotFoundError:
                return True
    except StorageUnavailable as error:
        if "RecoveryInProgressException" not in error.message:  # the lease has expired
            raise
    with hdfs_errors(name):
        await client.delete(name)
    return True
