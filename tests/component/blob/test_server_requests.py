"""Sets, deletion, the list of blobs, `Expect`, and attempts to leave the directory (B1, B2, B6, B41)."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import aiohttp
import pytest
from aiohttp import web

from minflinkd.blob.delivery import Delivery
from minflinkd.blob.errors import BlobNotFound
from minflinkd.blob.keys import BlobKey, BlobKind
from minflinkd.blob.server import BlobOptions, BlobServer
from minflinkd.runtime.ids import JobId
from tests.waiting import until

JOB = JobId("a" * 32)
SET = "5" * 32
DATA = bytes(range(256)) * 40
MIB = 1 << 20


def sha256(data: bytes = DATA) -> str:
    return hashlib.sha256(data).hexdigest()


def files(directory: Path) -> list[str]:
    found = (Path(where) / name for where, _, names in os.walk(directory) for name in names)
    return sorted(str(path.relative_to(directory)) for path in found)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[BlobServer]:
    async with BlobServer(options=BlobOptions(directory=tmp_path / "store" / "blobs")) as server:
        await server.take_stock({})
        yield server


@pytest.fixture
async def http(server: BlobServer) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(server.url) as session:
        yield session


async def put(http: aiohttp.ClientSession, data: bytes = DATA, job: str = JOB, **query: str) -> BlobKey:
    async with http.put(f"/blobs/{job}", params={"sha256": sha256(data), **query}, data=data) as response:
        assert response.status == 201, await response.text()
        return BlobKey.parse((await response.json())["key"])


async def states(server: BlobServer) -> dict[str, str]:
    return {blob.key: blob.state for blob in await server.blobs()}


async def exchange(server: BlobServer, request: bytes) -> bytes:
    """Send raw bytes to the server. Return everything that it answers before it closes or stays silent."""
    address = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    answer = b""
    try:
        writer.write(request)
        async with asyncio.timeout(10):
            while piece := await reader.read(65536):
                answer += piece
    except ConnectionError:
        pass
    finally:
        writer.transport.abort()
    return answer


# --- sets ------------------------------------------------------------------------------------------------------------


async def test_a_set_is_staged_when_it_is_complete(server: BlobServer, http: aiohttp.ClientSession) -> None:
    """Content that was there already is part of the set too (B6)."""
    first = await put(http, b"1", set=SET)
    known = await put(http, b"2")
    params = {"kind": "p", "sha256": sha256(b"2"), "set": SET}
    async with http.put(f"/blobs/{JOB}", params=params, data=b"2", expect100=True) as response:
        assert response.status == 200
    assert await states(server) == {str(first): "uploaded", str(known): "uploaded"}
    for _ in range(2):
        async with http.post(f"/blobs/{JOB}/sets/{SET}/complete") as response:
            assert response.status == 204
    assert set((await states(server)).values()) == {"staged"}
    assert await server.hold(JOB, [first, known]) == frozenset()
    assert set((await states(server)).values()) == {"referenced"}


@pytest.mark.parametrize("name", ["5" * 31, "5" * 33, "..", "G" * 32, "%00", ""])
async def test_a_set_has_a_plain_name(http: aiohttp.ClientSession, name: str) -> None:
    """B41"""
    async with http.put(f"/blobs/{JOB}", params={"sha256": sha256(), "set": name}, data=DATA) as response:
        assert response.status == 400


# --- Expect ----------------------------------------------------------------------------------------------------------


async def test_known_content_is_answered_without_its_body(server: BlobServer, http: aiohttp.ClientSession) -> None:
    """The server answers 100 only if it wants the body (B1)."""
    line = f"PUT /blobs/{JOB}?sha256={sha256()}&set={SET} HTTP/1.1\r\nHost: x\r\n"
    wanted = f"{line}Content-Length: {len(DATA)}\r\nExpect: 100-continue\r\n\r\n".encode()
    address = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(wanted)
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(DATA)
    assert b" 201 " in await reader.readline()
    writer.close()
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(wanted)
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"Connection: close" in head, "what follows would be taken for the body"
    assert json.loads(await reader.readuntil(b"}"))["size"] == len(DATA)
    writer.close()
    assert set((await states(server)).values()) == {"uploaded"}
    assert server.statistics().received_bytes == len(DATA)


# --- deletion --------------------------------------------------------------------------------------------------------


async def gone(server: BlobServer) -> None:
    """Wait for the end of all blobs. They are deleted after the last byte was sent."""

    async def no_blobs() -> bool:
        return not await server.blobs()

    await until(no_blobs)


async def test_a_transient_blob_goes_when_it_was_delivered(server: BlobServer, http: aiohttp.ClientSession) -> None:
    """The whole blob has to be delivered, not a part (B2)."""
    data = os.urandom(2 * MIB)
    key = await put(http, data, "none", kind="t")
    where = f"/blobs/none/{key}?delete=true"
    async with http.get(where, headers={"Range": "bytes=0-99"}) as response:
        assert await response.read() == data[:100]
    async with http.head(where) as response:
        assert response.status == 200
    async with http.get(where, headers={"Range": "bytes=100-"}) as response:
        assert await response.read() == data[100:]
    await gone(server)
    async with http.get(where) as response:
        assert response.status == 404


async def test_a_transient_blob_goes_where_its_client_leaves_with_the_last_byte(
    server: BlobServer, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's leaving cancels its request, wherever that waits next (B2)."""
    deliver, seen = Delivery.run, asyncio.Event()

    async def and_leave(delivery: Delivery) -> web.StreamResponse:
        response = await deliver(delivery)
        request = asyncio.current_task()
        assert request is not None
        request.get_loop().call_soon(request.cancel)
        seen.set()
        return response

    monkeypatch.setattr(Delivery, "run", and_leave)
    key = await put(http, kind="t")
    async with http.get(f"/blobs/{JOB}/{key}?delete=true") as response:
        assert await response.read() == DATA
    async with asyncio.timeout(10):
        await seen.wait()
    await gone(server)


