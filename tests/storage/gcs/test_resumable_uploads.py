"""Resumable uploads to GCS, against Google's documented protocol.

It is that of https://cloud.google.com/storage/docs/performing-resumable-uploads.
"""

from __future__ import annotations

import re
import secrets
import traceback
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiohttp import web

from minflinkd.runtime.units import MemorySize
from minflinkd.storage.conformance import write
from minflinkd.storage.interface import StorageUnavailable
from minflinkd.storage.resilient import ResilientStorage
from minflinkd_gcs import GcsStorage
from minflinkd_gcs.options import QUANTUM
from tests.storage.gcs.conftest import PATIENCE, gcs


class Google:
    """Two points in which fake-gcs-server differs from Google.

    It takes a repeated part, and the question for the end of an upload, for more data.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.stored = bytearray()
        self.mark: dict[str, str] = {}
        self.ended = False
        self.puts: list[tuple[str, int]] = []  # Content-Range and size of each
        self.lose: set[int] = set()  # numbers of PUTs whose answer is lost
        self.cut: dict[int, int] = {}  # PUT number -> how many quanta of it are stored
        self.stuck = False  # whether it is never dropped
        self.forget = False  # whether the upload is unknown once it is finished
        self.port = 0

    def application(self) -> web.Application:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/upload/storage/v1/b/{bucket}/o", self.start)
        app.router.add_put("/session", self.put)
        app.router.add_delete("/session", self.cancel)
        app.router.add_get("/storage/v1/b/{bucket}/o/{name}", self.stat)
        return app

    async def start(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.name, self.mark = body["name"], body["metadata"]
        return web.Response(headers={"Location": f"http://{request.host}/session?upload_id=very%2Fsecret"})

    async def put(self, request: web.Request) -> web.StreamResponse:
        assert request.query["upload_id"] == "very/secret"
        number, body = len(self.puts) + 1, await request.read()
        self.puts.append((request.headers["Content-Range"], len(body)))
        if self.ended:
            return web.Response(status=404) if self.forget else self._object()
        match = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", request.headers["Content-Range"])
        assert match is not None
        if match[1] is not None:
            assert int(match[1]) == len(self.stored), "a gap, or bytes sent twice"
            assert len(body) == int(match[2]) - int(match[1]) + 1
            assert match[3] != "*" or len(body) % QUANTUM == 0
            self.stored += body[: self.cut.get(number, 1 << 20) * QUANTUM]
        if match[3] == str(len(self.stored)):
            self.ended = True
            self.objects[self.name] = bytes(self.stored)
        if number in self.lose:
            assert request.transport is not None
            request.transport.abort()
        if self.ended:
            return self._object()
        return web.Response(status=308, headers={"Range": f"bytes=0-{len(self.stored) - 1}"} if self.stored else {})

    async def cancel(self, request: web.Request) -> web.Response:
        if self.stuck:
            return web.Response(status=503)
        self.stored.clear()
        self.ended = True
        return web.Response(status=499)

    async def stat(self, request: web.Request) -> web.Response:
        return self._object() if request.match_info["name"] in self.objects else web.Response(status=404)

    def _object(self) -> web.Response:
        if self.name not in self.objects:
            return web.Response(status=404)
        size = str(len(self.objects[self.name]))
        found = {"name": self.name, "size": size, "updated": "2026-01-01T00:00:00.123Z", "metadata": self.mark}
        return web.json_response(found)


@pytest_asyncio.fixture
async def google() -> AsyncIterator[Google]:
    google = Google()
    runner = web.AppRunner(google.application(), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    google.port = runner.addresses[0][1]
    yield google
    await runner.cleanup()


@pytest_asyncio.fixture
async def resumable(google: Google) -> AsyncIterator[ResilientStorage]:
    storage = ResilientStorage(gcs(f"http://127.0.0.1:{google.port}", part_size=MemorySize(4 * QUANTUM)), PATIENCE)
    yield storage
    await storage.aclose()


DATA = secrets.token_bytes(10 * QUANTUM + 7)  # three parts


@pytest.mark.parametrize("lost", [1, 2, 3])
async def test_a_part_whose_answer_is_lost_is_not_sent_again(
    google: Google, resumable: ResilientStorage, lost: int
) -> None:
    """Every request is safe to repeat (S4)."""
    google.lose = {lost}
    entry = await write(resumable, "b/x", DATA)
    assert google.objects == {"x": DATA}
    assert (entry.size, entry.modified_ms) == (len(DATA), 1767225600123)
    assert sum(size for _, size in google.puts) == len(DATA)
    assert google.puts[lost][0] == f"bytes */{len(DATA) if lost == 3 else '*'}"  # what was asked after the loss


@pytest.mark.parametrize("cut", [{1: 3}, {2: 1, 3: 2}, {3: 0, 4: 1}, {3: 2}])
async def test_a_part_of_which_less_was_stored_is_gone_on_with(
    google: Google, resumable: ResilientStorage, cut: dict[int, int]
) -> None:
    google.cut, google.lose = cut, {min(cut)}
    await write(resumable, "b/x", DATA)
    assert google.objects == {"x": DATA}


async def test_an_upload_forgotten_with_its_last_part_is_known_by_its_object(
    google: Google, resumable: ResilientStorage
) -> None:
    google.lose, google.forget = {3}, True
    assert (await write(resumable, "b/x", DATA)).size == len(DATA)


async def test_the_object_of_another_upload_is_not_taken_for_the_own(
    google: Google, resumable: ResilientStorage
) -> None:
    """Exactly what was written is committed, or the writer fails (S4)."""
    async with await resumable.create("b/x") as writer:
        await writer.append(DATA)
        google.lose, google.forget, google.mark = {3}, True, {"minflinkd-upload": "another"}
        with pytest.raises(StorageUnavailable, match="no longer has the upload"):
            await writer.commit()


async def test_a_server_that_stores_nothing_is_given_up(google: Google, resumable: ResilientStorage) -> None:
    google.cut = dict.fromkeys(range(1, 100), 0)
    with pytest.raises(StorageUnavailable, match="stored nothing"):
        await write(resumable, "b/x", DATA)
    assert len(google.puts) < 20
    assert google.ended, "the upload was not dropped"


async def test_what_can_neither_be_finished_nor_dropped_is_not_kept_in_memory(
    google: Google, resumable: ResilientStorage
) -> None:
    google.lose, google.stuck = set(range(3, 100)), True
    google.cut = dict.fromkeys(range(3, 100), 0)
    with pytest.raises(StorageUnavailable):
        await write(resumable, "b/x", DATA)
    storage = resumable.inner.inner
    assert isinstance(storage, GcsStorage)
    assert [upload.last for upload in storage._uploads.values()] == [(0, b"")]


async def test_an_upload_cannot_be_learnt_from_its_errors(google: Google, resumable: ResilientStorage) -> None:
    """Whoever knows an upload's URL may write to it (S4)."""
    google.lose = set(range(1, 100))
    with pytest.raises(StorageUnavailable) as caught:
        await write(resumable, "b/x", DATA)
    text = "".join(traceback.format_exception(caught.value))
    assert "b/x" in text
    assert "upload_id" not in text
    assert "secret" not in text
