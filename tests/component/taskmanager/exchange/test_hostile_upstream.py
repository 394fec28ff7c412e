"""A mirror whose upstream is broken, or is somebody else: bounded memory, bounded time, a clear error (E45, J11)."""

from __future__ import annotations

import asyncio
import contextlib
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import msgspec
import pytest

from minflinkd.blob.transfer import Pace
from minflinkd.taskmanager.exchange import mirror, remote_log
from minflinkd.taskmanager.exchange.access import ExchangeUnreachable
from minflinkd.taskmanager.exchange.log import DATA, DataFile, Entry, EntryKind, ExchangeDamaged
from minflinkd.taskmanager.exchange.remote_log import RemoteLog
from tests.component.taskmanager.exchange.mirror_world import TASK, TOKEN, WRITER, entries, mirroring
from tests.waiting import until

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]
NAME = "e" * 32 + ".parquet"
MIB = 1 << 20
MEMORY = 64 * MIB  # that one request may take


class Upstream:
    """Answers each request by its path, as bytes or as a function that writes them. `asked` counts the requests."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes | Answer] = {"schema": ok(b"{}"), "consumed": ok(b""), "covered": ok(b"")}
        self.asked: dict[str, int] = {}
        self.url = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Upstream]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            kind = head.split("?")[0].split("/")[3].split(" ")[0]
            self.asked[kind] = self.asked.get(kind, 0) + 1
            answer = self.answers[kind]
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(writer)
        writer.close()


def ok(body: bytes, *, length: int | None = None, more: str = "", status: str = "200 OK") -> bytes:
    size = len(body) if length is None else length
    return f"HTTP/1.1 {status}\r\nContent-Length: {size}\r\n{more}Connection: close\r\n\r\n".encode() + body


def of_entries(*found: Entry) -> bytes:
    return ok(msgspec.json.encode(found))


def with_file(name: str = NAME, size: int = 5) -> bytes:
    return of_entries(Entry(kind=EntryKind.DATA, files=(DataFile(name, 1, size),)))


def endless(piece: bytes, *, status: str = "200 OK", head: bytes = b"\r\n") -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status}\r\nConnection: close\r\n".encode() + head)
        while True:
            writer.write(piece)
            await writer.drain()

    return answer


def drip(head: bytes, piece: bytes) -> Answer:
    """Write a little from time to time, so that the connection is never silent."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while not writer.is_closing():
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.02)

    return answer


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with Upstream().running() as one:
        yield one


@pytest.fixture
def source(http: aiohttp.ClientSession, upstream: Upstream) -> RemoteLog:
    return RemoteLog(http, upstream.url, WRITER, token=TOKEN)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow answer is given up after part of a second."""
    monkeypatch.setattr(remote_log, "SILENCE", 0.3)
    monkeypatch.setattr(remote_log, "BEGINNING", 0.3)
    monkeypatch.setattr(Pace, "SLOWEST", 1000)


@pytest.mark.parametrize("kind", ["schema", "entries"])
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (endless(b"[" * MIB), "more than"),
        (endless(b"x" * MIB, status="500 Oops"), "HTTP 500"),
        (endless(b"X-More: 1\r\n" * 1000, head=b""), None),
        (ok(b"", status="302 Found", more="Location: http://127.0.0.1:9/schema\r\n"), "HTTP 302"),
        (ok(b"[]", length=1000), None),
        (ok(b"\x1f\x8b", more="Content-Encoding: gzip\r\n"), None),
        (ok(b"[]", more="Content-Encoding: identity, x\r\n"), None),
        (ok(b"\xff\xfe"), "something else than"),
        (ok(b"\xff\xfe", more="Content-Type: text/plain; charset=nothing\r\n"), "something else than"),
        (b"\x15\x03\x01\x00\x02\x02\x50", None),
        (b"", None),
    ],
    ids=[
        *("endless", "endless error", "endless head", "elsewhere", "cut off", "packed", "packed oddly", "no text"),
        *("no such charset", "TLS", "nothing"),
    ],
)
async def test_an_answer_that_no_good_upstream_gives_is_unreachable(
    upstream: Upstream, source: RemoteLog, kind: str, answer: bytes | Answer, words: str | None
) -> None:
    """It takes no more memory than a good one, and another try may succeed."""
    upstream.answers[kind] = answer
    tracemalloc.start()
    try:
        async with asyncio.timeout(60):
            with pytest.raises(ExchangeUnreachable, match=words):
                await (source.schema() if kind == "schema" else source.entries(0))
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "body", [b"{}", b'[{"kind":"data"', b'[{"kind":"no such"}]', b'[{"kind":"barrier","x":[]}, 7]']
)
async def test_what_is_no_list_of_entries_is_unreachable(upstream: Upstream, source: RemoteLog, body: bytes) -> None:
    upstream.answers["entries"] = ok(body)
    with pytest.raises(ExchangeUnreachable, match="something else than entries"):
        await source.entries(0)


@pytest.mark.parametrize(
    "answer",
    [
        with_file("../../outside"),
        with_file("/etc/passwd"),
        with_file(NAME + "\n"),
        with_file(f".{NAME}.part"),
        with_file(size=-1),
        ok(b'[{"kind":"data","files":[{"name":"%b","rows":1,"size":1%b}]}]' % (NAME.encode(), b"0" * 400)),
        ok(b'[{"kind":"barrier","checkpoint_id":1%b}]' % (b"0" * 30)),
        of_entries(*(2 * [Entry(kind=EntryKind.DATA, files=(DataFile(NAME, 1, 5),))])),
        of_entries(*(501 * [Entry(kind=EntryKind.WATERMARK, watermark_ms=1)])),
    ],
    ids=["up", "absolute", "line", "part", "negative", "huge", "barrier", "twice", "many"],
)
async def test_entries_that_no_task_writes_are_damage_and_nothing_is_written(
    http: aiohttp.ClientSession, upstream: Upstream, tmp_path: Path, answer: bytes
) -> None:
    """No file is asked for, and none appears, in the directory or outside."""
    upstream.answers["entries"] = answer
    async with mirroring(http, upstream.url, tmp_path / "here") as running:
        assert isinstance(await running.failure(), ExchangeDamaged)
    assert "data" not in upstream.asked
    assert entries(tmp_path / "here") == []
    assert list((tmp_path / "here" / DATA).iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


@pytest.mark.parametrize(
    "answer",
    [endless(b"x" * MIB), ok(b"1234"), ok(b"123", length=5), ok(b"123456"), ok(b"12345", status="206 Partial Content")],
    ids=["endless", "short", "cut off", "long", "a part"],
)
async def test_a_file_that_is_not_what_its_entry_says_leaves_nothing(
    upstream: Upstream, source: RemoteLog, tmp_path: Path, answer: bytes | Answer
) -> None:
    upstream.answers["data"] = answer
    async with asyncio.timeout(60):
        with pytest.raises(ExchangeUnreachable):
            await source.fetch(DataFile(NAME, 1, 5), tmp_path / NAME)
    assert list(tmp_path.iterdir()) == []


async def test_a_file_for_which_the_disk_has_no_room_is_not_begun(
    upstream: Upstream, source: RemoteLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever size an entry claims, the disk of others is not filled."""
    monkeypatch.setattr(remote_log.shutil, "disk_usage", lambda _: SimpleNamespace(free=4))
    with pytest.raises(ExchangeUnreachable, match="4 are free"):
        await source.fetch(DataFile(NAME, 1, 5), tmp_path / NAME)
    assert upstream.asked == {}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", ["schema", "entries", "data"])
