"""The HDFS backend against a real NameNode and DataNode: the conformance tests, and tests of its own."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import cast

import psutil
import pytest
import pytest_asyncio
from hdfs_native import AsyncClient, AsyncFileWriter

from minflinkd.runtime.units import Duration
from minflinkd.storage.conformance import MIB, ODD_NAMES, StorageConformance, content, names, read, write
from minflinkd.storage.interface import (
    Entry,
    InvalidPath,
    PermissionDenied,
    StorageCorrupt,
    StorageError,
    StorageFull,
    StorageUnavailable,
    closable,
    once,
)
from minflinkd.storage.options import CommonOptions
from minflinkd.storage.resilient import ResilientStorage
from minflinkd.storage.temporary import TEMPORARY
from minflinkd_hdfs import HdfsOptions, HdfsStorage
from minflinkd_hdfs.clients import client_of
from minflinkd_hdfs.errors import of_text
from minflinkd_hdfs.writer import HdfsWriter
from tests.servers.fixtures import running
from tests.servers.hdfs import Hdfs
from tests.storage.processes import start_writer

_numbers = itertools.count()


@pytest_asyncio.fixture
async def storage() -> AsyncIterator[HdfsStorage]:
    storage = HdfsStorage()
    yield storage
    await storage.aclose()


@pytest.fixture
def prefix(hdfs: Hdfs) -> str:
    return f"{hdfs.authority}/tests/{next(_numbers)}"


class TestHdfsStorage(StorageConformance):
    odd_names = [name for name in ODD_NAMES if not set(name) & set(":\\")]  # HDFS has no such names


# --- servers that die ---

DATA = bytes(range(256)) * 4096 * 3  # 3 MiB
PATIENCE = CommonOptions(request_timeout=20.0, deadline=90.0, retries=60, pause=0.1, longest_pause=0.5)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def fragile(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Hdfs]:
    """An HDFS whose nodes are killed. Each test leaves them running."""
    async with running(Hdfs, tmp_path_factory.mktemp("fragile")) as server:
        yield server


@pytest.mark.slow
async def test_a_write_rename_and_read_go_on_around_a_restart_of_the_namenode(
    fragile: Hdfs, storage: HdfsStorage
) -> None:
    """What was written before is still there, and waiting requests go on when safe mode has ended (S5)."""
    patient, directory = ResilientStorage(storage, PATIENCE), f"{fragile.authority}/namenode"
    await write(patient, f"{directory}/old", DATA)
    async with await patient.create(f"{directory}/new") as writer:
        await writer.append(DATA)
        await fragile.kill_namenode()
        with pytest.raises(StorageUnavailable):
            await storage.stat(f"{directory}/old")
        waiting = [
            asyncio.create_task(patient.rename(f"{directory}/old", f"{directory}/moved")),
            asyncio.create_task(names(patient, directory)),
        ]
        await fragile.restart_namenode()
        await asyncio.wait_for(asyncio.gather(*waiting), 60)
        assert await read(patient, f"{directory}/moved") == DATA
        await writer.append(DATA)
        await writer.commit()
    assert await read(patient, f"{directory}/new") == DATA + DATA
    assert await names(patient, directory) == ["moved", "new"]


@pytest.mark.slow
async def test_a_write_that_loses_its_datanode_fails_and_can_be_repeated(fragile: Hdfs, storage: HdfsStorage) -> None:
    """No half of it is visible. The write fails as transient within its deadline, and a repetition succeeds (S5)."""
    impatient = ResilientStorage(storage, CommonOptions(request_timeout=3.0, deadline=5.0, retries=1))
    patient, directory = ResilientStorage(storage, PATIENCE), f"{fragile.authority}/datanode"
    await write(patient, f"{directory}/old", DATA)

    async def write_on() -> None:
        async with await impatient.create(f"{directory}/x") as writer:
            await writer.append(DATA)
            await fragile.kill_datanode()
            while True:
                await writer.append(DATA)

    with pytest.raises(StorageUnavailable):
        await write_on()
    with pytest.raises(StorageUnavailable):
        await read(impatient, f"{directory}/old")
    assert await names(patient, directory) == ["old"]
    await fragile.restart_datanode()
    await write(patient, f"{directory}/x", DATA)
    assert await read(patient, f"{directory}/x") == DATA
    assert await read(patient, f"{directory}/old") == DATA


@pytest.mark.slow
@pytest.mark.parametrize("node", ["namenode", "datanode"])
async def test_a_read_around_a_restart_goes_on_or_fails_as_transient(
    fragile: Hdfs, storage: HdfsStorage, node: str
) -> None:
    """After a kill -9, what was read is right, and the rest arrives or is reported as missing (S5)."""
    kill, restart = {
        "namenode": (fragile.kill_namenode, fragile.restart_namenode),
        "datanode": (fragile.kill_datanode, fragile.restart_datanode),
    }[node]
    patient, path = ResilientStorage(storage, PATIENCE), f"{fragile.authority}/read/{node}"
    data = content(64 * MIB)
    await write(patient, path, data)
    got, restarting = bytearray(), list[asyncio.Task[None]]()
    try:
        async with aclosing(closable(patient.open_read(path))) as pieces:
            async for piece in pieces:
                got += piece
                if not restarting:
                    await kill()
                    restarting.append(asyncio.create_task(restart()))
    except StorageUnavailable:
        assert data.startswith(got)
    else:
        assert got == data
    assert len(got) > 0
    await asyncio.gather(*restarting)
    assert await read(patient, path) == data


@pytest.mark.slow
async def test_a_process_killed_while_writing_leaves_nothing_visible(
    hdfs: Hdfs, storage: HdfsStorage, prefix: str
) -> None:
    """The process gets kill -9 in the middle of a write. Its temporary file is there, hidden (S5)."""
    with start_writer("minflinkd_hdfs", "minflinkd_hdfs.HdfsStorage()", f"{prefix}/x") as process:
        process.kill()
    assert await names(storage, prefix) == []
    client, directory = client_of(hdfs.authority, HdfsOptions()), prefix.removeprefix(hdfs.authority)
    left = [status.path async for status in client.list_status(directory)]
    assert [name.endswith(TEMPORARY) for name in left] == [True]
    await write(storage, f"{prefix}/x", b"1")
    assert await read(storage, f"{prefix}/x") == b"1"
    assert await names(storage, prefix) == ["x"]


@pytest.mark.slow
@pytest.mark.usefixtures("heeding_ctrl_c")
async def test_a_process_whose_datanode_hangs_ends_when_it_is_told_to(fragile: Hdfs) -> None:
    """A request that nobody answers keeps no process from ending."""
    node = psutil.Process(fragile.datanode.pid)
    with start_writer("minflinkd_hdfs", "minflinkd_hdfs.HdfsStorage()", f"{fragile.authority}/hang/x") as process:
        node.suspend()
        try:
            process.send_signal(signal.SIGINT)
            await asyncio.to_thread(process.wait, 60)
        finally:
            node.resume()


# --- what is its own ---


class _LateReport:
    """A client and a file. The first `close` asks too early whether the file is complete, and waits."""

    length, modification_time = 5, 1
    questions = 0

    async def write(self, data: bytes) -> None:
        assert len(data) == self.length

    async def close(self) -> None:
        self.questions += 1
        if self.questions == 1:
            await asyncio.Event().wait()

    async def get_file_info(self, path: str) -> _LateReport:
        return self

    async def rename(self, source: str, target: str, *, overwrite: bool) -> None:
        assert self.questions == 2


async def test_a_file_that_is_not_complete_at_once_is_asked_for_again_at_once() -> None:
    """hdfs-native would wait for 0.5 s, although a DataNode's report is only some milliseconds late."""
    late = _LateReport()
    file, client = cast("AsyncFileWriter", late), cast("AsyncClient", late)
    writer = HdfsWriter(client, "host:1/x", "/x", "/.x", file, once)
    await writer.append(b"12345")
    assert await asyncio.wait_for(writer.commit(), 20) == Entry("host:1/x", 5, 1)


