"""Reads and listings that break off continue where they stopped (S4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from minflinkd.storage.conformance import names
from minflinkd.storage.interface import (
    Entry,
    ObjectNotFound,
    StorageError,
    StorageUnavailable,
)
from tests.unit.storage.memory import LOST, OPTIONS, Memory, around, collect, now, read, unavailable

pytestmark = pytest.mark.looptime


async def test_a_short_range_is_read_again_as_a_whole() -> None:
    memory = Memory(x=bytes(range(200)))
    memory.piece = 10
    memory.script = ["", "", unavailable()]
    assert await read(around(memory), "x", 5, 100) == bytes(range(5, 105))
    assert memory.requests.count("open") == 2


@pytest.mark.parametrize("broken", [0, 1, 2, 5, 19])
@pytest.mark.parametrize("how", ["unavailable", "ends early", "hang"])
async def test_a_stream_that_breaks_off_goes_on_where_it_stopped(broken: int, how: str) -> None:
    data = bytes(range(200))
    memory = Memory(x=data)
    memory.piece = 10
    faults: dict[str, str | Exception] = {"unavailable": unavailable(), "ends early": "lost", "hang": "hang"}
    memory.script = ["", *([""] * broken), faults[how]]  # the stat comes first, then the opening
    assert await read(around(memory), "x") == data
    assert memory.requests.count("open") + memory.requests.count("piece") <= 20 + 2 + 1


async def test_a_stream_that_never_gets_on_ends_within_the_deadline() -> None:
    memory = Memory(x=bytes(200))
    memory.piece = 10
    memory.script = ["", "", "", *["hang"] * 100]
    began = now()
    with pytest.raises(StorageUnavailable):
        await read(around(memory), "x")
    assert now() - began < OPTIONS.deadline + 5
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_two_contents_are_never_mixed() -> None:
    """A stream breaks off, and an object of the same size replaces the first before the read continues."""
    memory = Memory(x=b"a" * 100)
    memory.piece = 10
    memory.script = ["", "", "", "hang"]
    stream = around(memory).open_read("x")
    got = [await anext(stream)]
    memory.put("x", b"b" * 100)
    with pytest.raises(StorageUnavailable, match="was replaced"):
        await collect(stream, got)
    assert got == [b"a" * 10] * 2


async def test_an_object_deleted_under_its_reader_is_not_found() -> None:
    memory = Memory(x=b"a" * 100)
    memory.piece = 10
    memory.script = ["", "", "", "hang"]
    stream = around(memory).open_read("x")
    await anext(stream)
    del memory.objects["x"]
    with pytest.raises(ObjectNotFound):
        _ = [piece async for piece in stream]


async def test_a_reader_may_be_slow_and_may_stop() -> None:
    """Only the backend's time counts. A reader that does something else takes no place."""
    memory = Memory(x=bytes(100))
    memory.piece = 10
    storage = around(memory)
    streams = [storage.open_read("x") for _ in range(2 * OPTIONS.parallelism)]
    for stream in streams:
        assert await anext(stream) == bytes(10)
    await asyncio.sleep(1000)
    assert (await storage.stat("x")).size == 100
    assert [piece async for piece in streams[0]] == [bytes(10)] * 9
    for stream in streams:
        await stream.aclose()  # type: ignore[attr-defined]
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("use", ["read", "list"])
async def test_what_breaks_off_under_a_slow_reader_goes_on_all_the_same(use: str) -> None:
    """The reader's time does not count as the backend's."""
    memory = Memory(**{f"x{number}": bytes(100) for number in range(5)})
    memory.piece = 10
    memory.script = [*([""] * {"read": 4, "list": 2}[use]), "hang", *([unavailable()] * 2)]
    storage = around(memory)
    items = storage.open_read("x0") if use == "read" else storage.list("")
    got: list[object] = []
    async for item in items:
        got.append(item)
        await asyncio.sleep(OPTIONS.deadline)
    assert len(got) == {"read": 10, "list": 5}[use]


@pytest.mark.parametrize("broken", range(8))
async def test_a_listing_that_breaks_off_goes_on_after_the_last_path(broken: int) -> None:
    memory = Memory(**{f"x{number}": b"1" for number in range(6)})
    memory.script = [*([""] * broken), unavailable()]
    assert [entry.path async for entry in around(memory).list("")] == sorted(memory.objects)


# Lost answers


@pytest.mark.parametrize("script", [[], ["", "", LOST]], ids=["whole", "resumed"])
async def test_a_listing_out_of_order_is_an_error_and_loses_nothing_unsaid(script: list[str | Exception]) -> None:
    """A backend might list by directory, or in the order of UTF-16."""

    class OfDirectories(Memory):
        async def list(self, prefix: str) -> AsyncIterator[Entry]:
            for path in ("d/a/x", "d/a-b", "d/a0"):
                await self.act("entry", path)
                yield Entry(path, 0, 0)

    memory = OfDirectories()
    memory.script = script
    with pytest.raises(StorageError, match=r"mem: d: .*'d/a-b' after 'd/a/x', out of order"):
        await names(around(memory), "d")
