"""A log that is read from another TaskManager: over real HTTP, with broken connections and readers that lag."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from minflinkd.rpc.messages import ExchangeSource
from minflinkd.runtime.errors import Consequence, ErrorInfo
from minflinkd.runtime.ids import AttemptId, VertexId
from minflinkd.taskmanager.exchange.access import ExchangeUnreachable
from minflinkd.taskmanager.exchange.endpoint import DataEndpoint
from minflinkd.taskmanager.exchange.log import (
    DATA,
    ENTRIES,
    LogWriter,
    mark_consumed,
    mark_covered,
    read_entry,
    read_schema,
)
from minflinkd.taskmanager.exchange.mirrors import Mirrors
from tests.component.taskmanager.exchange.mirror_world import (
    HERE,
    PLENTY,
    READER,
    TASK,
    THERE,
    TOKEN,
    WRITER,
    add,
    barrier,
    entries,
    mirroring,
)
from tests.waiting import until

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


async def test_a_mirror_of_a_task_that_restarts_alone_begins_where_its_checkpoint_was_cut(
    http: aiohttp.ClientSession, endpoint: DataEndpoint, tmp_path: Path
) -> None:
    """What the attempt before it had read was kept, and is deleted once a checkpoint covers it (R16)."""
    log = LogWriter(tmp_path / "there" / WRITER, (TASK,), replay=PLENTY)
    log.describe("schema")
    for _ in range(3):
        add(log, b"x" * 10)
    async with mirroring(http, endpoint.url, tmp_path / "before") as mirror:
        await until(lambda: entries(mirror.directory) == [0, 1, 2])
        mark_consumed(mirror.directory, TASK, 3)
        await until(lambda: log.backlog() == 0)
        assert entries(log.directory) == [0, 1, 2]
    async with mirroring(http, endpoint.url, tmp_path / "after", first=1) as mirror:
        await until(lambda: entries(mirror.directory) == [1, 2])
        assert log.backlog() == 20
        mark_covered(mirror.directory, TASK, 2)
        mark_consumed(mirror.directory, TASK, 3)
        await until(lambda: log.backlog() == 0)
        await until(lambda: log.backlog() == 0 and entries(log.directory) == [2])


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
