"""File systems of fsspec as storages that are written: the conformance tests on a real sshd and on local files."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import fsspec
import psutil
import pytest

from minflinkd.storage.conformance import ServerLossConformance, StorageConformance, names, read, write
from minflinkd.storage.fsspec_storage import FsspecOptions, FsspecStorage
from minflinkd.storage.interface import InvalidPath, PermissionDenied, Storage, StorageUnavailable
from minflinkd.storage.options import CommonOptions
from minflinkd.storage.proving import StorageUnfit
from minflinkd.storage.registry import Storages
from minflinkd.storage.temporary import TEMPORARY
from tests.servers.fixtures import running
from tests.servers.sftp import Sftp, SftpWithFullDisk, SftpWithoutLinks
from tests.waiting import until

WRITABLE = FsspecOptions(writable=True)


def path_at(server: Sftp) -> str:
    """Return a fresh directory, in the storage's form."""
    return f"{server.uri.removeprefix('sftp://')}/{secrets.token_hex(8)}"


def hidden(directory: Path) -> list[str]:
    return [str(path) for path in directory.rglob(f"*{TEMPORARY}")]


class TestLocalFilesOfFsspec(StorageConformance):
    entries = 250
    hurried = CommonOptions(request_timeout=1, deadline=60, retries=50, pause=0.01, longest_pause=0.1)

    @pytest.fixture
    def prefix(self, tmp_path: Path) -> str:
        return str(tmp_path)

    @pytest.fixture
    async def storage(self) -> AsyncIterator[Storage]:
        storage = FsspecStorage(WRITABLE, scheme="local")
        yield storage
        await storage.aclose()


class TestSftp(StorageConformance):
    entries = 150
    hurried = CommonOptions(request_timeout=5, deadline=120, retries=50, pause=0.01, longest_pause=0.1)

    @pytest.fixture
    def prefix(self, sftp: Sftp) -> str:
        return path_at(sftp)

    @pytest.fixture
    async def storage(self, sftp: Sftp) -> AsyncIterator[Storage]:
        storage = FsspecStorage(WRITABLE, scheme="sftp")
        with sftp.credentials():
            yield storage
        await storage.aclose()
        assert not hidden(sftp.files)


@pytest.mark.slow  # TestLocalFilesOfFsspec and the other storages have the same code
class TestSftpWhenItsServerDies(ServerLossConformance):
    @pytest.fixture
    async def server(self, tmp_path: Path) -> AsyncIterator[Sftp]:
        async with running(Sftp, tmp_path / "sftp") as server:
            yield server

    @pytest.fixture
    def prefix(self, server: Sftp) -> str:
        return path_at(server)

    @pytest.fixture
    async def storage(self, server: Sftp) -> AsyncIterator[Storage]:
        storage = FsspecStorage(WRITABLE, scheme="sftp")
        with server.credentials():
            yield storage
        await storage.aclose()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
async def storages() -> AsyncIterator[Storages]:
    schemes = ("sftp", "local", "memory")
    opened = Storages({**{f"{scheme}.writable": "true" for scheme in schemes}, "sftp.retries": "1"})
    yield opened
    await opened.aclose()


async def test_a_place_whose_checks_pass_is_writable_and_is_checked_once(
    sftp: Sftp, storages: Storages, stack: ExitStack
) -> None:
    stack.enter_context(sftp.credentials())
    place = storages.at(f"{sftp.uri}/{secrets.token_hex(8)}")
    await storages.require_writable(place)
    assert await names(place.storage, place.path) == []
    requests = storages.statistics()["sftp"]["create"].requests
    await storages.require_writable(place)
    assert storages.statistics()["sftp"]["create"].requests == requests


async def test_a_server_without_hard_links_is_refused_with_the_check_that_fails(
    storages: Storages, tmp_path: Path, stack: ExitStack
) -> None:
    async with running(SftpWithoutLinks, tmp_path / "sftp") as server:
        stack.enter_context(server.credentials())
        with pytest.raises(StorageUnfit, match=r"the check exclusive-create failed: .*ermission denied") as caught:
            await storages.require_writable(storages.at(f"{server.uri}/checkpoints"))
        assert caught.value.code == "storage-unfit"
        assert not [path for path in server.files.rglob("*") if path.is_file()]


async def test_a_file_system_without_one_step_operations_is_refused_with_the_check_that_fails(
    storages: Storages,
) -> None:
    """fsspec's exclusive create in memory holds within one process only."""
    place = storages.at("memory://checkpoints")
    with pytest.raises(StorageUnfit, match="the check exclusive-create failed: minflinkd knows no way"):
        await storages.require_writable(place)
    assert fsspec.filesystem("memory").find("/checkpoints") == []


