"""S4: retries, time limits and what a lost answer comes to, in virtual time, over real files and over scripts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from minflinkd.runtime.errors import MinflinkError
from minflinkd.storage.conformance import names
from minflinkd.storage.faulty import FaultyStorage
from minflinkd.storage.interface import (
    Capabilities,
    Entry,
    InvalidPath,
    ObjectExists,
    ObjectNotFound,
    PermissionDenied,
    Storage,
    StorageError,
    StorageFull,
    StorageUnavailable,
    Writer,
)
from minflinkd.storage.multipart import MultipartStorage, Part
from minflinkd.storage.options import CommonOptions
from minflinkd.storage.resilient import SHORT, ResilientStorage

pytestmark = pytest.mark.looptime

OPTIONS = CommonOptions(request_timeout=10, deadline=60, retries=3, pause=1, longest_pause=4, parallelism=4)
LOST = StorageUnavailable("mem: the answer was lost")


class Memory(Storage):
    """Objects in a dict; `script` says what happens to the next requests: before them, after them, or never."""

    scheme = ("mem",)
    capabilities = Capabilities(atomic_rename=True, exclusive_create=True, consistent_list=True)

    def __init__(self, **objects: bytes) -> None:
        super().__init__()
        self.objects = objects
        self.versions = dict.fromkeys(objects, 1)
        self.script: list[str | Exception] = []  # "hang", "lost" (done, but not answered), "" (as it should be)
        self.requests: list[str] = []
        self.at_once = self.most_at_once = 0
        self.piece = SHORT
        self.hung: list[str] = []

    async def act(self, name: str, path: str) -> bool:
        """Whether the answer is to be lost."""
        self.requests.append(name)
        step = self.script.pop(0) if self.script else ""
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        try:
            await asyncio.sleep(0.001)
            if isinstance(step, Exception):
                raise step
            if step == "hang":
                self.hung.append(path)
                await asyncio.get_running_loop().create_future()
        finally:
            self.at_once -= 1
        return step == "lost"

    def put(self, path: str, data: bytes) -> None:
        self.objects[path] = data
        self.versions[path] = self.versions.get(path, 0) + 1

    def entry(self, path: str) -> Entry:
        if path not in self.objects:
            raise ObjectNotFound(f"mem: {path} does not exist")
        return Entry(path, len(self.objects[path]), 0, str(self.versions[path]))

    async def open_read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        await self.act("open", path)
        self.entry(path)
        data = self.objects[path][offset : None if length is None else offset + length]
        for start in range(0, len(data), self.piece):
            if start and await self.act("piece", path):
                return
            yield data[start : start + self.piece]

    async def create(self, path: str) -> Writer:
        await self.act("create", path)
        return MemoryWriter(self, path)

    async def create_exclusive(self, path: str, data: bytes) -> None:
        lost = await self.act("create_exclusive", path)
        if path in self.objects:
            raise ObjectExists(f"mem: {path} exists")
        self.put(path, data)
        if lost:
            raise StorageUnavailable("mem: the answer was lost")

    async def list(self, prefix: str) -> AsyncIterator[Entry]:
        await self.act("list", prefix)
        for path in sorted(self.objects):
            await self.act("entry", path)
            yield self.entry(path)

    async def delete(self, paths: Sequence[str], *, below: str | None = None) -> None:
        lost = await self.act("delete", paths[0])
        for path in paths:
            self.objects.pop(path, None)
        if lost:
            raise StorageUnavailable("mem: the answer was lost")

    async def stat(self, path: str) -> Entry:
        await self.act("stat", path)
        return self.entry(path)

    async def rename(self, source: str, target: str) -> None:
        lost = await self.act("rename", source)
        self.entry(source)
        self.put(target, self.objects.pop(source))
        if lost:
            raise StorageUnavailable("mem: the answer was lost")


class MemoryWriter(Writer):
    def __init__(self, storage: Memory, path: str) -> None:
        self.storage, self.path, self.data = storage, path, b""

    async def append(self, data: bytes | memoryview) -> None:
        await self.storage.act("append", self.path)
        self.data += data

    async def commit(self) -> Entry:
        lost = await self.storage.act("commit", self.path)
        self.storage.put(self.path, self.data)
        if lost:
            raise StorageUnavailable("mem: the answer was lost")
        return self.storage.entry(self.path)

    async def abort(self) -> None:
        await self.storage.act("abort", self.path)


def unavailable() -> StorageUnavailable:
    return StorageUnavailable("mem: come again")


def around(memory: Storage, options: CommonOptions = OPTIONS) -> ResilientStorage:
    return ResilientStorage(memory, options)


async def read(storage: Storage, path: str, offset: int = 0, length: int | None = None) -> bytes:
    return b"".join([piece async for piece in storage.open_read(path, offset, length)])


async def collect(pieces: AsyncIterator[bytes], into: list[bytes]) -> None:
    async for piece in pieces:
        into.append(piece)  # noqa: PERF401 - what came before a failure is to be seen


async def fill(writer: Writer, data: bytes) -> None:
    await writer.append(data)
    await writer.commit()


async def write(storage: Storage, path: str, data: bytes) -> None:
    async with await storage.create(path) as writer:
        await fill(writer, data)


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_what_is_transient_is_tried_again_after_growing_pauses() -> None:
    memory = Memory(x=b"1")
    memory.script = [unavailable(), unavailable(), unavailable()]
    began = now()
    assert (await around(memory).stat("x")).size == 1
    assert memory.requests == ["stat"] * 4
    assert 3.5 <= now() - began <= 7.1


async def test_tries_are_bounded_and_the_error_says_how_many_there_were() -> None:
    memory = Memory(x=b"1")
    memory.script = [unavailable() for _ in range(9)]
    with pytest.raises(StorageUnavailable, match=r"mem: x: mem: come again \(4 tries in \d"):
        await around(memory).stat("x")
    assert len(memory.requests) == 4


@pytest.mark.parametrize("kind", [StorageFull, PermissionDenied, ObjectNotFound, InvalidPath, StorageError])
async def test_what_is_not_transient_is_not_repeated(kind: type[StorageError]) -> None:
    memory = Memory(x=b"1")
    memory.script = [kind("mem: x: no")]
    with pytest.raises(kind):
        await around(memory).stat("x")
    assert len(memory.requests) == 1


async def test_a_request_without_an_answer_is_given_up_and_repeated() -> None:
    memory = Memory(x=b"1")
    memory.script = ["hang"]
    began = now()
    assert (await around(memory).stat("x")).size == 1
    assert 10.5 <= now() - began <= 11.1


async def test_the_deadline_bounds_all_tries_together() -> None:
    memory = Memory(x=b"1")
    memory.script = ["hang"] * 20
    began = now()
    with pytest.raises(StorageUnavailable, match="no answer in time"):
        await around(memory, CommonOptions(request_timeout=25, deadline=60, retries=20, pause=1)).stat("x")
    assert now() - began <= 60
    assert len(memory.requests) == 3


class Stubborn(Memory):
    """A thread or a library that does not let itself be cancelled."""

    async def stat(self, path: str) -> Entry:
        self.requests.append("stat")
        while True:
            try:
                await asyncio.sleep(1000)
                return self.entry(path)
            except asyncio.CancelledError:
                continue


async def test_a_request_that_cannot_be_cancelled_is_left_to_itself() -> None:
    storage = around(Stubborn(x=b"1"), CommonOptions(request_timeout=10, deadline=25, retries=1, pause=1))
    began = now()
    with pytest.raises(StorageUnavailable):
        await storage.stat("x")
    assert now() - began < 27
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert len(left) == 2
    await asyncio.sleep(2000)
    assert not asyncio.all_tasks() - {asyncio.current_task()}


async def test_a_cancelled_request_is_not_repeated_and_leaves_no_task() -> None:
    memory = Memory(x=b"1")
    memory.script = ["hang"]
    storage = around(memory)
    task = asyncio.create_task(storage.stat("x"))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert memory.requests == ["stat"]
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert memory.at_once == 0


async def test_a_cancelled_pause_ends_at_once() -> None:
    memory = Memory(x=b"1")
    memory.script = [unavailable()]
    task = asyncio.create_task(around(memory).stat("x"))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert now() < 0.2


async def test_no_more_requests_than_allowed_are_under_way() -> None:
    memory = Memory(x=b"1")
    storage = around(memory)
    await asyncio.gather(*(storage.stat("x") for _ in range(50)))
    assert memory.most_at_once == OPTIONS.parallelism


async def test_waiting_for_a_turn_ends_at_the_deadline() -> None:
    memory = Memory(x=b"1")
    memory.script = ["hang"] * 1000
    storage = around(memory, CommonOptions(request_timeout=100, deadline=100, retries=0, parallelism=1))
    began = now()
    outcomes = await asyncio.gather(*(storage.stat("x") for _ in range(5)), return_exceptions=True)
    assert all(isinstance(outcome, StorageUnavailable) for outcome in outcomes)
    assert now() - began < 205


@pytest.mark.parametrize("use", ["stat", "read", "list"])
async def test_a_closed_backend_is_asked_for_nothing_more(use: str) -> None:
    """Neither again for what was under way: it would connect anew, and nobody would close that."""
    memory = Memory(x=bytes(100))
    memory.piece = 10
    memory.script = [*([""] * {"stat": 0, "read": 3, "list": 1}[use]), "hang"]
    storage = around(memory)
    uses = {"stat": lambda: storage.stat("x"), "read": lambda: read(storage, "x"), "list": lambda: names(storage, "")}
    under_way = asyncio.create_task(uses[use]())  # type: ignore[arg-type]
    await asyncio.sleep(1)
    asked = list(memory.requests)
    await storage.aclose()
    with pytest.raises(StorageUnavailable):
        await under_way
    assert memory.requests == asked
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_what_waits_for_another_try_learns_that_the_backend_is_closed() -> None:
    memory = Memory(x=b"1")
    memory.script = [unavailable()]
    storage = around(memory)
    waiting = asyncio.create_task(storage.stat("x"))
    await asyncio.sleep(0.1)
    await storage.aclose()
    with pytest.raises(StorageUnavailable, match="the storage is closed"):
        await waiting
    assert memory.requests == ["stat"]


async def test_requests_are_counted_as_the_backend_saw_them() -> None:
    """S6"""
    memory = Memory(x=b"1")
    memory.script = [unavailable(), "hang"]
    storage = around(memory)
    await storage.stat("x")
    counted = storage.inner.statistics()["stat"]
    assert (counted.requests, counted.errors, counted.retries) == (3, 2, 2)


@pytest.mark.parametrize("failure", ["hang", unavailable()], ids=["silence", "error"])
async def test_a_write_is_counted_as_one_request_that_failed(failure: str | Exception) -> None:
    """S6"""
    memory = Memory()
    memory.script = ["", "", failure]
    storage = around(memory)
    with pytest.raises(StorageUnavailable):
        await write(storage, "x", b"1")
    counted = {kind: (one.requests, one.errors, one.retries) for kind, one in storage.inner.statistics().items()}
    assert counted == {"create": (1, 1, 0)}


async def test_that_there_is_none_or_one_already_is_an_answer() -> None:
    """S6"""
    storage = around(Memory(x=b"1"))
    with pytest.raises(ObjectNotFound):
        await storage.stat("none")
    with pytest.raises(ObjectExists):
        await storage.create_exclusive("x", b"2")
    assert [one.errors for one in storage.inner.statistics().values()] == [0, 0]


# Reading


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
    """A stream broke off, and the object was replaced by one of the same size before it goes on."""
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
    """Only the backend's time counts, and a reader holds no place while it does something else."""
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
    """The time that the reader took is not the backend's."""
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
    """A backend that lists by directory, or in the order of UTF-16."""

    class OfDirectories(Memory):
        async def list(self, prefix: str) -> AsyncIterator[Entry]:
            for path in ("d/a/x", "d/a-b", "d/a0"):
                await self.act("entry", path)
                yield Entry(path, 0, 0)

    memory = OfDirectories()
    memory.script = script
    with pytest.raises(StorageError, match=r"mem: d: .*'d/a-b' after 'd/a/x', out of order"):
        await names(around(memory), "d")


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("before", [b"old.", b"longer than it", None])
async def test_a_rename_that_never_arrived_is_not_taken_for_done(before: bytes | None, atomic: bool) -> None:
    """Another took the source away meanwhile; what lies at the target, of whatever size, was there before."""

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
    """The source was there, an answer was lost, and now neither is: nobody can say that it is at the target."""
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
    """An append may have arrived although its answer did not: the write is lost, and the caller repeats it whole."""
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


