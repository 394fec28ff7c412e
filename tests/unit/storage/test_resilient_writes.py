"""Which writes, renames, exclusive creates and deletions may be repeated, and which may not (S4)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from minflinkd.storage.interface import (
    Capabilities,
    Entry,
    ObjectExists,
    ObjectNotFound,
    StorageFull,
    StorageUnavailable,
)
from minflinkd.storage.multipart import MultipartStorage, Part
from minflinkd.storage.options import CommonOptions
from tests.unit.storage.memory import LOST, OPTIONS, Memory, around, fill, now, unavailable, write

pytestmark = pytest.mark.looptime


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("before", [b"old.", b"longer than it", None])
async def test_a_rename_that_never_arrived_is_not_taken_for_done(before: bytes | None, atomic: bool) -> None:
    """Another process removed the source meanwhile. The object at the target was there before, whatever its size."""

    class Robbed(Memory):
        capabilities = Capabilities(atomic_rename=atomic)

        def entry(self, path: str) -> Entry:
            found = super().entry(path)
            return Entry(path, found.size, 1 if path == "b" else 2, found.version)

        async def rename(self, source: str, target: str) -> None:
            if source in self.objects:
                del self.objects[source]
                raise LOST
            await super().rename(source, target)

    memory = Robbed(a=b"new!", **({} if before is None else {"b": before}))
    with pytest.raises(ObjectNotFound):
        await around(memory).rename("a", "b")
    assert memory.objects == ({} if before is None else {"b": before})


async def test_a_rename_whose_answer_was_lost_has_succeeded() -> None:
    memory = Memory(a=b"new", b=b"old")
    memory.script = ["", "lost"]
    await around(memory).rename("a", "b")
    assert memory.objects == {"b": b"new"}


async def test_a_rename_without_a_source_is_not_found_whatever_lies_at_the_target() -> None:
    memory = Memory(b=b"old")
    memory.script = [unavailable()]
    with pytest.raises(ObjectNotFound, match="a"):
        await around(memory).rename("a", "b")


async def test_a_rename_that_another_took_away_is_not_found() -> None:
    """The source existed, an answer was lost, and now neither exists: nobody can say that it is at the target."""
    memory = Memory(a=b"new")

    class Thief(Memory):
        async def rename(self, source: str, target: str) -> None:
            self.objects.pop(source, None)
            await super().rename(source, target)

    thief = Thief(**memory.objects)
    thief.script = ["", unavailable()]
    with pytest.raises(ObjectNotFound):
        await around(thief).rename("a", "b")


async def test_an_exclusive_create_whose_answer_was_lost_has_won() -> None:
    memory = Memory()
    memory.script = ["lost"]
    await around(memory).create_exclusive("x", b"mine")
    assert memory.objects["x"] == b"mine"


@pytest.mark.parametrize("rival", [b"his", b"mine, and more", b"", b"min"])
async def test_an_exclusive_create_that_a_rival_won_meanwhile_has_lost(rival: bytes) -> None:
    memory = Memory()
    memory.script = ["hang"]
    task = asyncio.create_task(around(memory).create_exclusive("x", b"mine"))
    await asyncio.sleep(1)
    memory.put("x", rival)
    with pytest.raises(ObjectExists):
        await task


async def test_an_exclusive_create_that_loses_at_first_has_lost_even_to_equal_bytes() -> None:
    with pytest.raises(ObjectExists):
        await around(Memory(x=b"mine")).create_exclusive("x", b"mine")


async def test_a_deletion_whose_answer_was_lost_is_done() -> None:
    memory = Memory(x=b"1")
    memory.script = ["lost"]
    await around(memory).delete(["x"])
    assert memory.objects == {}


# Writing


async def test_no_request_of_a_plain_writer_is_repeated() -> None:
    """An append may have arrived although its answer did not. The write fails, and the caller repeats all of it."""
    scripts: list[list[str | Exception]] = [["", unavailable()], ["", "hang"], ["", "", "lost"]]
    for script in scripts:
        memory = Memory()
        memory.script = script
        writer = await around(memory).create("x")
        with pytest.raises(StorageUnavailable):
            await fill(writer, b"1")
        for step in (writer.append(b"2"), writer.commit()):
            with pytest.raises(StorageUnavailable):
                await step
        await writer.abort()
        assert memory.requests.count("append") == 1
        assert memory.requests.count("commit") <= 1


async def test_a_commit_has_the_whole_deadline() -> None:
    memory = Memory()
    memory.script = ["", "", "hang"]
    began = now()
    with pytest.raises(StorageUnavailable):
        await write(around(memory), "x", b"1")
    assert OPTIONS.deadline <= now() - began < OPTIONS.deadline + 1
    assert memory.requests[-1] == "abort"


async def test_nothing_that_comes_after_a_commit_makes_the_write_fail() -> None:
    memory = Memory(x=b"1")
    storage = around(memory)
    async with await storage.create("y") as writer:
        await fill(writer, b"1")
        memory.script = ["hang"] * 99
        others = [asyncio.create_task(storage.stat("x")) for _ in range(OPTIONS.parallelism)]
        await asyncio.sleep(1)
    assert "abort" not in memory.requests
    await storage.aclose()
    await asyncio.gather(*others, return_exceptions=True)


async def test_an_abort_that_fails_does_not_hide_why_there_was_one() -> None:
    memory = Memory()
    memory.script = ["", StorageFull("mem: x: full"), *(unavailable() for _ in range(9))]
    with pytest.raises(StorageFull):
        await write(around(memory), "x", b"1")
    assert memory.requests.count("abort") == 4


async def test_an_abort_takes_no_longer_than_one_request() -> None:
    memory = Memory()
    memory.script = ["", *["hang"] * 9]
    writer = await around(memory).create("x")
    began = now()
    with pytest.raises(StorageUnavailable):
        await writer.abort()
    assert now() - began <= OPTIONS.request_timeout + 1


class InParts(MultipartStorage, Memory):
    part_size = 10
    parts_at_once = 8

    def __init__(self) -> None:
        Memory.__init__(self)
        self.uploads: dict[str, dict[int, bytes]] = {}

    async def put_whole(self, path: str, data: bytes) -> Entry:
        self.objects[path] = data
        self.versions[path] = 1
        return self.entry(path)

    async def put(self, path: str, data: bytes, *, exclusive: bool = False) -> Entry:  # type: ignore[override]
        await self.act("put", path)
        return await self.put_whole(path, data)

    async def start_parts(self, path: str) -> str:
        await self.act("start", path)
        self.uploads[name := f"u{len(self.uploads)}"] = {}
        return name

    async def put_part(self, path: str, upload: str, number: int, offset: int, data: bytes, *, last: bool) -> Part:
        lost = await self.act("part", path)
        self.uploads[upload][number] = data
        if lost:
            raise StorageUnavailable("mem: the answer was lost")
        return Part(number, len(data))

    async def finish_parts(self, path: str, upload: str, parts: Sequence[Part]) -> Entry:
        lost = await self.act("finish", path)
        entry = await self.put_whole(path, b"".join(self.uploads[upload][part.number] for part in parts))
        if lost:
            raise StorageUnavailable("mem: the answer was lost")
        return entry

    async def drop_parts(self, path: str, upload: str) -> None:
        await self.act("drop", path)
        self.uploads.pop(upload, None)


async def test_of_a_write_in_parts_only_the_part_is_repeated() -> None:
    data = bytes(range(100))
    storage = InParts()
    storage.script = ["", "lost", unavailable(), "hang", "", "lost"]
    resilient = around(storage)
    async with await resilient.create("x") as writer:
        await writer.append(data)
        assert (await writer.commit()).size == 100
    assert storage.objects["x"] == data
    counted = {kind: (one.requests, one.retries) for kind, one in resilient.inner.statistics().items()}
    assert counted == {"create": (1, 0), "start": (1, 0), "part": (14, 4), "finish": (1, 0)}
    assert storage.most_at_once <= OPTIONS.parallelism


async def test_a_part_that_is_given_up_ends_the_write_and_leaves_nothing() -> None:
    storage = InParts()
    storage.parts_at_once = 1
    storage.script = ["", *(unavailable() for _ in range(4))]
    resilient = around(storage, CommonOptions(retries=3, pause=0.1, parallelism=1))
    with pytest.raises(StorageUnavailable, match="4 tries"):
        await write(resilient, "x", bytes(35))
    assert (storage.objects, storage.uploads) == ({}, {})
    assert asyncio.all_tasks() == {asyncio.current_task()}
