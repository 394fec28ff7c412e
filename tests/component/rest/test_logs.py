"""Logs of TaskManagers over HTTP, by byte range (E31)."""

from __future__ import annotations

import aiohttp
import pytest

from minflinkd.rest.log_copies import PIECE
from tests.unit.rest.parties import LOG, TM, TaskManager

Http = aiohttp.ClientSession
MAIN = f"/taskmanagers/{TM}/logs/taskmanager.log"


async def test_a_whole_log_is_read_in_pieces(http: Http, task_manager: TaskManager) -> None:
    """Neither the daemon nor a message holds a whole log (E31)."""
    async with http.get(MAIN) as response:
        assert await response.read() == LOG
        assert response.headers["X-Log-Size"] == str(len(LOG))
        assert response.content_type == "text/plain"
    first, *pieces = task_manager.reads
    assert first.length == 0, "it only asks how long the log is"
    assert len(pieces) == -(-len(LOG) // PIECE)
    assert max(read.length for read in pieces) == PIECE


async def test_log_and_stdout_take_the_file_of_that_kind(http: Http) -> None:
    """Flink's /log is the TaskManager's main log (E1)."""
    async with http.get(f"/taskmanagers/{TM}/log") as response:
        assert await response.read() == LOG
    async with http.get(f"/taskmanagers/{TM}/stdout") as response:
        assert (response.status, await response.read()) == (200, b""), "nothing was printed"


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("offset=100&length=50", LOG[100:150]),
        ("offset=-30", LOG[-30:]),
        ("offset=-30&length=10", LOG[-30:-20]),
        (f"offset={len(LOG)}", b""),
        (f"offset={len(LOG) + 5}", b""),
        ("length=0", b""),
        (f"offset=5&length={len(LOG) * 2}", LOG[5:]),
    ],
)
async def test_offset_and_length_choose_a_part(http: Http, query: str, wanted: bytes) -> None:
    async with http.get(f"{MAIN}?{query}") as response:
        assert response.status == 200
        assert await response.read() == wanted


@pytest.mark.parametrize(
    ("header", "wanted", "content_range"),
    [
        ("bytes=0-9", LOG[:10], f"bytes 0-9/{len(LOG)}"),
        ("bytes=10-", LOG[10:], f"bytes 10-{len(LOG) - 1}/{len(LOG)}"),
        ("bytes=-10", LOG[-10:], f"bytes {len(LOG) - 10}-{len(LOG) - 1}/{len(LOG)}"),
        (f"bytes={len(LOG) - 1}-{len(LOG) * 2}", LOG[-1:], f"bytes {len(LOG) - 1}-{len(LOG) - 1}/{len(LOG)}"),
    ],
)
async def test_a_range_header_is_answered_with_206(http: Http, header: str, wanted: bytes, content_range: str) -> None:
    async with http.get(MAIN, headers={"Range": header}) as response:
        assert response.status == 206
        assert response.headers["Content-Range"] == content_range
        assert await response.read() == wanted


@pytest.mark.parametrize("header", [f"bytes={len(LOG)}-", "bytes=-0", "bytes=-", "bytes=9-3"])
async def test_a_range_outside_the_log_is_refused(http: Http, header: str) -> None:
    async with http.get(MAIN, headers={"Range": header}) as response:
        assert response.status == 416
        assert response.headers["Minflinkd-Error-Code"] == "range-not-satisfiable"


@pytest.mark.parametrize("name", ["..%2Fsecret", ".hidden", "a%2Fb", "a%00b", "x" * 300])
async def test_a_name_that_could_be_a_path_never_reaches_a_taskmanager(
    http: Http, task_manager: TaskManager, name: str
) -> None:
    """Names of logs are parsed, never joined into paths (E40)."""
    async with http.get(f"/taskmanagers/{TM}/logs/{name}") as response:
        assert response.status in (400, 404)
    assert task_manager.reads == []


async def test_an_unknown_log_or_taskmanager_is_not_found(http: Http) -> None:
    for path in (f"/taskmanagers/{TM}/logs/none.log", "/taskmanagers/tm-ffffffffffff/logs"):
        async with http.get(path) as response:
            assert response.status == 404
            assert response.headers["Minflinkd-Error-Code"] == "not-found"