class Nested(Memory):
    """Deletes in steps, each with tries of its own."""

    async def delete(self, paths: Sequence[str], *, below: str | None = None) -> None:
        for path in paths:

            async def step(path: str = path) -> None:
                await Memory.delete(self, [path])

            await self.attempts("delete one", path, step)


async def test_steps_inside_an_operation_have_limits_of_their_own() -> None:
    memory = Nested(a=b"", b=b"", c=b"")
    memory.script = ["hang", "", "hang", "", "hang", ""]
    storage = around(memory, CommonOptions(request_timeout=10, deadline=15, retries=1, pause=1, parallelism=1))
    began = now()
    await storage.delete(["a", "b", "c"])
    assert memory.objects == {}
    assert now() - began > 30


async def test_what_a_step_gave_up_is_not_repeated_by_the_operation() -> None:
    memory = Nested(a=b"", b=b"")
    memory.script = [unavailable() for _ in range(100)]
    with pytest.raises(StorageUnavailable, match="4 tries"):
        await around(memory).delete(["a", "b"])
    assert len(memory.requests) == 4


# Copying


async def test_a_copy_streams_unless_the_server_does_it(tmp_path: Path) -> None:
    memory = Memory(a=bytes(range(100)))
    memory.piece = 7
    assert (await around(memory).copy("a", "b")).size == 100
    assert memory.objects["b"] == memory.objects["a"]

    class OnTheServer(Memory):
        capabilities = Capabilities(server_side_copy=True)

        async def copy(self, source: str, target: str) -> Entry:
            await self.act("copy", source)
            self.put(target, self.objects[source])
            return self.entry(target)

    server = OnTheServer(a=b"1")
    server.script = [unavailable()]
    await around(server).copy("a", "b")
    assert server.requests == ["copy", "copy"]