async def test_a_delivery_that_breaks_off_deletes_nothing(server: BlobServer, http: aiohttp.ClientSession) -> None:
    """B2"""
    key = await put(http, os.urandom(16 * MIB), "none", kind="t")
    address = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=4096)
    writer.write(f"GET /blobs/none/{key}?delete=true HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    await reader.readexactly(100_000)
    writer.transport.abort()
    await until(lambda: not server.statistics().running, "the server has seen it")
    assert await server.contains(None, key)


async def test_only_transient_blobs_are_deleted_by_hand(server: BlobServer, http: aiohttp.ClientSession) -> None:
    """B2"""
    log, code = await put(http, kind="t"), await put(http)
    for _ in range(2):
        async with http.delete(f"/blobs/{JOB}/{log}") as response:
            assert response.status == 204
    for method, query in (("DELETE", ""), ("GET", "?delete=true")):
        async with http.request(method, f"/blobs/{JOB}/{code}{query}") as response:
            assert (response.status, (await response.json())["code"]) == (409, "blob-permanent")
    async with http.get(f"/blobs/{JOB}/{code}?delete=perhaps") as response:
        assert response.status == 400
    assert await server.contains(JOB, code)


async def test_a_job_that_has_not_ended_keeps_its_blobs(server: BlobServer, http: aiohttp.ClientSession) -> None:
    """The blobs of a running job cannot be deleted over HTTP, whoever asks (B20)."""
    code = await put(http)
    await server.hold(JOB, [code])
    async with http.delete(f"/blobs/{JOB}") as response:
        assert (response.status, (await response.json())["code"]) == (409, "blob-in-use")
    async with http.delete("/blobs/none") as response:
        assert response.status == 409, "they are different people's"
    assert await server.contains(JOB, code)
    await server.delete_job(JOB)
    assert await server.blobs() == []


# --- the list --------------------------------------------------------------------------------------------------------


async def test_the_list_says_what_there_is(server: BlobServer, http: aiohttp.ClientSession) -> None:
    async with http.get("/blobs") as response:
        assert (response.content_type, await response.json()) == ("application/json", [])
    code, log = await put(http), await put(http, b"log", "none", kind="t")
    await server.hold(JOB, [code])
    async with http.get("/blobs") as response:
        first, second = await response.json()
    assert first.pop("modified_ms") > 1_500_000_000_000
    assert first == {
        "job": JOB, "key": str(code), "kind": "p", "size": len(DATA), "references": 1, "state": "referenced",
    }  # fmt: skip
    assert (second["job"], second["key"], second["references"]) == ("none", str(log), 0)


async def test_a_long_list_comes_whole(server: BlobServer, http: aiohttp.ClientSession, tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    for i in range(1100):
        (made / f"t-{i:064x}-{i:032x}").touch()
    made.rename(tmp_path / "store" / "blobs" / JOB)  # at once, because the cleanup deletes empty directories
    async with http.get("/blobs") as response:
        assert [blob["key"][2:66] for blob in await response.json()] == [f"{i:064x}" for i in range(1100)]


# --- for the daemon's own parts --------------------------------------------------------------------------------------


async def test_a_part_of_the_daemon_holds_what_it_puts(server: BlobServer, tmp_path: Path) -> None:
    """B17, B18"""
    one = await server.put(JOB, DATA, BlobKind.TRANSIENT)
    two = await server.put(JOB, DATA, BlobKind.TRANSIENT)
    assert one == two, "stored once"
    assert await server.read(JOB, one) == DATA
    assert (await asyncio.to_thread((await server.path(JOB, one)).read_bytes)) == DATA
    await server.release(JOB, one, at_once=True)
    assert await server.contains(JOB, one)
    await server.release(JOB, one, at_once=True)
    assert not await server.contains(JOB, one)
    assert files(tmp_path) == []
    with pytest.raises(BlobNotFound):
        await server.read(JOB, one)


# --- out of the directory --------------------------------------------------------------------------------------------

KEY = f"p-{'0' * 64}-{'0' * 32}"
NAMES = {
    "parent": "..",
    "encoded parent": "%2e%2e",
    "half encoded parent": ".%2e",
    "double encoded parent": "%252e%252e",
    "triple encoded parent": "%25252e%25252e",
    "overlong parent": "%c0%ae%c0%ae",
    "parents with encoded slashes": "..%2f..%2f..%2fetc%2fpasswd",
    "parents in upper case": "%2E%2E%2F%2E%2E%2Fetc%2Fpasswd",
    "double encoded slash": "..%252f..%252fetc%252fpasswd",
    "absolute": "%2fetc%2fpasswd",
    "absolute twice": "%2f%2fetc%2fpasswd",
    "here": ".",
    "home": "~",
    "root's home": "~root",
    "variable": "$HOME",
    "empty": "%20",
    "backslashes": "..%5c..%5cetc%5cpasswd",
    "plain backslashes": "..\\..\\etc",
    "drive": "C:%5cwindows",
    "unc": "%5c%5cserver%5cshare",
    "nul": "%00",
    "key and nul": f"{KEY}%00",
    "key, nul, suffix": f"{KEY}%00.txt",
    "newline": f"{KEY}%0a",
    "carriage return and newline": "%0d%0aSet-Cookie:%20x",
    "key and header": f"{KEY}%0d%0aX-Injected:%20yes",
    "tab": "%09",
    "delete": "%7f",
    "escape sequence": "%1b%5b31m",
    "full stops of full width": "%ef%bc%8e%ef%bc%8e",
    "slash of full width": "..%ef%bc%8f..",
    "division slash": "..%e2%88%95..",
    "one dot leaders": "%e2%80%a4%e2%80%a4",
    "right to left": "%e2%80%ae",
    "zero width": f"p-{'0' * 64}-{'0' * 31}%e2%80%8b0",
    "digits of full width": f"p-{quote(chr(0xFF10) * 64)}-{'0' * 32}",
    "arabic digits": f"p-{quote(chr(0x0660) * 64)}-{'0' * 32}",
    "cyrillic p": f"%d1%80-{'0' * 64}-{'0' * 32}",
    "not utf-8": "%ff%fe",
    "surrogate": "%ed%a0%80",
    "upper case": KEY.upper(),
    "a digit less": KEY[:-1],
    "a digit more": f"{KEY}0",
    "key and parent": f"{KEY}%2f..%2f..",
    "parent and key": f"..%2f{KEY}",
    "blank before": f"%20{KEY}",
    "blank after": f"{KEY}%20",
    "glob": "*",
    "query": "%3fx",
    "fragment": "%23",
    "semicolon": f"{KEY};x",
    "temporary": "incoming",
    "moved aside": "corrupt",
    "bad percent": "%zz",
    "long": "p" * 4000,
    "very long": "a" * 7000,
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
async def test_no_name_leads_out_of_the_store(
    server: BlobServer, http: aiohttp.ClientSession, tmp_path: Path, name: str
) -> None:
    """Job, key and set are checked for reads, writes and deletions. The client gets 400, or no such route (B41)."""
    outside = tmp_path / "store" / KEY
    outside.write_bytes(b"secret")
    mine = await put(http)
    before, tree = len(os.listdir("/proc/self/fd")), files(tmp_path)
    paths = [
        ("GET", f"/blobs/{name}/{KEY}"), ("GET", f"/blobs/{JOB}/{name}"), ("HEAD", f"/blobs/{JOB}/{name}"),
        ("DELETE", f"/blobs/{name}"), ("DELETE", f"/blobs/{JOB}/{name}"), ("DELETE", f"/blobs/{name}/{KEY}"),
        ("PUT", f"/blobs/{name}?sha256={sha256(b'')}"), ("PUT", f"/blobs/{JOB}?sha256={name}"),
        ("PUT", f"/blobs/{JOB}?kind={name}&sha256={sha256(b'')}"),
        ("PUT", f"/blobs/{JOB}?sha256={sha256(b'')}&set={name}"),
        ("POST", f"/blobs/{JOB}/sets/{name}/complete"),
    ]  # fmt: skip
    for method, path in paths:
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        answer = await exchange(server, head.encode("latin-1"))
        status = int(answer.split(b" ", 2)[1])
        assert status in (400, 404, 405), (method, path, answer)
        assert b"secret" not in answer
        assert b"X-Injected" not in answer.partition(b"\r\n\r\n")[0]
        assert b"Set-Cookie" not in answer.partition(b"\r\n\r\n")[0]
        assert b"Traceback" not in answer
    assert files(tmp_path) == tree
    assert await server.contains(JOB, mine)
    statistics = server.statistics()
    assert (statistics.running, statistics.waiting) == (0, 0)
    await until(lambda: len(os.listdir("/proc/self/fd")) <= before, "all connections are closed")


@pytest.mark.parametrize("planted", ["file", "directory of the job", "pipe", "directory", "hard link", "dangling"])
async def test_nothing_planted_in_the_store_leads_out(
    server: BlobServer, http: aiohttp.ClientSession, tmp_path: Path, planted: str
) -> None:
    """Nothing is read, written or deleted through it (B41)."""
    store, outside = tmp_path / "store" / "blobs", tmp_path / "outside"
    outside.mkdir()
    key = BlobKey.new(BlobKind.TRANSIENT, sha256())
    secret = outside / str(key)
    secret.write_bytes(DATA if planted != "hard link" else b"secret")
    place = store / JOB / str(key)
    if planted != "directory of the job":
        place.parent.mkdir()
    match planted:
        case "file":
            place.symlink_to(secret)
        case "dangling":
            place.symlink_to(outside / "nothing")
        case "directory of the job":
            place.parent.symlink_to(outside)
        case "pipe":
            os.mkfifo(place)
        case "directory":
            place.mkdir()
        case "hard link":
            place.hardlink_to(secret)
    async with asyncio.timeout(10):
        async with http.get(f"/blobs/{JOB}/{key}") as response:
            assert response.status == 404
        async with http.put(f"/blobs/{JOB}", params={"sha256": sha256(b"new")}, data=b"new") as response:
            assert response.status == (500 if planted == "directory of the job" else 201)
        async with http.delete(f"/blobs/{JOB}/{key}") as response:
            assert response.status in (204, 500)
        async with http.delete(f"/blobs/{JOB}") as response:
            assert response.status == 204
    assert files(outside) == [str(key)]
    assert not os.path.lexists(store / JOB)


async def test_a_secret_of_any_bytes_is_compared(tmp_path: Path) -> None:
    """The server answers, and does not fail (B40)."""
    async with BlobServer(options=BlobOptions(directory=tmp_path), token="secret") as server:
        address = urlsplit(server.url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(b"GET /blobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\r\n\r\n")
        assert b" 401 " in await reader.readline()
        writer.transport.abort()
