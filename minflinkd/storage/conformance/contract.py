"""The contract of `minflinkd.storage.interface`, one sentence per test."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import ClassVar

import pytest

from minflinkd.storage.conformance.faults import FaultConformance
from minflinkd.storage.conformance.objects import (
    CLOCKS,
    MIB,
    ODD_NAMES,
    UNLIKE_UTF_16,
    content,
    names,
    part_size,
    read,
    write,
)
from minflinkd.storage.interface import (
    NotSupported,
    ObjectExists,
    ObjectNotFound,
    Storage,
    StorageError,
    StorageUnavailable,
    closable,
)
from minflinkd.storage.options import InvalidStorageOption, parse
from minflinkd.storage.parallel import for_each


class StorageConformance(FaultConformance):
    """Each test is one sentence of the contract in `minflinkd.storage.interface`."""

    entries: ClassVar[int] = 1500  # in a listing of several pages; a test marked slow creates 10,000
    odd_names: ClassVar[Sequence[str]] = ODD_NAMES  # without those that the backend refuses

    @pytest.mark.parametrize("size", [0, 1, 1000, MIB - 1, MIB, MIB + 1, 5 * MIB + 17])
    async def test_what_is_written_is_read(self, storage: Storage, prefix: str, size: int) -> None:
        data = content(size)
        entry = await write(storage, f"{prefix}/a/b", data)
        assert (entry.path, entry.size) == (f"{prefix}/a/b", size)
        assert await read(storage, f"{prefix}/a/b") == data
        found = await storage.stat(f"{prefix}/a/b")
        assert (found.path, found.size) == (entry.path, entry.size)
        assert found.version == entry.version or not entry.version
        assert abs(found.modified_ms - entry.modified_ms) <= CLOCKS  # a commit may know only the time of its answer
        listed = [entry async for entry in storage.list(prefix)]
        assert [(one.path, one.size) for one in listed] == [(entry.path, entry.size)]

    @pytest.mark.parametrize("odd", [-1, 0, 1])
    async def test_an_object_of_many_parts_is_whole(self, storage: Storage, prefix: str, odd: int) -> None:
        """S5: tests the logic for objects over 5 GiB with small parts: as many as fit into 16 MiB, at least three."""
        part = part_size(storage)
        data = content(max(3, min(1100, 16 * MIB // part)) * part + odd)
        async with await storage.create(f"{prefix}/x") as writer:
            for start in range(0, len(data), 3 * MIB + 1):
                await writer.append(memoryview(data)[start : start + 3 * MIB + 1])
            assert (await writer.commit()).size == len(data)
        assert await read(storage, f"{prefix}/x") == data
        assert await read(storage, f"{prefix}/x", part - 1, part + 2) == data[part - 1 : 2 * part + 1]
        assert await names(storage, prefix) == ["x"]

    async def test_one_part_or_two_or_a_little_less_or_more_are_whole(self, storage: Storage, prefix: str) -> None:
        part = part_size(storage)
        for size in (part - 1, part, part + 1, 2 * part, 2 * part + 1):
            data = content(size)
            entry = await write(storage, f"{prefix}/x", data)
            found = await storage.stat(f"{prefix}/x")
            assert (entry.size, entry.version or found.version) == (found.size, found.version)
            assert await read(storage, f"{prefix}/x") == data

    async def test_an_object_is_written_in_pieces_of_any_size(self, storage: Storage, prefix: str) -> None:
        pieces = [b"a" * 10, b"b" * (MIB + 3), b"", b"c", b"d" * (3 * MIB), b"e"]
        async with await storage.create(f"{prefix}/x") as writer:
            for piece in pieces:
                await writer.append(memoryview(piece))
            await writer.commit()
        assert await read(storage, f"{prefix}/x") == b"".join(pieces)

    async def test_a_range_is_read(self, storage: Storage, prefix: str) -> None:
        data = b"0123456789"
        await write(storage, f"{prefix}/x", data)
        for offset, length in ((0, 0), (0, 5), (3, 4), (9, 1), (9, 100), (10, None), (4, None), (2 * MIB, 1)):
            end = None if length is None else offset + length
            assert await read(storage, f"{prefix}/x", offset, length) == data[offset:end], (offset, length)

    async def test_reading_may_stop_early(self, storage: Storage, prefix: str) -> None:
        await write(storage, f"{prefix}/x", bytes(4 * MIB))
        async with aclosing(closable(storage.open_read(f"{prefix}/x"))) as pieces:
            assert await anext(pieces)
        await storage.delete([f"{prefix}/x"])

    async def test_odd_names_are_names(self, storage: Storage, prefix: str) -> None:
        """Each name denotes its own object."""

        async def move(name: str) -> None:
            await write(storage, f"{prefix}/d/{name}", name.encode())
            await storage.rename(f"{prefix}/d/{name}", f"{prefix}/e/{name}")

        await for_each(self.odd_names, move, limit=4)
        assert await names(storage, prefix) == sorted(f"e/{name}" for name in self.odd_names)
        for name in self.odd_names:
            assert await read(storage, f"{prefix}/e/{name}") == name.encode()
        *most, last = self.odd_names
        for name in most:
            await storage.delete([f"{prefix}/e/{name}"])
        assert await names(storage, prefix) == [f"e/{last}"]
        await storage.delete([f"{prefix}/e/{last}"])
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
            await writer.append(bytes(2 * part_size(storage) + 1))
            assert await names(storage, prefix) == []
            with pytest.raises(ObjectNotFound):
                await storage.stat(f"{prefix}/x")
            await writer.commit()
        assert await names(storage, prefix) == ["x"]

    async def test_an_aborted_object_leaves_nothing(self, storage: Storage, prefix: str) -> None:
        async with await storage.create(f"{prefix}/d/x") as writer:
            await writer.append(bytes(2 * part_size(storage) + 1))
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
            with pytest.raises(NotSupported):
                await storage.create_exclusive(f"{prefix}/d/leader", b"1")
            assert await names(storage, prefix) == []
            return

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

    async def test_an_exclusive_create_does_not_replace_a_written_object(self, storage: Storage, prefix: str) -> None:
        if not storage.capabilities.exclusive_create:
            pytest.skip("the backend cannot")
        await write(storage, f"{prefix}/x", b"1")
        with pytest.raises(ObjectExists, match=re.escape(f"{prefix}/x")):
            await storage.create_exclusive(f"{prefix}/x", b"2")
        assert await read(storage, f"{prefix}/x") == b"1"
        await storage.delete([f"{prefix}/x"])
        await storage.create_exclusive(f"{prefix}/x", b"2")
        assert await read(storage, f"{prefix}/x") == b"2"

    async def test_a_listing_is_in_the_order_of_paths(self, storage: Storage, prefix: str) -> None:
        paths = ["a", "a-b", "a.b/c", "a/b", "a/b-c", "a/b/c", "aa", "b/a/a", "b/a0"]
        paths += [*UNLIKE_UTF_16, *(f"d/{name}" for name in UNLIKE_UTF_16)]
        paths = [path for path in paths if path not in ("a", "a/b")]  # these would be both file and directory
        for path in reversed(paths):
            await write(storage, f"{prefix}/{path}", path.encode())
        assert await names(storage, prefix) == sorted(paths)
        entries = [entry async for entry in storage.list(prefix)]
        assert [entry.size for entry in entries] == [len(path.encode()) for path in sorted(paths)]
        assert all(entry.modified_ms > 1_600_000_000_000 for entry in entries)

    async def test_a_listing_is_of_a_directory_not_of_a_text(self, storage: Storage, prefix: str) -> None:
        await write(storage, f"{prefix}/job-1/x", b"")
        await write(storage, f"{prefix}/job-10/x", b"")
        assert await names(storage, f"{prefix}/job-1") == ["x"]
        assert await names(storage, f"{prefix}/none") == []

    async def test_a_long_listing_is_whole(self, storage: Storage, prefix: str) -> None:
        await self.fill_and_list(storage, prefix, self.entries)

    @pytest.mark.slow
    async def test_ten_thousand_entries_are_listed(self, storage: Storage, prefix: str) -> None:
        """S5"""
        await self.fill_and_list(storage, prefix, 10_000)

    async def fill_and_list(self, storage: Storage, prefix: str, count: int) -> None:
        paths = [f"{number % 7}/{number:05d}" for number in range(count)]

        async def make(path: str) -> None:
            await write(storage, f"{prefix}/{path}", b"")

        await for_each(paths, make, limit=32)
        assert await names(storage, prefix) == sorted(paths)
        assert await names(storage, f"{prefix}/3") == [f"{path[2:]}" for path in sorted(paths) if path.startswith("3/")]
        await storage.delete([f"{prefix}/{path}" for path in paths[1:]], below=prefix)
        assert await names(storage, prefix) == ["0/00000"]

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
        await write(storage, f"{prefix}/a", b"new")
        await write(storage, f"{prefix}/d/b", b"old")
        await storage.rename(f"{prefix}/a", f"{prefix}/d/b")
        assert await names(storage, prefix) == ["d/b"]
        assert await read(storage, f"{prefix}/d/b") == b"new"

    async def test_an_atomic_rename_is_never_seen_half(self, storage: Storage, prefix: str) -> None:
        if not storage.capabilities.atomic_rename:
            pytest.skip("the backend cannot")
        await write(storage, f"{prefix}/b", b"0")
        seen: set[bytes] = set()
        renaming = True

        async def look() -> None:
            while renaming:
                try:
                    seen.add(await read(storage, f"{prefix}/b"))  # ObjectNotFound if it is gone for a moment
                except StorageUnavailable:  # it was replaced while it was read
                    continue

        looking = asyncio.create_task(look())
        try:
            for number in range(1, 8):
                await write(storage, f"{prefix}/a", b"%d" % number)
                await storage.rename(f"{prefix}/a", f"{prefix}/b")
        finally:
            renaming = False
            await looking
        assert seen <= {b"%d" % number for number in range(8)}

    async def test_a_copy_is_whole_and_replaces(self, storage: Storage, prefix: str) -> None:
        data = content(3 * MIB + 5)
        await write(storage, f"{prefix}/a b", data)
        await write(storage, f"{prefix}/d/b", b"old")
        assert (await storage.copy(f"{prefix}/a b", f"{prefix}/d/b")).size == len(data)
        assert await read(storage, f"{prefix}/d/b") == data
        assert await names(storage, prefix) == ["a b", "d/b"]
        with pytest.raises(ObjectNotFound):
            await storage.copy(f"{prefix}/none", f"{prefix}/other")
        assert await names(storage, prefix) == ["a b", "d/b"]

    async def test_the_server_copies_without_this_process(
        self, storage: Storage, prefix: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if not storage.capabilities.server_side_copy:
            pytest.skip("the backend cannot")
        await write(storage, f"{prefix}/a", b"1")

        def refuse(*_: object) -> AsyncIterator[bytes]:
            raise AssertionError("the bytes were read")

        with monkeypatch.context() as patch:
            patch.setattr(storage, "open_read", refuse)
            await storage.copy(f"{prefix}/a", f"{prefix}/b")
        assert await read(storage, f"{prefix}/b") == b"1"

    async def test_a_version_changes_with_the_content(self, storage: Storage, prefix: str) -> None:
        await write(storage, f"{prefix}/x", b"first")
        first = await storage.stat(f"{prefix}/x")
        assert (await storage.stat(f"{prefix}/x")).version == first.version
        await write(storage, f"{prefix}/x", b"other")
        if first.version:
            assert (await storage.stat(f"{prefix}/x")).version not in ("", first.version)

    async def test_an_error_names_the_path(self, storage: Storage, prefix: str) -> None:
        with pytest.raises(StorageError) as caught:
            await storage.stat(f"{prefix}/none")
        assert f"{prefix}/none" in caught.value.message
        assert storage.scheme[0] in caught.value.message

    async def test_flushing_what_is_not_there_is_not_found(self, storage: Storage, prefix: str) -> None:
        """So the loss of a staged file is noticed before its checkpoint is acknowledged."""
        await write(storage, f"{prefix}/x", b"1")
        await storage.sync([])
        await storage.sync([f"{prefix}/x"])
        with pytest.raises(ObjectNotFound):
            await storage.sync([f"{prefix}/x", f"{prefix}/none"])

    async def test_options_are_those_that_the_backend_names(self, storage: Storage) -> None:
        """S7: each has a default."""
        parse(storage.options_type, {}, storage.scheme[0])
        with pytest.raises(InvalidStorageOption):
            parse(storage.options_type, {"no-such-option": "1"}, storage.scheme[0])