# Faults anywhere


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_one_fault_anywhere_changes_no_outcome(after: bool) -> None:
    """Every request of a small story fails once, before or after it did its work."""

    async def story(storage: Storage) -> None:
        await storage.create_exclusive("lock", b"me")
        await storage.rename("lock", "held")
        assert await read(storage, "held") == b"me"
        assert [entry.path async for entry in storage.list("")] == ["held"]
        await storage.delete(["held"])
        with pytest.raises(ObjectNotFound):
            await storage.stat("held")

    for number in range(1, 100):
        faulty = FaultyStorage(Memory(), number, after=after)
        await story(around(faulty))
        if faulty.requests < number:
            assert number > 6
            return
    raise AssertionError("there is no end of requests")


async def test_foreign_errors_become_the_few_kinds() -> None:
    kinds: list[tuple[Exception, type[MinflinkError]]] = [
        (ConnectionResetError("peer"), StorageUnavailable),
        (TimeoutError(), StorageUnavailable),
        (EOFError(), StorageUnavailable),
        (FileNotFoundError(2, "No such file"), ObjectNotFound),
        (OSError(28, "No space left on device"), StorageFull),
        (OSError(107, "Transport endpoint is not connected"), StorageUnavailable),
        (ValueError("odd"), StorageError),
    ]
    for foreign, kind in kinds:
        memory = Memory(x=b"1")
        memory.script = [foreign] * 4
        with pytest.raises(kind, match="mem: x: ") as caught:
            await around(memory).stat("x")
        assert type(caught.value) is kind
        assert caught.value.__cause__ is foreign
