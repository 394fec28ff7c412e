"""The contract when requests, answers or writers fail (S4)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import ClassVar, TypeVar

import pytest

from minflinkd.storage.conformance.objects import MIB, UNLIKE_UTF_16, content, names, part_size, read, write
from minflinkd.storage.faulty import FaultyStorage
from minflinkd.storage.interface import Attempts, ObjectNotFound, Storage, StorageError, StorageUnavailable, Writer
from minflinkd.storage.multipart import MultipartStorage
from minflinkd.storage.options import CommonOptions
from minflinkd.storage.resilient import ResilientStorage

T = TypeVar("T")


class FaultConformance:
    """Lost requests can be repeated, and an object whose write was broken off does not exist."""

    hurried: ClassVar[CommonOptions] = CommonOptions(
        request_timeout=2, deadline=60, retries=50, pause=0.01, longest_pause=0.1
    )

    async def test_a_listing_cut_off_anywhere_is_whole(self, storage: Storage, prefix: str) -> None:
        """S4: it resumes after its last path."""
        paths = sorted(["a-b", "a/x", "a0", "b", *UNLIKE_UTF_16])
        for path in paths:
            await write(storage, f"{prefix}/{path}", b"")
        with keeping_attempts(storage):
            for cut in range(1, len(paths) + 1):
                resilient = ResilientStorage(FaultyStorage(storage, cut_after=cut), self.hurried)
                assert await names(resilient, prefix) == paths

    async def test_a_stream_cut_off_anywhere_is_whole(self, storage: Storage, prefix: str) -> None:
        """S4: it resumes at the byte where it stopped."""
        data = content(3 * MIB + 1)
        await write(storage, f"{prefix}/x", data)
        with keeping_attempts(storage):
            for cut in (1, 2, 3):
                resilient = ResilientStorage(FaultyStorage(storage, cut_after=cut), self.hurried)
                assert await read(resilient, f"{prefix}/x") == data

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

    @pytest.mark.parametrize("hang", [False, True], ids=["errors", "silence"])
    @pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
    async def test_one_fault_anywhere_changes_no_outcome(
        self, storage: Storage, prefix: str, hang: bool, after: bool
    ) -> None:
        """S4, S5: each request of a story fails once, or is never answered, before or after it has done its work."""

        attempts: ContextVar[Attempts] = ContextVar("attempts")  # of each wrapper; all wrap the same backend

        async def own(what: str, path: str, step: Callable[[], Awaitable[T]]) -> T:
            return await attempts.get()(what, path, step)

        async def with_fault_at(number: int) -> int:
            """Return how many requests there were. They are numbered from 1, so 0 means no fault."""
            faulty = FaultyStorage(storage, number, after=after, hang=hang)
            resilient = ResilientStorage(faulty, self.hurried)
            attempts.set(storage.attempts)
            storage.attempts = own
            if hang:  # a commit without an answer may take the whole deadline
                await write(storage, f"{prefix}/{number}/a", b"1")
            await tell_story(resilient, f"{prefix}/{number}", written=hang)
            return faulty.requests

        with keeping_attempts(storage):
            requests = await with_fault_at(0)
            assert requests > 6, "the story is too short"
            told = await asyncio.gather(*(with_fault_at(number) for number in range(1, requests + 1)))
        assert max(told) > requests, "there was no fault"

    async def test_a_write_that_was_broken_off_is_never_committed(self, storage: Storage, prefix: str) -> None:
        """Neither if a request failed, in any step, nor if an append was cancelled."""
        data = content(2 * part_size(storage) + 1)
        failed, fail_at = 0, 1
        while True:
            writer = await storage.create(f"{prefix}/x")
            if not writer.paced and fail_at > 1:
                break
            with keeping_attempts(storage):
                storage.attempts = failing_at(fail_at)
                broken = not await self.was_written(writer, data, cancel=not writer.paced)
            if not broken:
                break
            failed, fail_at = failed + 1, fail_at + 1
            with pytest.raises(StorageError):
                await writer.commit()
            await writer.abort()
            assert await names(storage, prefix) == []
        await writer.abort()
        assert failed, "nothing was broken off"

    async def was_written(self, writer: Writer, data: bytes, *, cancel: bool) -> bool:
        appending = asyncio.create_task(writer.append(data))
        try:
            if cancel:
                await asyncio.sleep(0)
                appending.cancel()
            await appending
            await writer.commit()
        except (StorageUnavailable, asyncio.CancelledError):
            return False
        return True

    @pytest.fixture
    def nowhere(self) -> str | None:
        """A path in a bucket or container that does not exist, for backends that have buckets."""
        return None

    async def test_what_a_missing_bucket_holds_is_unknown_not_nothing(
        self, storage: Storage, prefix: str, nowhere: str | None
    ) -> None:
        """S4: a wrong name in a configuration is an error and does not look like an empty storage."""
        if nowhere is None:
            pytest.skip("has no buckets, or the test does not say")

        async def write_in_parts() -> None:
            if not isinstance(storage, MultipartStorage):
                await write(storage, nowhere, bytes(2 * part_size(storage) + 1))
                return
            upload = await storage.start_parts(nowhere)
            await storage.put_part(nowhere, upload, 1, 0, bytes(storage.part_size), last=False)

        uses: dict[str, Callable[[], Awaitable[object]]] = {
            "read": lambda: read(storage, nowhere),
            "stat": lambda: storage.stat(nowhere),
            "list": lambda: names(storage, nowhere),
            "write": lambda: write(storage, nowhere, b"1"),
            "write in parts": write_in_parts,
            "copy": lambda: storage.copy(nowhere, f"{prefix}/x"),
            "delete": lambda: storage.delete([nowhere]),
        }
        for name, use in uses.items():
            with pytest.raises(StorageError, match=re.escape(nowhere.partition("/")[0])) as caught:
                await use()
            assert not isinstance(caught.value, (ObjectNotFound, StorageUnavailable)), name
            assert caught.value.hint, name

    async def test_slow_answers_are_answers(self, storage: Storage, prefix: str) -> None:
        """S5: latency"""
        with keeping_attempts(storage):
            slow = ResilientStorage(FaultyStorage(storage, latency=0.05))
            await write(slow, f"{prefix}/x", b"1")
            assert await read(slow, f"{prefix}/x") == b"1"
            assert {kind: one.retries for kind, one in slow.inner.statistics().items() if one.retries} == {}


@contextmanager
def keeping_attempts(storage: Storage) -> Iterator[None]:
    """Restore the backend's `attempts` afterwards, since a wrapper sets them."""
    before = storage.attempts
    try:
        yield
    finally:
        storage.attempts = before


def failing_at(number: int) -> Attempts:
    """Make the `number`-th step fail before it does anything. Steps are not retried."""
    steps = count(1)

    async def attempts(what: str, path: str, step: Callable[[], Awaitable[T]]) -> T:
        if next(steps) == number and what != "drop":
            raise StorageUnavailable(f"injected at {what} of {path}")
        return await step()

    return attempts


async def tell_story(storage: Storage, place: str, *, written: bool) -> None:
    """Do everything that is safe to repeat in the life of an object, from its creation to its end."""
    if not written:
        try:
            await write(storage, f"{place}/a", b"1")
        except StorageUnavailable:  # the caller must repeat a write
            await write(storage, f"{place}/a", b"1")
    if storage.capabilities.exclusive_create:
        await storage.create_exclusive(f"{place}/lock", b"mine")
        await storage.delete([f"{place}/lock"])
    await storage.rename(f"{place}/a", f"{place}/b")
    assert await read(storage, f"{place}/b") == b"1"
    assert await names(storage, place) == ["b"]
    await storage.delete([f"{place}/b"])
    with pytest.raises(ObjectNotFound):
        await storage.stat(f"{place}/b")
