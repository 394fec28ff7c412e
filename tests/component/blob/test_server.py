import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from minflinkd.blob.keys import BlobKey, BlobKind
from minflinkd.blob.server import BlobOptions, BlobServer, PortsTaken
from minflinkd.runtime.ids import JobId
from minflinkd.storage.interface import StorageUnavailable
from minflinkd.storage.location import Location
from minflinkd.storage.registry import Storages
from tests.waiting import until

JOB, OTHER = JobId("a" * 32), JobId("b" * 32)
DATA = bytes(range(256)) * 40
TOKEN = "cluster-secret"  # conftest's


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def files(directory: Path) -> list[str]:
    found = (Path(where) / name for where, _, names in os.walk(directory) for name in names)
    return sorted(str(path.relative_to(directory)) for path in found)


@pytest.fixture
async def http(server: BlobServer) -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession(server.url, headers=headers) as session:
        yield session


async def put(http: aiohttp.ClientSession, data: bytes = DATA, job: str = JOB, **query: str) -> BlobKey:
    async with http.put(f"/blobs/{job}", params={"sha256": sha256(data), **query}, data=data) as response:
        assert response.status == 201, await response.text()
        answer = await response.json()
        assert answer["size"] == len(data)
        return BlobKey.parse(answer["key"])


async def get(http: aiohttp.ClientSession, key: BlobKey, **headers: str) -> tuple[int, bytes, Any]:
    renamed = {name.replace("_", "-"): value for name, value in headers.items()}
    async with http.get(f"/blobs/{JOB}/{key}", headers=renamed) as response:
        return response.status, await response.read(), response.headers


@pytest.mark.parametrize("size", [0, 1, 3 * 1024 * 1024 + 7])
async def test_what_is_uploaded_is_served(http: aiohttp.ClientSession, tmp_path: Path, size: int) -> None:
    """B5, B9"""
    data = os.urandom(size)
    key = await put(http, data)
    status, body, headers = await get(http, key)
    assert (status, body) == (200, data)
    assert headers["ETag"] == f'"{sha256(data)}"'
    assert headers["Accept-Ranges"] == "bytes"
    async with http.head(f"/blobs/{JOB}/{key}") as response:
        assert (response.status, response.headers["Content-Length"]) == (200, str(size))
    assert files(tmp_path / "server") == [f"{JOB}/{key}"]


async def test_the_same_content_is_stored_once_for_a_job(http: aiohttp.ClientSession, tmp_path: Path) -> None:
    """Concurrent uploads of one content end in one file (B1, B5)."""
    keys = await asyncio.gather(*(put(http) for _ in range(10)))
    assert len(set(keys)) == 1
    assert await put(http, job=OTHER) != keys[0]
    assert len(files(tmp_path / "server")) == 2


async def test_known_content_is_answered_with_its_key(http: aiohttp.ClientSession) -> None:
    """B1"""

    async def announce(job: str) -> tuple[int, dict[str, object]]:
        params = {"kind": "p", "sha256": sha256(DATA)}
        async with http.put(f"/blobs/{job}", params=params, data=DATA, expect100=True) as response:
            return response.status, await response.json()

    key = await put(http)
    assert await announce(JOB) == (200, {"key": str(key), "size": len(DATA)})
    status, other = await announce(OTHER)
    assert (status, other["key"] != str(key)) == (201, True), "another job's blobs are its own"


@pytest.mark.parametrize(
    ("wanted", "start", "stop"),
    [("bytes=0-0", 0, 1), ("bytes=100-", 100, None), ("bytes=-10", -10, None), ("bytes=5-99999999", 5, None)],
)
async def test_a_range_is_served(http: aiohttp.ClientSession, wanted: str, start: int, stop: int | None) -> None:
    """B9"""
    key = await put(http)
    status, body, headers = await get(http, key, Range=wanted)
    assert (status, body) == (206, DATA[start:stop])
    first = start % len(DATA)
    assert headers["Content-Range"] == f"bytes {first}-{first + len(body) - 1}/{len(DATA)}"


async def test_ranges_and_tags_follow_http(http: aiohttp.ClientSession) -> None:
    """B9"""
    key = await put(http)
    etag = f'"{key.sha256}"'
    assert (await get(http, key, Range=f"bytes={len(DATA)}-"))[0] == 416
    assert (await get(http, key, Range="bytes=what"))[0] == 416
    assert (await get(http, key, If_None_Match=etag))[:2] == (304, b"")
    assert (await get(http, key, Range="bytes=5-6", If_Range=etag))[:2] == (206, DATA[5:7])
    assert (await get(http, key, Range="bytes=5-6", If_Range='"other"'))[:2] == (200, DATA)


async def test_what_is_not_what_was_announced_is_refused(http: aiohttp.ClientSession, tmp_path: Path) -> None:
    """B5"""
    async with http.put(f"/blobs/{JOB}", params={"sha256": "0" * 64}, data=DATA) as response:
        assert (response.status, (await response.json())["code"]) == (400, "blob-checksum-mismatch")
    assert files(tmp_path / "server") == []


