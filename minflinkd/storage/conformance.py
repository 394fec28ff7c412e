"""What every storage backend must do, as tests (S5): subclass `StorageConformance` and give two fixtures.

    class TestMyStorage(StorageConformance):
        @pytest.fixture
        def storage(self) -> Storage: ...

        @pytest.fixture
        def prefix(self) -> str: ...   # an empty directory of the backend, fresh for each test

Needs pytest with pytest-asyncio in auto mode; nothing else in minflinkd imports this module.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing

import pytest

from minflinkd.storage.interface import Entry, ObjectExists, ObjectNotFound, Storage, StorageError

MIB = 1024 * 1024
ODD_NAMES = (
    "with blank",
    "übung-日本",
    "a%20b",
    "col=2026-01-01 00:00",
    "#?&+",
    "x" * 200,
    "-dash",
    "quote'\"",
    "dot.",
)


async def read(storage: Storage, path: str, offset: int = 0, length: int | None = None) -> bytes:
    return b"".join([piece async for piece in storage.open_read(path, offset, length)])


async def write(storage: Storage, path: str, data: bytes) -> Entry:
    async with await storage.create(path) as writer:
        await writer.append(data)
        return await writer.commit()


async def names(storage: Storage, prefix: str) -> list[str]:
    return [entry.path.removeprefix(prefix).lstrip("/") async for entry in storage.list(prefix)]


class StorageConformance:
    """Each test is one sentence of the contract in `minflinkd.storage.interface`."""

    @pytest.mark.parametrize("size", [0, 1, 1000, MIB - 1, MIB, MIB + 1, 5 * MIB + 17])
    async def test_what_is_written_is_read(self, storage: Storage, prefix: str, size: int) -> None:
        data = bytes(range(256)) * (size // 256) + bytes(size % 256)
        entry = await write(storage, f"{prefix}/a/b", data)
        assert (entry.path, entry.size) == (f"{prefix}/a/b", size)
        assert await read(storage, f"{prefix}/a/b") == data
        assert await storage.stat(f"{prefix}/a/b") == entry

    async def test_an_object_is_written_in_pieces_of_any_size(self, storage: Storage, prefix: str) -> None:
        pieces = [b"a" * 10, b"b" * (MIB + 3), b"", b"c", b"d" * (3 * MIB), b"e"]
        async with await storage.create(f"{prefix}/x") as writer:
            for piece in pieces:
                await writer.append(memoryview(piece))
            await writer.commit()
        assert await read(storage, f"{prefix}/x") == b"".join(pieces)

    @pytest.mark.parametrize(
        ("offset", "length"), [(0, 0), (0, 5), (3, 4), (9, 1), (9, 100), (10, None), (4, None), (2 * MIB, 1)]
    )
    async def test_a_range_is_read(self, storage: Storage, prefix: str, offset: int, length: int | None) -> None:
        data = b"0123456789"
        await write(storage, f"{prefix}/x", data)
        end = None if length is None else offset + length
        assert await read(storage, f"{prefix}/x", offset, length) == data[offset:end]

    async def test_reading_may_stop_early(self, storage: Storage, prefix: str) -> None:
        await write(storage, f"{prefix}/x", bytes(4 * MIB))
        async with aclosing(storage.open_read(f"{prefix}/x")) as pieces:  # type: ignore[type-var]
            assert await anext(pieces)
        await storage.delete([f"{prefix}/x"])

    @pytest.mark.parametrize("name", ODD_NAMES)
    async def test_odd_names_are_names(self, storage: Storage, prefix: str, name: str) -> None:
        await write(storage, f"{prefix}/d/{name}", b"1")
        assert await names(storage, prefix) == [f"d/{name}"]
        await storage.rename(f"{prefix}/d/{name}", f"{prefix}/e/{name}")
        assert await read(storage, f"{prefix}/e/{name}") == b"1"
        await storage.delete([f"{prefix}/e/{name}"])
        assert await names(storage, prefix) == []

    async def test_a_missing_object_is_not_found(self, storage: Storage, prefix: str) -> None:
        await write(storage, f"{prefix}/d/x", b"1")
        for path in (f"{prefix}/none", f"{prefix}/none/none", f"{prefix}/d", f"{prefix}/d/x/y"):
            with pytest.raises(ObjectNotFound, match=re.escape(prefix)):
                await read(storage, path)
            with pytest.raises(ObjectNotFound):
                await storage.stat(path)
        with pytest.raises(ObjectNotFound):
            await storage.rename(f"{prefix}/none", f"{prefix}/other")

    async def test_nothing_is_visible_before_the_commit(self, storage: Storage, prefix: str) -> None:
        async with await storage.create(f"{prefix}/x") as writer:
            await writer.append(bytes(2 * MIB))
            assert await names(storage, prefix) == []
            with pytest.raises(ObjectNotFound):
                await storage.stat(f"{prefix}/x")
            await writer.commit()
        assert await names(storage, prefix) == ["x"]

    async def test_an_aborted_object_leaves_nothing(self, storage: Storage, prefix: str) -> None:
        async with await storage.create(f"{prefix}/d/x") as writer:
            await writer.append(bytes(2 * MIB))
            await writer.abort()
            await writer.abort()
        assert await names(storage, prefix) == []
        writer = await storage.create(f"{prefix}/d/y")
        await writer.abort()
        assert await names(storage, prefix) == []

    async def test_an_abort_after_the_commit_does_nothing(self, storage: Storage, prefix: str) -> None:
        writer = await storage.create(f"{prefix}/x")
        await writer.append(b"1")
        await writer.commit()
        await writer.abort()
        assert await read(storage, f"{prefix}/x") == b"1"

    async def test_a_commit_replaces_an_object_of_that_name(self, storage: Storage, prefix: str) -> None:
        await write(storage, f"{prefix}/x", b"first, and longer")
        async with await storage.create(f"{prefix}/x") as writer:
            await writer.append(b"second")
            assert await read(storage, f"{prefix}/x") == b"first, and longer"
            await writer.commit()
        assert await read(storage, f"{prefix}/x") == b"second"
        assert await names(storage, prefix) == ["x"]

    async def test_an_exclusive_create_has_exactly_one_winner(self, storage: Storage, prefix: str) -> None:
        if not storage.capabilities.exclusive_create:
            pytest.skip("the backend cannot")

        async def contend(data: bytes) -> bytes | None:
            try:
                await storage.create_exclusive(f"{prefix}/d/leader", data)
            except ObjectExists:
                return None
            return data

        answers = await asyncio.gather(*(contend(b"%d" % number) for number in range(32)))
        winners = [answer for answer in answers if answer is not None]
        assert len(winners) == 1
        assert await read(storage, f"{prefix}/d/leader") == winners[0]
        assert await names(storage, prefix) == ["d/leader"]

    async def test_a_listing_is_in_the_order_of_paths(self, storage: Storage, prefix: str) -> None:
        paths = ["a", "a-b", "a.b/c", "a/b", "a/b-c", "a/b/c", "aa", "b/a/a", "b/a0"]
        paths = [path for path in paths if path not in ("a", "a/b")]  # these would be file and directory at once
        for path in reversed(paths):
            await write(storage, f"{prefix}/{path}", path.encode())
        assert await names(storage, prefix) == sorted(paths)
        entries = [entry async for entry in storage.list(prefix)]
        assert [entry.size for entry in entries] == [len(path) for path in sorted(paths)]
        assert all(entry.modified_ms > 1_600_000_000_000 for entry in entries)

    async def test_a_listing_is_of_a_directory_not_of_a_text(self, storage: Storage, prefix: str) -> None:
        await write(storage, f"{prefix}/job-1/x", b"")
        await write(storage, f"{prefix}/job-10/x", b"")
        assert await names(storage, f"{prefix}/job-1") == ["x"]
        assert await names(storage, f"{prefix}/none") == []

    async def test_a_long_listing_is_whole(self, storage: Storage, prefix: str) -> None:
        paths = [f"{number % 7}/{number:05d}" for number in range(2500)]
        for start in range(0, len(paths), 100):
            group = paths[start : start + 100]
            await asyncio.gather(*(storage.create_exclusive(f"{prefix}/{path}", b"") for path in group))
        assert await names(storage, prefix) == sorted(paths)

    async def test_deleting_is_safe_to_repeat(self, storage: Storage, prefix: str) -> None:
        for path in ("d/x", "d/y", "z"):
            await write(storage, f"{prefix}/{path}", b"1")
        await storage.delete([])
        for _ in range(2):
            await storage.delete([f"{prefix}/d/x", f"{prefix}/none/none", f"{prefix}/z"], below=prefix)
            assert await names(storage, prefix) == ["d/y"]

    async def test_deleting_a_directory_leaves_its_objects(self, storage: Storage, prefix: str) -> None:
        await write(storage, f"{prefix}/d/x", b"1")
        await storage.delete([f"{prefix}/d"])
        assert await names(storage, prefix) == ["d/x"]

    async def test_writers_do_not_mind_deletions_beside_them(self, storage: Storage, prefix: str) -> None:
        async def keep_writing(number: int) -> None:
            for turn in range(15):
                await write(storage, f"{prefix}/a/b/{number}", b"%d" % turn)
                await storage.delete([f"{prefix}/a/b/{number}"], below=prefix)
            await write(storage, f"{prefix}/a/b/{number}", b"last")

        await asyncio.gather(*(keep_writing(number) for number in range(8)))
        assert await names(storage, prefix) == [f"a/b/{number}" for number in range(8)]

    async def test_a_rename_moves_and_replaces(self, storage: Storage, prefix: str) -> None:
        if not storage.capabilities.atomic_rename:
            pytest.skip("the backend cannot")
        await write(storage, f"{prefix}/a", b"new")
        await write(storage, f"{prefix}/d/b", b"old")
        await storage.rename(f"{prefix}/a", f"{prefix}/d/b")
        assert await names(storage, prefix) == ["d/b"]
        assert await read(storage, f"{prefix}/d/b") == b"new"

    async def test_syncing_is_allowed_for_any_object(self, storage: Storage, prefix: str) -> None:
        await write(storage, f"{prefix}/x", b"1")
        await storage.sync([f"{prefix}/x"])

    async def test_a_cancelled_write_leaves_nothing(self, storage: Storage, prefix: str) -> None:
        begun = asyncio.Event()

        async def write_for_ever() -> None:
            async with await storage.create(f"{prefix}/x") as writer:
                while True:
                    await writer.append(bytes(MIB))
                    begun.set()

        task = asyncio.create_task(write_for_ever())
        await asyncio.wait_for(begun.wait(), 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await names(storage, prefix) == []

    async def test_an_error_names_the_path(self, storage: Storage, prefix: str) -> None:
        with pytest.raises(StorageError) as caught:
            await storage.stat(f"{prefix}/none")
        assert f"{prefix}/none" in caught.value.message
        assert storage.scheme[0] in caught.value.message
