"""The endpoint that serves a TaskManager's exchange logs."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest
from yarl import URL

from minflinkd.runtime.ids import AttemptId
from minflinkd.taskmanager.exchange.endpoint import DataEndpoint, DataPortsTaken
from minflinkd.taskmanager.exchange.log import ExchangeDamaged, LogWriter, consumed, covered
from minflinkd.taskmanager.exchange.remote_log import RemoteLog
from tests.component.taskmanager.exchange.mirror_world import TASK, TOKEN, WRITER, add


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


async def test_a_reader_may_begin_before_what_it_has_consumed_unless_that_is_gone(
    http: aiohttp.ClientSession, endpoint: DataEndpoint, log: LogWriter
) -> None:
    """Its task has restarted alone (R16)."""
    source = RemoteLog(http, endpoint.url, WRITER, token=TOKEN)
    for content in (b"a", b"b"):
        add(log, content)
    await source.consumed(TASK, 2)
    await source.begin(TASK, 1)
    assert log.backlog() == 1
    with pytest.raises(ExchangeDamaged, match="begins at 1"):
        await source.begin(TASK, 0)


async def test_what_checkpoints_cover_is_told_and_an_earlier_version_need_not_understand_it(
    http: aiohttp.ClientSession, endpoint: DataEndpoint, log: LogWriter
) -> None:
    source = RemoteLog(http, endpoint.url, WRITER, token=TOKEN)
    for position in (5, 3):
        await source.covered(TASK, position)
    assert covered(log.directory, TASK) == 5
    await RemoteLog(http, endpoint.url, AttemptId("c" * 32), token=TOKEN).covered(TASK, 5)  # 404


async def test_ports_are_tried_in_their_order(endpoint: DataEndpoint, tmp_path: Path) -> None:
    taken = int(endpoint.url.rpartition(":")[2])
    async with DataEndpoint(root=tmp_path, token=TOKEN, host="127.0.0.1", ports=[taken, 0], reached_as="me") as second:
        assert second.url.startswith("http://me:")
        assert second.url != f"http://me:{taken}"
    with pytest.raises(DataPortsTaken):
        await DataEndpoint(root=tmp_path, token=TOKEN, host="127.0.0.1", ports=[taken]).start()