async def test_a_check_without_an_answer_refuses_nothing_for_good(storages: Storages) -> None:
    with pytest.raises(StorageUnavailable):
        await storages.require_writable(storages.at("sftp://127.0.0.1:1/checkpoints"))


async def test_a_writer_that_is_killed_leaves_a_hidden_file_that_goes_with_its_directory(
    sftp: Sftp, stack: ExitStack
) -> None:
    stack.enter_context(sftp.credentials())
    storage, prefix = FsspecStorage(WRITABLE, scheme="sftp"), path_at(sftp)
    writer = await storage.create(f"{prefix}/d/x")
    await writer.append(bytes(5 << 20))  # and then nothing more
    (left,) = hidden(sftp.files)
    assert await names(storage, prefix) == []
    await storage.delete([f"{prefix}/d"], below=prefix)
    assert hidden(sftp.files) == [left], "its writer may live"
    os.utime(left, (0, 0))
    await storage.delete([f"{prefix}/d"], below=prefix)
    assert not Path(left).parent.exists()
    await storage.aclose()


async def test_what_the_server_could_not_store_does_not_appear(tmp_path: Path, stack: ExitStack) -> None:
    """Its answer must be noticed, although it comes after more was sent."""
    async with running(SftpWithFullDisk, tmp_path / "sftp") as server:
        stack.enter_context(server.credentials())
        storage, prefix = FsspecStorage(WRITABLE, scheme="sftp"), path_at(server)
        await write(storage, f"{prefix}/x", b"1")
        for size in (2 << 20) + 1, 5 << 20:
            with pytest.raises(StorageUnavailable):
                await write(storage, f"{prefix}/x", bytes(size))
        assert await read(storage, f"{prefix}/x") == b"1"
        assert not hidden(server.files)
        await storage.aclose()


async def test_a_connection_that_hangs_is_closed_and_the_next_try_has_a_new_one(
    tmp_path: Path, stack: ExitStack
) -> None:
    """So the thread that waited for it ends, too."""
    async with running(Sftp, tmp_path / "sftp") as server:
        stack.enter_context(server.credentials())
        storages = Storages({"sftp.writable": "true", "sftp.request-timeout": "4"})
        place = storages.at(f"{server.uri}/x")
        await place.write_bytes(b"1")
        hanging = psutil.Process(server.pid).children(recursive=True)
        for process in hanging:
            process.suspend()
        assert await place.read_bytes() == b"1"
        assert storages.statistics()["sftp"]["open_read"].retries + storages.statistics()["sftp"]["stat"].retries == 1

        async def ended() -> bool:
            return not [thread for thread in threading.enumerate() if thread.name == "fsspec sftp"]

        await until(ended, "no thread waits for an answer")
        await storages.aclose()


async def test_a_long_object_that_was_replaced_is_never_read_in_two_halves(tmp_path: Path) -> None:
    storage, path = FsspecStorage(WRITABLE, scheme="local"), str(tmp_path / "x")
    await write(storage, path, bytes(9 << 20))
    pieces = storage.open_read(path)
    await anext(pieces)
    await write(storage, path, bytes(8 << 20) + b"1" * (1 << 20))
    with pytest.raises(StorageUnavailable, match="was replaced"):
        async for _ in pieces:
            pass
    assert len(await read(storage, path)) == 9 << 20


async def test_a_relative_local_path_is_refused() -> None:
    """The daemon and the TaskManagers have different working directories."""
    with pytest.raises(InvalidPath):
        await write(FsspecStorage(WRITABLE, scheme="local"), "x/y", b"1")


async def test_a_directory_that_cannot_be_read_is_not_taken_for_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fsspec's `find` leaves it out. A recovery would miss the checkpoints in it."""
    storage = FsspecStorage(WRITABLE, scheme="local")
    await write(storage, f"{tmp_path}/d/x", b"1")
    real = fsspec.implementations.local.LocalFileSystem.ls

    def refuse(system: object, path: str, detail: bool = False) -> object:
        if path.endswith("/d"):
            raise PermissionError(13, "Permission denied")
        return real(system, path, detail=detail)

    monkeypatch.setattr(fsspec.implementations.local.LocalFileSystem, "ls", refuse)
    with pytest.raises(PermissionDenied):
        await names(storage, str(tmp_path))