async def test_a_blob_that_is_too_large_is_refused(tmp_path: Path) -> None:
    """B5"""
    options = BlobOptions(directory=tmp_path, max_size=1000)
    async with BlobServer(options=options) as server, aiohttp.ClientSession(server.url) as http:
        await put(http, bytes(1000))
        async with http.put(f"/blobs/{JOB}", params={"sha256": sha256(bytes(1001))}, data=bytes(1001)) as response:
            assert (response.status, (await response.json())["code"]) == (413, "blob-too-large")
        assert len(files(tmp_path)) == 1


@pytest.mark.parametrize(
    "path",
    [
        "/blobs/../x",
        "/blobs/%2e%2e/x",
        f"/blobs/{JOB}/..%2f..%2fetc%2fpasswd",
        f"/blobs/{JOB}/%2Fetc%2Fpasswd",
        f"/blobs/{JOB}/p-x%00",
        f"/blobs/{JOB}/{'p' * 4000}",
        f"/blobs/{'A' * 32}/p-{'0' * 64}-{'0' * 32}",
    ],
)
async def test_what_does_not_parse_is_refused(server: BlobServer, http: aiohttp.ClientSession, path: str) -> None:
    """B41"""
    async with http.get(URL(server.url + path, encoded=True)) as response:
        assert response.status == 400


async def test_an_unfit_announcement_is_refused(http: aiohttp.ClientSession) -> None:
    for job, query in ((JOB, {"sha256": "x"}), (JOB, {"sha256": "0" * 64, "kind": "q"}), ("..", {}), (JOB, {})):
        async with http.put(f"/blobs/{job}", params=query, data=b"") as response:
            assert response.status in (400, 404)


async def test_a_transient_blob_may_belong_to_no_job(http: aiohttp.ClientSession) -> None:
    """B2"""
    key = await put(http, job="none", kind="t")
    async with http.get(f"/blobs/none/{key}") as response:
        assert await response.read() == DATA
    async with http.put("/blobs/none", params={"sha256": sha256(DATA)}, data=DATA) as response:
        assert response.status == 404, "a permanent one may not"


@pytest.mark.parametrize("given", [None, "Bearer wrong", TOKEN, "Basic x", "Bearer \u00fc"])
async def test_the_clusters_secret_is_wanted(server: BlobServer, given: str | None) -> None:
    headers = {} if given is None else {"Authorization": given}
    async with aiohttp.ClientSession(server.url, headers=headers) as http:
        for method, path in (("GET", f"/blobs/{JOB}/x"), ("PUT", f"/blobs/{JOB}"), ("DELETE", f"/blobs/{JOB}")):
            async with http.request(method, path) as response:
                assert (response.status, (await response.json())["code"]) == (401, "blob-unauthorized")


async def test_a_jobs_blobs_are_deleted(server: BlobServer, http: aiohttp.ClientSession) -> None:
    key, other = await put(http), await put(http, job=OTHER)
    assert await server.contains(JOB, key)
    async with http.delete(f"/blobs/{JOB}") as response:
        assert response.status == 204
    assert (await get(http, key))[0] == 404
    assert not await server.contains(JOB, key)
    assert await server.contains(OTHER, other)
    await server.delete_job(OTHER)
    await server.delete_job(OTHER)
    assert not await server.contains(OTHER, other)


async def test_a_broken_upload_leaves_nothing(server: BlobServer, tmp_path: Path) -> None:
    """A broken upload leaves nothing after its connection has ended (B5)."""
    host, port = server.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = f"PUT /blobs/{JOB}?sha256={'0' * 64} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
    writer.write(f"{head}Content-Length: 100000000\r\n\r\n".encode() + bytes(8 * 1024 * 1024))
    await writer.drain()
    await until(lambda: files(tmp_path / "server"), "the first piece is on the disk")
    writer.transport.abort()
    await until(lambda: not files(tmp_path / "server"), "it is gone")


async def test_a_stalled_upload_is_given_up(tmp_path: Path) -> None:
    """A5"""
    options = BlobOptions(directory=tmp_path, idle_timeout=0.1)
    async with BlobServer(options=options) as server:
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"PUT /blobs/{JOB}?sha256={'0' * 64} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n123".encode())
        async with asyncio.timeout(10):
            with suppress(ConnectionError):
                assert await reader.read() == b""
        await until(lambda: not files(tmp_path))
        writer.transport.abort()


async def test_many_are_served_at_once(http: aiohttp.ClientSession) -> None:
    """B9"""
    data = os.urandom(300_000)
    key = await put(http, data)
    answers = await asyncio.gather(*(get(http, key) for _ in range(64)))
    assert all((status, body) == (200, data) for status, body, _ in answers)


