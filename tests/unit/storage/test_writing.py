"""A write that broke off cannot be continued: what is committed has no gap, whoever holds the writer (S4)."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from minflinkd.storage.interface import (
    Capabilities,
    Entry,
    ObjectNotFound,
    Storage,
    StorageFull,
    StorageUnavailable,
    Writer,
)
from minflinkd.storage.multipart import MultipartStorage, Part
from minflinkd.storage.recording import RecordedStorage
from minflinkd_local import LocalStorage


class Parts(MultipartStorage):
    """The request of the kind `fault` fails once, or never returns."""

    scheme = ("parts",)
    capabilities = Capabilities()
    part_size = 4

    def __init__(self, fault: str, *, hang: bool = False) -> None:
        super().__init__()
        self.objects: dict[str, str] = {}
        self.fault, self.hang = fault, hang

    async def act(self, kind: str) -> None:
        if kind == self.fault:
            self.fault = ""
            if self.hang:
                await asyncio.get_running_loop().create_future()
            raise StorageUnavailable(f"parts: {kind} was lost")

    async def put(self, path: str, data: bytes, *, exclusive: bool = False) -> Entry:
        await self.act("put")
        self.objects[path] = data.decode()
        return Entry(path, len(data), 0)

    async def start_parts(self, path: str) -> str:
        await self.act("start")
        return "upload"

    async def put_part(self, path: str, upload: str, number: int, offset: int, data: bytes, *, last: bool) -> Part:
        await self.act(f"part {number}")
        return Part(number, len(data), data.decode())

    async def finish_parts(self, path: str, upload: str, parts: Sequence[Part]) -> Entry:
        await self.act("finish")
        self.objects[path] = "".join(part.tag for part in parts)
        return Entry(path, len(self.objects[path]), 0)

    async def drop_parts(self, path: str, upload: str) -> None:
        return

    async def open_read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        yield self.objects[path].encode()

    async def list(self, prefix: str) -> AsyncIterator[Entry]:
        for path in self.objects:
            yield await self.stat(path)

    async def delete(self, paths: Sequence[str], *, below: str | None = None) -> None:
        return

    async def stat(self, path: str) -> Entry:
        raise ObjectNotFound(path)

    async def rename(self, source: str, target: str) -> None:
        return


@pytest.mark.parametrize("hang", [False, True], ids=["failed", "cancelled"])
@pytest.mark.parametrize("fault", ["put", "start", "part 1", "part 2", "part 3", "finish"])
async def test_a_write_in_parts_that_was_broken_off_is_never_committed(fault: str, hang: bool) -> None:
    storage = Parts(fault, hang=hang)
    writer = await storage.create("x")
    pieces = [b"aa"] if fault == "put" else [b"aaaab", b"bbbc", b"c"]
    broken = 0
    for step in [*(lambda piece=piece: writer.append(piece) for piece in pieces), writer.commit, writer.commit]:
        try:
            async with asyncio.timeout(0.05):
                await step()  # type: ignore[operator] # of one kind
        except (StorageUnavailable, TimeoutError):
            broken += 1
    assert broken >= 2
    assert storage.objects == {}
    await writer.abort()


async def test_of_parts_that_fail_together_none_goes_unnoticed() -> None:
    """The step that raises is the only one that reports them."""

    class AllFail(Parts):
        async def act(self, kind: str) -> None:
            if kind.startswith("part"):
                raise StorageUnavailable(f"parts: {kind} was lost")

    said = list[str]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context["message"]))
    writer = await AllFail("").create("x")
    with pytest.raises(StorageUnavailable, match="lost"):
        await writer.append(bytes(40))
    await writer.abort()
    del writer
    gc.collect()
    assert said == []


async def test_a_local_write_that_failed_is_never_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full, and then something on it is deleted."""
    writer, real, writes = await LocalStorage().create(f"{tmp_path}/x"), os.write, 0

    def full(fd: int, data: bytes) -> int:
        nonlocal writes
        writes += 1
        if writes == 1:
            return real(fd, data[:4])
        raise OSError(errno.ENOSPC, "No space left on device")

    await writer.append(b"0123456789")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(StorageFull):
            await writer.commit()
    with pytest.raises(StorageUnavailable, match="broken off"):
        await writer.commit()
    await writer.abort()
    assert os.listdir(tmp_path) == []


async def test_a_backend_that_forgets_a_failure_is_not_asked_to_go_on() -> None:
    """Everything that comes through `Storages` is watched by `RecordedStorage`."""

    class Forgetful(Writer):
        data = b""
        committed = False

        async def append(self, data: bytes | memoryview) -> None:
            if data == b"bad":
                raise StorageUnavailable("lost")
            self.data += data

        async def commit(self) -> Entry:
            self.committed = True
            return Entry("x", len(self.data), 0)

        async def abort(self) -> None:
            return

    class Forgetting(Parts):
        async def create(self, path: str) -> Writer:
            return inner

    inner = Forgetful()
    storage: Storage = RecordedStorage(Forgetting(""))
    writer = await storage.create("x")
    await writer.append(b"good")
    with pytest.raises(StorageUnavailable, match="lost"):
        await writer.append(b"bad")
    for step in (writer.append(b"more"), writer.commit()):
        with pytest.raises(StorageUnavailable, match="broken off"):
            await step
    assert not inner.committed
