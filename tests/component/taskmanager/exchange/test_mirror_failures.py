"""A mirror whose connection breaks, whose log goes away or is damaged."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

import aiohttp
import pytest

from minflinkd.runtime.errors import Consequence
from minflinkd.taskmanager.exchange.access import ExchangeUnreachable
from minflinkd.taskmanager.exchange.endpoint import DataEndpoint
from minflinkd.taskmanager.exchange.log import (
    DATA,
    DataFile,
    Entry,
    EntryKind,
    ExchangeDamaged,
    LogWriter,
    entry_path,
    read_entry,
    read_schema,
)
from minflinkd.taskmanager.exchange.remote_log import RemoteLog
from tests.component.taskmanager.exchange.mirror_world import TOKEN, WRITER, add, barrier, entries, mirroring
from tests.waiting import until


class CutOnce:
    """A proxy between a mirror and an endpoint. It cuts one connection after a number of bytes of the answers."""

    def __init__(self, port: int, after: int) -> None:
        self.cut = asyncio.Event()
        self.url = ""
        self._port = port
        self._left = after

    async def __aenter__(self) -> CutOnce:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, to_there = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.close()
            return
        ways = [
            asyncio.create_task(self._carry(reader, to_there, counted=False)),
            asyncio.create_task(self._carry(there, writer, counted=True)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        for end in (writer, to_there):
            end.transport.abort()

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, counted: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := await source.read(65536):
                if counted and not self.cut.is_set():
                    self._left -= len(piece)
                    if self._left < 0:
                        self.cut.set()
                        return
                target.write(piece)
                await target.drain()


async def test_a_connection_that_ends_in_the_middle_of_a_file_while_its_server_is_started_anew(
    http: aiohttp.ClientSession, log: LogWriter, tmp_path: Path
) -> None:
    """No entry appears before all of its data is here and whole (J11)."""
    content = bytes(range(256)) * 40_000  # 10 MB
    async with DataEndpoint(root=tmp_path / "there", token=TOKEN, host="127.0.0.1", ports=[0]) as endpoint:
        port = int(endpoint.url.rpartition(":")[2])
        add(log, content, b"small")
        async with CutOnce(port, 3_000_000) as wire, mirroring(http, wire.url, tmp_path / "here") as mirror:
            await wire.cut.wait()
            await endpoint.aclose()
            assert entries(mirror.directory) == []
            add(log, b"meanwhile")
            again = DataEndpoint(root=tmp_path / "there", token=TOKEN, host="127.0.0.1", ports=[port])
            async with again:
                await until(lambda: len(entries(mirror.directory)) == 2)
                entry = read_entry(mirror.directory, 0)
                assert entry is not None
                assert (mirror.directory / DATA / entry.files[0].name).read_bytes() == content
                assert not list((mirror.directory / DATA).glob(".*"))
                assert not mirror.task.done()


@pytest.mark.parametrize("change", [b"", b"shor", b"longer than it is to be"])
async def test_a_file_of_another_size_is_never_shown_to_the_reader(
    http: aiohttp.ClientSession, endpoint: DataEndpoint, log: LogWriter, tmp_path: Path, change: bytes
) -> None:
    entry = add(log, b"short", b"other")
    (log.directory / DATA / entry.files[0].name).write_bytes(change)
    async with mirroring(http, endpoint.url, tmp_path / "here", patience=0.2) as mirror:
        failure = await mirror.failure()
    assert isinstance(failure, ExchangeUnreachable)
    assert failure.consequence is Consequence.RETRYABLE
    assert entries(mirror.directory) == []
    assert not (mirror.directory / DATA / entry.files[0].name).exists()


async def test_an_endpoint_that_does_not_come_back_fails_the_reader_in_time(
    http: aiohttp.ClientSession, log: LogWriter, tmp_path: Path
) -> None:
    async with (
        DataEndpoint(root=tmp_path / "there", token=TOKEN, host="127.0.0.1", ports=[0]) as endpoint,
        mirroring(http, endpoint.url, tmp_path / "here", patience=0.3) as mirror,
    ):
        await until(lambda: read_schema(mirror.directory))
        await endpoint.aclose()
        began = time.monotonic()
        assert isinstance(await mirror.failure(), ExchangeUnreachable)
        assert time.monotonic() - began < 5


async def test_a_log_that_goes_while_it_is_read_fails_the_reader(
    http: aiohttp.ClientSession, endpoint: DataEndpoint, log: LogWriter, tmp_path: Path
) -> None:
    async with mirroring(http, endpoint.url, tmp_path / "here", patience=0.3) as mirror:
        await until(lambda: read_schema(mirror.directory))
        log.directory.rename(tmp_path / "gone")
        assert isinstance(await mirror.failure(), ExchangeUnreachable)


@pytest.mark.parametrize("damage", ["missing", "torn"])
async def test_an_entry_that_is_gone_or_torn_is_damage(
    http: aiohttp.ClientSession, endpoint: DataEndpoint, log: LogWriter, tmp_path: Path, damage: str
) -> None:
    """No entry is skipped: the tasks restart from a checkpoint."""
    for n in range(3):
        barrier(log, n)
    if damage == "missing":
        entry_path(log.directory, 0).unlink()
    else:
        entry_path(log.directory, 0).write_bytes(b"{")
    with pytest.raises(ExchangeDamaged):
        await RemoteLog(http, endpoint.url, WRITER, token=TOKEN).entries(0)
    async with mirroring(http, endpoint.url, tmp_path / "here") as mirror:
        assert isinstance(await mirror.failure(), ExchangeDamaged)
    assert entries(tmp_path / "here") == []


async def test_a_name_that_is_no_data_files_is_not_fetched(
    http: aiohttp.ClientSession, endpoint: DataEndpoint, log: LogWriter, tmp_path: Path
) -> None:
    log.append(Entry(kind=EntryKind.DATA, files=(DataFile("../../outside", 1, 1),)))
    async with mirroring(http, endpoint.url, tmp_path / "here") as mirror:
        assert isinstance(await mirror.failure(), ExchangeDamaged)
