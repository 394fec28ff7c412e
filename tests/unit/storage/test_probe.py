"""What is shown about a place is what holds there, not what the backend says about itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from minflinkd.storage.conformance import read, write
from minflinkd.storage.probe import probe
from minflinkd.storage.registry import Storages
from minflinkd_local import LocalStorage


async def a_while(storage: LocalStorage, path: str) -> None:
    """Wait until a concurrent check must have looked several times, however the threads take turns."""
    for _ in range(50):
        await storage.stat(path)


class Copies(LocalStorage):
    """Its rename is a copy and a deletion."""

    async def rename(self, source: str, target: str) -> None:
        data = await read(self, source)
        await write(self, target, data)
        await a_while(self, source)
        await self.delete([source])


class MakesRoom(LocalStorage):
    """Its rename replaces nothing, so it deletes the target before."""

    async def rename(self, source: str, target: str) -> None:
        await self.stat(source)
        await self.delete([target])
        await a_while(self, source)
        await super().rename(source, target)


async def findings(storage: LocalStorage, directory: Path) -> dict[str, str]:
    """Return the problem of each declared capability."""
    storages = Storages()
    storages.add(storage)
    found = {one.name: one.problem async for one in probe(storages.at(str(directory))) if one.declared}
    await storages.aclose()
    return found


async def test_what_holds_is_found_to_hold_and_nothing_is_left(tmp_path: Path) -> None:
    assert set((await findings(LocalStorage(), tmp_path)).values()) == {""}
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("storage", "said"),
    [
        (Copies(), "source and target were both there during a rename"),
        (MakesRoom(), "the target was not there during a rename"),
    ],
    ids=["copies", "makes room"],
)
async def test_a_rename_that_can_be_seen_half_is_refuted(tmp_path: Path, storage: LocalStorage, said: str) -> None:
    found = await findings(storage, tmp_path)
    assert found.pop("atomic-rename") == said
    assert set(found.values()) == {""}
