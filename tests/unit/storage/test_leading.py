"""Storage that only the leader writes (A11)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from minflinkd.storage.interface import StorageUnavailable
from minflinkd.storage.leading import WrittenByLeader
from minflinkd.storage.location import Location
from minflinkd.storage.options import CommonOptions
from minflinkd.storage.registry import Storages
from minflinkd.storage.resilient import ResilientStorage
from tests.unit.storage.memory import Memory

CHANGES: dict[str, Callable[[Location], Awaitable[object]]] = {
    "create": lambda place: place.child("new").write_bytes(b"new"),
    "create_exclusive": lambda place: place.child("new").create_exclusive(b"new"),
    "delete": lambda place: place.child("old").delete(),
    "delete_children": lambda place: place.delete_children(["old"]),
    "delete_tree": lambda place: place.delete_tree(),
    "rename": lambda place: place.child("old").rename(place.child("new")),
    "copy": lambda place: place.storage.copy(place.child("old").path, place.child("new").path),
}


class Leadership:
    lasts = True


@pytest.mark.parametrize("change", CHANGES)
async def test_one_that_leads_no_more_changes_nothing(tmp_path: Path, change: str) -> None:
    """It may read: whoever reads harms nobody (A11)."""
    leadership = Leadership()
    storages = Storages(leads=lambda: leadership.lasts)
    place = storages.at(str(tmp_path))
    await place.child("old").write_bytes(b"old")
    leadership.lasts = False
    with pytest.raises(StorageUnavailable, match="not certain that this daemon leads"):
        await CHANGES[change](place)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert await place.child("old").read_bytes() == b"old"
    leadership.lasts = True
    await CHANGES[change](place)
    await storages.aclose()


async def test_a_write_that_was_begun_by_the_leader_is_not_ended_by_one_that_leads_no_more(tmp_path: Path) -> None:
    """The object does not appear, and nothing is left of it (A11)."""
    leadership = Leadership()
    storages = Storages(leads=lambda: leadership.lasts)
    async with await storages.at(str(tmp_path)).child("a").create() as writer:
        await writer.append(b"data")
        leadership.lasts = False
        with pytest.raises(StorageUnavailable, match="not certain that this daemon leads"):
            await writer.commit()
    assert list(tmp_path.iterdir()) == []
    await storages.aclose()


async def test_a_request_is_not_repeated_after_the_end_of_the_leadership() -> None:
    """A storage that did not answer the leader may answer again when another one leads (A11)."""
    asked = 0

    def leads() -> bool:
        nonlocal asked
        asked += 1
        return asked < 2

    memory = Memory(old=b"old")
    memory.script = [StorageUnavailable("away")]
    storage = ResilientStorage(WrittenByLeader(memory, leads), CommonOptions(pause=0))
    with pytest.raises(StorageUnavailable, match="not certain that this daemon leads"):
        await storage.delete(["old"])
    assert (asked, memory.objects) == (2, {"old": b"old"})
    await storage.aclose()
