"""The storage that all daemons share: objects in memory, which take a while to be written, read and deleted.

A request can be carried out although the process that made it is dead before the answer arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from minflinkd.checkpoint import layout
from minflinkd.checkpoint.metadata import decode
from minflinkd.storage.interface import Entry
from tests.sim.checkpoint.world import MemoryStorage
from tests.sim.protocol.universe import Universe


class SharedStorage(MemoryStorage):
    """`files`: the physical files that each metadata file names. `gone` is told of each deleted object."""

    def __init__(self, universe: Universe, delay: float, gone: Callable[[str], None]) -> None:
        super().__init__()
        self.files: dict[str, frozenset[str]] = {}
        self._universe = universe
        self._delay = delay
        self._gone = gone

    async def _pass(self) -> None:
        await asyncio.sleep(self._delay / 2 * self._universe.rng.random())

    async def answer(self, path: str, act: Callable[[], object]) -> None:
        await self._pass()
        there = path in self.objects
        act()
        directory, _, name = path.rpartition("/")
        if there and path not in self.objects:
            self.files.pop(path, None)
            self._gone(path)
        elif layout.parse_metadata_file(name) is not None and path in self.objects:
            named = decode(self.objects[path]).physical_files()
            self.files[path] = frozenset(f"{directory}/{file}" for file in named)
        await self._pass()

    async def open_read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        await self._pass()
        async for piece in super().open_read(path, offset, length):
            yield piece

    async def create_exclusive(self, path: str, data: bytes) -> None:
        await self._pass()
        await super().create_exclusive(path, data)
        await self._pass()

    async def list(self, prefix: str) -> AsyncIterator[Entry]:
        await self._pass()
        for entry in [entry async for entry in super().list(prefix)]:
            yield entry

    async def delete(self, paths: Sequence[str], *, below: str | None = None) -> None:
        for path in paths:
            await self.answer(path, lambda path=path: self.objects.pop(path, None))  # type: ignore[misc]
