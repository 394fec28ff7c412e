"""A log that is read from another TaskManager: over real HTTP, with broken connections and readers that lag."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import aiohttp
import looptime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from yarl import URL

from minflinkd.rpc.messages import ExchangeSource
from minflinkd.runtime.errors import Consequence, ErrorInfo
from minflinkd.runtime.ids import AttemptId, ResourceId, VertexId
from minflinkd.taskmanager.exchange.access import ExchangeUnreachable
from minflinkd.taskmanager.exchange.endpoint import DataEndpoint, DataPortsTaken
from minflinkd.taskmanager.exchange.log import (
    DATA,
    ENTRIES,
    DataFile,
    Entry,
    EntryKind,
    ExchangeDamaged,
    LogWriter,
    consumed,
    entry_path,
    mark_consumed,
    read_entry,
    read_schema,
)
from minflinkd.taskmanager.exchange.mirror import Mirror
from minflinkd.taskmanager.exchange.mirrors import Mirrors
from minflinkd.taskmanager.exchange.remote_log import RemoteLog
from tests.waiting import until

WRITER, READER = AttemptId("a" * 32), AttemptId("b" * 32)
TOKEN, TASK, PLENTY = "token", "reader", 1 << 40
HERE, THERE = ResourceId("tm-here"), ResourceId("tm-there")


def add(log: LogWriter, *contents: bytes) -> Entry:
    """Append one micro-batch with one file for each content."""
    files = []
    for content in contents:
        name = f"{uuid4().hex}.parquet"
        (log.directory / DATA / name).write_bytes(content)
        files.append(DataFile(name, 1, len(content)))
    entry = Entry(kind=EntryKind.DATA, files=tuple(files), batch_id=log.next)
    log.append(entry)
    return entry


def barrier(log: LogWriter, number: int) -> Entry:
    entry = Entry(kind=EntryKind.BARRIER, checkpoint_id=number)
    log.append(entry)
    return entry


def entries(directory: Path) -> list[int]:
    return sorted(int(path.name) for path in (directory / ENTRIES).glob("[0-9]*"))


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def endpoint(tmp_path: Path) -> AsyncIterator[DataEndpoint]:
    async with DataEndpoint(root=tmp_path / "there", token=TOKEN, host="127.0.0.1", ports=[0]) as endpoint:
        yield endpoint


@pytest.fixture
def log(tmp_path: Path) -> LogWriter:
    """A log as the task upstream writes it."""
    log = LogWriter(tmp_path / "there" / WRITER, (TASK,))
    log.describe("schema")
    return log


class Running:
    """A mirror at work in `directory`. `failure` is the error that ended it."""

    def __init__(self, mirror: Mirror, directory: Path) -> None:
        self.directory = directory
        self.task = asyncio.create_task(mirror.run())

    async def failure(self) -> BaseException | None:
        async with asyncio.timeout(20):
            await asyncio.wait({self.task})
        return self.task.exception()


@contextlib.asynccontextmanager
async def mirroring(
    http: aiohttp.ClientSession,
    url: str,
    directory: Path,
    *,
    first: int = 0,
    max_backlog: int = PLENTY,
    patience: float = 20.0,
) -> AsyncIterator[Running]:
    source = RemoteLog(http, url, WRITER, token=TOKEN)
    mirror = Mirror(source, directory, reader=TASK, first=first, max_backlog=max_backlog, patience=patience)
    running = Running(mirror, directory)
    try:
        yield running
    finally:
        running.task.cancel()
        await asyncio.wait({running.task})


# --- what is mirrored ------------------------------------------------------------------------------------------------


async def test_a_mirror_has_the_schema_the_entries_and_their_data_as_they_are(
    http: aiohttp.ClientSession, endpoint: DataEndpoint, log: LogWriter, tmp_path: Path
) -> None:
    """J8, J11."""
    written = [add(log, b"one", b"two"), barrier(log, 1), add(log)]
    async with mirroring(http, endpoint.url, tmp_path / "here") as mirror:
        await until(lambda: len(entries(mirror.directory)) == 3)
        assert read_schema(mirror.directory) == "schema"
        written.append(add(log, b"later"))
        await until(lambda: len(entries(mirror.directory)) == 4)
        assert [read_entry(mirror.directory, n) for n in range(4)] == written
        for entry in written:
            for file in entry.files:
                assert (mirror.directory / DATA / file.name).read_bytes() == (
                    log.directory / DATA / file.name
                ).read_bytes()


async def test_a_mirror_begins_where_its_reader_was_restored(
    http: aiohttp.ClientSession, endpoint: DataEndpoint, tmp_path: Path
) -> None:
    """The log begins with the barrier of the checkpoint that both tasks were restored from (J9)."""
    log = LogWriter(tmp_path / "there" / WRITER, (TASK,), first=17)
    log.describe("schema")
    barrier(log, 3)
    add(log, b"data")
    async with mirroring(http, endpoint.url, tmp_path / "here", first=17) as mirror:
        await until(lambda: entries(mirror.directory) == [17, 18])


async def test_a_log_may_be_opened_after_its_reader_has_begun_to_wait(
    http: aiohttp.ClientSession, endpoint: DataEndpoint, tmp_path: Path
) -> None:
    async with mirroring(http, endpoint.url, tmp_path / "here", patience=0.0) as mirror:
        await until(lambda: (mirror.directory / ENTRIES).exists())
        log = LogWriter(tmp_path / "there" / WRITER, (TASK,))
        add(log, b"first")
        assert read_schema(mirror.directory) is None
        log.describe("schema")
        await until(lambda: entries(mirror.directory) == [0])


async def test_a_thousand_small_entries_come_in_their_order(
    http: aiohttp.ClientSession, endpoint: DataEndpoint, log: LogWriter, tmp_path: Path
) -> None:
    written = [add(log, b"%d" % n) if n % 3 else barrier(log, n) for n in range(1000)]
    async with mirroring(http, endpoint.url, tmp_path / "here") as mirror:
        seen = 0
        async with asyncio.timeout(60):
            while seen < 1000:
                while (entry := read_entry(mirror.directory, seen)) is not None:
                    assert entry == written[seen]
                    assert all((mirror.directory / DATA / file.name).exists() for file in entry.files)
                    seen += 1
                assert not any(number > seen for number in entries(mirror.directory)) or read_entry(
                    mirror.directory, seen
                )
                await asyncio.sleep(0.01)


async def test_what_the_reader_has_processed_is_deleted_on_both_sides(
    http: aiohttp.ClientSession, endpoint: DataEndpoint, log: LogWriter, tmp_path: Path
) -> None:
    """What the reader has processed is deleted in the mirror and in the log (J10)."""
    for _ in range(3):
        add(log, b"x" * 10)
    async with mirroring(http, endpoint.url, tmp_path / "here") as mirror:
        await until(lambda: len(entries(mirror.directory)) == 3)
        assert log.backlog() == 30
        mark_consumed(mirror.directory, TASK, 2)
        await until(lambda: log.backlog() == 10)
        await until(lambda: entries(mirror.directory) == [2])
        assert entries(log.directory) == [2]
        for directory in (mirror.directory, log.directory):
            assert len(list((directory / DATA).iterdir())) == 1


async def test_a_slow_reader_is_waited_for_and_its_task_upstream_is_too(
    http: aiohttp.ClientSession, endpoint: DataEndpoint, log: LogWriter, tmp_path: Path
) -> None:
    """A mirror fetches at most the bound and one entry ahead. However long the reader takes, nothing fails (J10)."""
    for _ in range(5):
        add(log, b"x" * 60)
    async with mirroring(http, endpoint.url, tmp_path / "here", max_backlog=100, patience=0.05) as mirror:
        await until(lambda: entries(mirror.directory) == [0, 1])
        for _ in range(20):
            await asyncio.sleep(0.01)
            assert entries(mirror.directory) == [0, 1]
        assert log.backlog() == 300
        mark_consumed(mirror.directory, TASK, 1)
        await until(lambda: entries(mirror.directory) == [1, 2])
        await until(lambda: log.backlog() == 240)
        mark_consumed(mirror.directory, TASK, 3)
        await until(lambda: entries(mirror.directory) == [3, 4])


async def test_what_a_task_may_write_comes_at_once_barriers_among_it(
    http: aiohttp.ClientSession, endpoint: DataEndpoint, log: LogWriter, tmp_path: Path
) -> None:
    """An unaligned checkpoint sees its barrier, however far behind the reader is (C5)."""
    bound, written = 100, 0
    while log.backlog() <= bound:
        add(log, b"x" * 40)
        written += 1
    barrier(log, 1)
    async with mirroring(http, endpoint.url, tmp_path / "here", max_backlog=bound) as mirror:
        await until(lambda: entries(mirror.directory) == list(range(written + 1)))


# --- failures --------------------------------------------------------------------------------------------------------


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


# --- the endpoint ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"{WRITER}/schema", 200),
        (f"{'c' * 32}/schema", 404),
        (f"{'c' * 32}/entries?from=0&wait=0", 404),
        ("..%2f..%2fetc/schema", 400),
        (f"{WRITER}/entries?from=-1", 400),
        (f"{WRITER}/entries?from=0&wait=x", 400),
        (f"{WRITER}/data/..%2fschema.json", 400),
        (f"{WRITER}/data/{'d' * 32}.parquet", 404),
        (WRITER, 404),
    ],
)
async def test_requests_are_parsed_before_they_become_paths(
    http: aiohttp.ClientSession, endpoint: DataEndpoint, log: LogWriter, path: str, status: int
) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    url = f"{endpoint.url}/exchanges/{path}"
    async with http.get(URL(url, encoded=True), headers=headers) as answer:
        assert answer.status == status


async def test_nobody_without_the_token_is_served(
    http: aiohttp.ClientSession, endpoint: DataEndpoint, log: LogWriter
) -> None:
    for headers in ({}, {"Authorization": "Bearer other"}):
        async with http.get(f"{endpoint.url}/exchanges/{WRITER}/schema", headers=headers) as answer:
            assert answer.status == 401
        async with http.put(f"{endpoint.url}/exchanges/{WRITER}/consumed/{TASK}", headers=headers, data=b"3") as answer:
            assert answer.status == 401
    assert consumed(log.directory, TASK) is None


async def test_a_position_that_comes_late_takes_nothing_back(
    http: aiohttp.ClientSession, endpoint: DataEndpoint, log: LogWriter
) -> None:
    source = RemoteLog(http, endpoint.url, WRITER, token=TOKEN)
    for position in (5, 3, 7, 7):
        await source.consumed(TASK, position)
    assert consumed(log.directory, TASK) == 7


async def test_ports_are_tried_in_their_order(endpoint: DataEndpoint, tmp_path: Path) -> None:
    taken = int(endpoint.url.rpartition(":")[2])
    async with DataEndpoint(root=tmp_path, token=TOKEN, host="127.0.0.1", ports=[taken, 0], reached_as="me") as second:
        assert second.url.startswith("http://me:")
        assert second.url != f"http://me:{taken}"
    with pytest.raises(DataPortsTaken):
        await DataEndpoint(root=tmp_path, token=TOKEN, host="127.0.0.1", ports=[taken]).start()


# --- the mirrors of a TaskManager ------------------------------------------------------------------------------------


def mirrors(lost: list[tuple[AttemptId, ErrorInfo]], patience: float = 20.0) -> Mirrors:
    return Mirrors(
        resource_id=HERE,
        token=TOKEN,
        max_backlog=PLENTY,
        patience=patience,
        on_lost=lambda attempt_id, error: lost.append((attempt_id, error)),
    )


def source(url: str) -> ExchangeSource:
    return ExchangeSource(vertex_id=VertexId("v"), attempt_id=WRITER, resource_id=THERE, data_url=url)


async def test_mirrors_end_with_their_attempt_and_nothing_is_written_after(
    endpoint: DataEndpoint, log: LogWriter, tmp_path: Path
) -> None:
    lost: list[tuple[AttemptId, ErrorInfo]] = []
    async with mirrors(lost) as all_of_them:
        assert all_of_them.is_elsewhere(source(endpoint.url))
        all_of_them.open(READER, source(endpoint.url), tmp_path / "here", reader=TASK, first=0)
        add(log, b"data")
        await until(lambda: entries(tmp_path / "here") == [0])
        await all_of_them.close(READER)
        await all_of_them.close(READER)
        assert len(all_of_them) == 0
        add(log, b"more")
        await asyncio.sleep(0.05)
        assert entries(tmp_path / "here") == [0]
    assert lost == []


async def test_the_attempt_is_named_whose_input_is_lost(log: LogWriter, tmp_path: Path) -> None:
    lost: list[tuple[AttemptId, ErrorInfo]] = []
    async with mirrors(lost, patience=0.1) as all_of_them:
        all_of_them.open(READER, source("http://127.0.0.1:9"), tmp_path / "here", reader=TASK, first=0)
        await until(lambda: lost)
        with pytest.raises(ExchangeUnreachable):
            all_of_them.open(READER, source(""), tmp_path / "other", reader=TASK, first=0)
    ((attempt, error),) = lost
    assert (attempt, error.code, error.consequence) == (READER, "exchange-unreachable", Consequence.RETRYABLE)


# --- always a prefix -------------------------------------------------------------------------------------------------


class Flaky:
    """A log in a directory. Requests to it fail as `faults` says."""

    def __init__(self, log: LogWriter, faults: list[bool]) -> None:
        self._log = log
        self._faults = faults

    def _may_fail(self) -> None:
        if self._faults and self._faults.pop():
            raise ExchangeUnreachable("drawn")

    async def schema(self) -> str | None:
        self._may_fail()
        return "schema"

    async def entries(self, first: int) -> list[Entry]:
        self._may_fail()
        await asyncio.sleep(0.01)
        found = []
        while (entry := read_entry(self._log.directory, first + len(found))) is not None:
            found.append(entry)
        return found

    async def fetch(self, file: DataFile, target: Path) -> None:
        part = target.with_name(f".{target.name}.part")
        content = (self._log.directory / DATA / file.name).read_bytes()
        part.write_bytes(content[: len(content) // 2])
        self._may_fail()
        await asyncio.sleep(0.003)
        part.write_bytes(content)
        part.rename(target)

    async def consumed(self, reader: str, position: int) -> None:
        self._may_fail()
        mark_consumed(self._log.directory, reader, position)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("data"), st.lists(st.integers(0, 50), max_size=3)),
        st.tuples(st.just("barrier"), st.just([])),
        st.tuples(st.just("consume"), st.integers(1, 5).map(lambda n: [n])),
        st.tuples(st.just("pass"), st.integers(1, 60).map(lambda n: [n])),
    ),
    max_size=25,
)


@settings(max_examples=40, deadline=None)
@given(first=st.integers(0, 3), steps=STEPS, faults=st.lists(st.booleans(), max_size=40), bound=st.integers(1, 120))
def test_a_mirror_is_always_a_prefix_of_its_log(
    tmp_path_factory: pytest.TempPathFactory,
    first: int,
    steps: list[tuple[str, list[int]]],
    faults: list[bool],
    bound: int,
) -> None:
    """Whatever fails, and however far behind the reader is, nothing is missing.

    In the end the mirror is complete (J8, J10).
    """
    base = tmp_path_factory.mktemp("prefix")
    log = LogWriter(base / "log", (TASK,), first=first)
    written: dict[int, Entry] = {}
    contents: dict[str, bytes] = {}
    here, position = base / "mirror", first

    def check() -> int:
        """Return how far the mirror has come."""
        there, end = set(entries(here)), position
        while end in there:
            entry = read_entry(here, end)
            assert entry == written[end]
            for file in entry.files:
                assert (here / DATA / file.name).read_bytes() == contents[file.name]
            end += 1
        assert not any(number >= end for number in there)
        return end

    async def run() -> None:
        nonlocal position
        mirror = Mirror(Flaky(log, faults), here, reader=TASK, first=first, max_backlog=bound, patience=1e9)
        task = asyncio.create_task(mirror.run())
        try:
            await asyncio.sleep(0.01)
            for kind, numbers in steps:
                if kind == "data":
                    sequence = log.next
                    written[sequence] = add(log, *(b"x" * n for n in numbers))
                    for file in written[sequence].files:
                        contents[file.name] = (log.directory / DATA / file.name).read_bytes()
                elif kind == "barrier":
                    sequence = log.next
                    written[sequence] = barrier(log, sequence)
                elif kind == "consume" and (here / ENTRIES).exists():
                    position = min(position + numbers[0], check())
                    mark_consumed(here, TASK, position)
                    log.backlog()
                else:
                    await asyncio.sleep(numbers[0] / 1000 if numbers else 0.0)
                check()
            faults.clear()
            for _ in range(10_000):
                if position == log.next:
                    break
                position = check()
                mark_consumed(here, TASK, position)
                await asyncio.sleep(0.02)
            assert position == log.next
        finally:
            task.cancel()
            await asyncio.wait({task})

    loop = looptime.new_event_loop()
    try:
        loop.run_until_complete(run())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()