@pytest.mark.parametrize("where", ["in the head", "in the body"])
async def test_an_upstream_that_drips_is_given_up(
    upstream: Upstream, source: RemoteLog, tmp_path: Path, kind: str, where: str
) -> None:
    """A byte now and then would hold the reader for ever, as no request would fail."""
    head = b"HTTP/1.1 200 OK\r\n" if where == "in the head" else b"HTTP/1.1 200 OK\r\nContent-Length: 90000\r\n\r\n"
    upstream.answers[kind] = drip(head, b"X: 1\r\n" if where == "in the head" else b"[")
    asking: dict[str, Callable[[], Awaitable[object]]] = {
        "schema": source.schema,
        "entries": lambda: source.entries(0),
        "data": lambda: source.fetch(DataFile(NAME, 1, 90_000), tmp_path / NAME),
    }
    async with asyncio.timeout(30):
        with pytest.raises(ExchangeUnreachable, match="no answer in time"):
            await asking[kind]()
    assert list(tmp_path.iterdir()) == []


async def test_an_upstream_that_does_not_wait_for_entries_is_not_asked_all_the_time(
    http: aiohttp.ClientSession, upstream: Upstream, tmp_path: Path
) -> None:
    """It would cost both sides a core."""
    upstream.answers["entries"] = ok(b"[]")
    async with mirroring(http, upstream.url, tmp_path / "here"):
        await until(lambda: upstream.asked.get("entries", 0) >= 2)
        loop = asyncio.get_running_loop()
        began, before = loop.time(), upstream.asked["entries"]
        await until(lambda: upstream.asked["entries"] >= before + 5)
        assert loop.time() - began >= 5 * mirror.NOT_YET


async def test_an_upstream_that_writes_without_end_waits_for_the_reader(
    http: aiohttp.ClientSession, upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries without data cost a file each."""
    monkeypatch.setattr(mirror, "MOST_WAITING", 100)
    upstream.answers["entries"] = of_entries(*(60 * [Entry(kind=EntryKind.WATERMARK, watermark_ms=1)]))
    async with mirroring(http, upstream.url, tmp_path / "here") as running:
        await until(lambda: len(entries(running.directory)) == 100)
        asked = upstream.asked["entries"]
        (running.directory / "consumed" / TASK).write_text("50")
        await until(lambda: upstream.asked["entries"] > asked)
        await until(lambda: max(entries(running.directory)) == 149)
        assert len(entries(running.directory)) <= 101


async def test_a_file_that_a_later_entry_names_with_another_size_is_damage(
    http: aiohttp.ClientSession, upstream: Upstream, tmp_path: Path
) -> None:
    """What is there is not what that entry is about."""
    upstream.answers["data"], upstream.answers["entries"] = ok(b"12345"), with_file()
    async with mirroring(http, upstream.url, tmp_path / "here") as running:
        await until(lambda: entries(running.directory) != [])
        upstream.answers["entries"] = with_file(size=6)
        failure = await running.failure()
    assert isinstance(failure, ExchangeDamaged)
    assert "one with 5 bytes, one with 6" in str(failure)