async def test_leftovers_go_when_their_writers_are_gone(hdfs: Hdfs, prefix: str) -> None:
    """A temporary file without a living writer is deleted with its directory. Others stay, however old they are."""
    storage = HdfsStorage(HdfsOptions(leftover_age=Duration(0)))
    writer = await storage.create(f"{prefix}/d/x")
    await writer.append(b"1")
    await write(storage, f"{prefix}/d/y", b"1")
    assert await names(storage, prefix) == ["d/y"]
    await storage.delete([f"{prefix}/d/y"], below=prefix)
    assert await names(storage, prefix) == []
    await writer.commit()
    assert await names(storage, prefix) == ["d/x"]

    client, directory = client_of(hdfs.authority, HdfsOptions()), prefix.removeprefix(hdfs.authority)
    left = await client.create(f"{directory}/d/.0123{TEMPORARY}")
    await left.close()
    assert await names(storage, prefix) == ["d/x"]
    await storage.delete([f"{prefix}/d/x"], below=prefix)
    assert [status.path async for status in client.list_status(directory)] == []
    await storage.aclose()


async def test_a_leftover_that_cannot_be_looked_at_fails_no_deletion(
    storage: HdfsStorage, prefix: str, hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is on a NameNode that is away, which is not even asked; the other is on this one. It is tried again later."""
    asked, remove = list[str](), storage._remove_directory

    async def removed(authority: str, directory: str, bound: str) -> bool:
        asked.append(authority + directory)
        if directory == "/forbidden":
            raise PermissionDenied("hdfs: not here")
        return await remove(authority, directory, bound)

    monkeypatch.setattr(storage, "_remove_directory", removed)
    for authority, directory in (("127.0.0.1:1", "/d"), (hdfs.authority, "/forbidden")):
        storage._leftovers._met[authority, directory] = 0.0, "/"
    for name in ("x", "y"):
        await write(storage, f"{prefix}/d/{name}", b"1")
        await storage.delete([f"{prefix}/d/{name}"], below=prefix)
        assert await names(storage, prefix) == []
    assert asked == [f"{prefix}/d", f"{hdfs.authority}/forbidden", f"{prefix}/d"]
    assert storage._leftovers.due({"127.0.0.1:1", hdfs.authority}) == [("127.0.0.1:1", "/d", "/")]


async def test_many_directories_go_with_what_was_in_them(
    hdfs: Hdfs, storage: HdfsStorage, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is requested once, next to the others. A neighbour's directories stay, and so does the bound."""
    monkeypatch.setattr("minflinkd_hdfs.storage._BATCH", 7)
    paths = [f"{prefix}/d/{number % 5}/{number}/x" for number in range(20)]
    for path in [*paths, f"{prefix}/d/1/stays"]:
        await write(storage, path, b"1")
    asked, remove = list[str](), storage._remove_directory

    async def removed(authority: str, directory: str, bound: str) -> bool:
        asked.append(directory)
        return await remove(authority, directory, bound)

    monkeypatch.setattr(storage, "_remove_directory", removed)
    await storage.delete(paths, below=prefix)
    assert await names(storage, prefix) == ["d/1/stays"]
    client, directory = client_of(hdfs.authority, HdfsOptions()), prefix.removeprefix(hdfs.authority)
    assert [status.path async for status in client.list_status(f"{directory}/d")] == [f"{directory}/d/1"]
    assert len(asked) == len(set(asked)) == 20 + 5 + 1


async def test_a_file_does_not_go_as_an_empty_directory_would(storage: HdfsStorage, prefix: str) -> None:
    await write(storage, f"{prefix}/d/x", b"1")
    await storage.delete([f"{prefix}/d/x/y"], below=prefix)
    assert await names(storage, prefix) == ["d/x"]


@pytest.mark.parametrize("path", ["", "host:1/a/../b", "host:1/a\0b", "host:1/a:b", "host:1/./a"])
async def test_paths_that_hdfs_cannot_hold_are_refused(storage: HdfsStorage, path: str) -> None:
    """S4"""
    with pytest.raises(InvalidPath):
        await write(storage, path, b"")
    with pytest.raises(InvalidPath):
        await storage.delete([path])


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (r'RPCError("org.apache.hadoop.hdfs.server.namenode.SafeModeException", "x\n\tat y")', StorageUnavailable),
        (r'FatalRPCError("org.apache.hadoop.ipc.StandbyException", "x")', StorageUnavailable),
        (r'RPCError("org.apache.hadoop.security.AccessControlException", "denied")', PermissionDenied),
        (r'RPCError("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", "x")', StorageFull),
        (r'RPCError("java.io.IOException", "File /x could only be written to 0 of the 1 nodes")', StorageUnavailable),
        ('DataTransferError("All nodes failed for write")', StorageUnavailable),
        ("ChecksumError", StorageCorrupt),
    ],
)
def test_errors_are_of_few_kinds(text: str, kind: type[StorageError]) -> None:
    """Errors have the path, and no Java stack (S4)."""
    error = of_text("host:1/p", text)
    assert type(error) is kind
    assert "host:1/p" in error.message
    assert "\tat" not in error.message.replace("\\t", "\t")
