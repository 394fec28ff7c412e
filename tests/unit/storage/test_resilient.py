"""Requests to a storage: repeated, bounded in time and number, counted, with few kinds of errors (S4, S6)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
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
)
from minflinkd.storage.options import CommonOptions
from tests.unit.storage.memory import OPTIONS, Memory, around, now, read, unavailable, write

pytestmark = pytest.mark.looptime


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
    """Stands for a thread or a library that cannot be cancelled."""

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
    """Requests under way are not repeated either: they would connect anew, and nobody would close that connection."""
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


class Nested(Memory):
    """Deletes in steps, each with its own tries."""

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