async def test_more_than_may_wait_are_asked_to_come_again(tmp_path: Path) -> None:
    """B9"""
    options = BlobOptions(directory=tmp_path, transfers=1, backlog=0)
    async with BlobServer(options=options) as server, aiohttp.ClientSession(server.url) as http:
        key = await put(http)
        going, go_on = asyncio.Event(), asyncio.Event()

        async def slow_body() -> AsyncIterator[bytes]:
            yield b"12"
            going.set()
            await go_on.wait()
            yield b"3"

        query = {"sha256": sha256(b"123")}
        upload = asyncio.create_task(http.put(f"/blobs/{JOB}", params=query, data=slow_body()).__aenter__())
        await going.wait()
        async with asyncio.timeout(10):
            while (answer := await get(http, key))[0] == 200:  # until the upload has its place
                pass
        assert (answer[0], answer[2]["Retry-After"]) == (503, "1")
        go_on.set()
        assert (await upload).status == 201
        assert (await get(http, key))[0] == 200


async def test_a_port_of_the_range_is_taken(tmp_path: Path) -> None:
    async with BlobServer(options=BlobOptions(directory=tmp_path / "a")) as first:
        port = int(first.url.rpartition(":")[2])
        async with BlobServer(options=BlobOptions(directory=tmp_path / "b", ports=(port, 0))) as second:
            assert second.url != first.url
        with pytest.raises(PortsTaken, match=str(port)):
            await BlobServer(options=BlobOptions(directory=tmp_path / "c", ports=(port,))).start()


# --- with an HA store ------------------------------------------------------------------------------------------------


@pytest.fixture
def ha(tmp_path: Path) -> Location:
    return Storages().at(str(tmp_path / "ha"))


@pytest.fixture
async def safe(tmp_path: Path, ha: Location) -> AsyncIterator[BlobServer]:
    async with BlobServer(options=BlobOptions(directory=tmp_path / "server"), ha_store=ha) as server:
        yield server


async def copies(ha: Location) -> list[str]:
    return [ha.relative(entry.path) async for entry in ha.list()]


async def test_permanent_blobs_are_copied_to_the_ha_store(safe: BlobServer, ha: Location) -> None:
    """Permanent blobs are copied before the answer (B2, B5)."""
    async with aiohttp.ClientSession(safe.url) as http:
        key = await put(http)
        await put(http, kind="t")
        assert await copies(ha) == [f"{JOB}/{key}"]
        await asyncio.gather(*(put(http, b"twice") for _ in range(4)))
        assert len(await copies(ha)) == 2
        async with http.put(f"/blobs/{JOB}", params={"sha256": "0" * 64}, data=DATA) as response:
            assert response.status == 400
        assert len(await copies(ha)) == 2
        await safe.delete_job(JOB)
        assert await copies(ha) == []


async def test_a_lost_or_corrupt_local_file_comes_back_from_the_ha_store(
    safe: BlobServer, ha: Location, tmp_path: Path
) -> None:
    """B7"""
    async with aiohttp.ClientSession(safe.url) as http:
        key = await put(http)
        local = tmp_path / "server" / JOB / str(key)
        await asyncio.to_thread(local.unlink)
        assert {body for _, body, _ in await asyncio.gather(*(get(http, key) for _ in range(16)))} == {DATA}
        await asyncio.to_thread(local.write_bytes, b"garbage")
        assert (await get(http, key))[:2] == (200, DATA)
        await asyncio.to_thread(local.unlink)
        await ha.child(JOB, str(key)).write_bytes(b"garbage")
        assert (await get(http, key))[0] == 404
        assert await copies(ha) == [f"{JOB}/{key}"]


async def test_a_blob_without_its_copy_is_not_accepted(tmp_path: Path) -> None:
    """Both files must be written before the answer (B5)."""
    await asyncio.to_thread((tmp_path / "ha").write_bytes, b"no directory")
    ha = Storages().at(str(tmp_path / "ha"))
    options = BlobOptions(directory=tmp_path / "server")
    async with BlobServer(options=options, ha_store=ha) as server, aiohttp.ClientSession(server.url) as http:
        async with http.put(f"/blobs/{JOB}", params={"sha256": sha256(DATA)}, data=DATA) as response:
            assert response.status == 500
            assert (await response.json())["code"].startswith("storage")
        assert files(tmp_path / "server") == []
        assert not await server.contains(JOB, BlobKey.new(BlobKind.PERMANENT, sha256(DATA)))


async def test_who_asks_a_server_that_has_ended_is_told_so(tmp_path: Path) -> None:
    """Parts of the daemon may outlive the server by a moment."""
    server = BlobServer(options=BlobOptions(directory=tmp_path))
    async with server:
        key = await server.put(JOB, b"x", BlobKind.PERMANENT)
        await server.hold(JOB, [key])
    server._store.doubt(JOB, key)
    with pytest.raises(StorageUnavailable, match="ends"):
        await server.read(JOB, key)
