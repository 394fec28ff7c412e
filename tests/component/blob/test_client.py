import asyncio
import hashlib
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from minflinkd.blob.client import BlobClient
from minflinkd.blob.errors import (
    BlobNotFound,
    BlobPermanent,
    BlobServerBusy,
    BlobServerUnreachable,
    BlobUnauthorized,
)
from minflinkd.blob.keys import BlobKey, BlobKind
from minflinkd.blob.server import BlobOptions, BlobServer
from minflinkd.runtime.ids import JobId
from minflinkd.storage.interface import ObjectNotFound

JOB = JobId("a" * 32)
TOKEN = "cluster-secret"  # conftest's


def files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def blob(directory: Path, size: int, name: str = "blob") -> Path:
    path = directory / name
    path.write_bytes(os.urandom(size))
    return path


def same(one: Path, other: Path) -> bool:
    return one.read_bytes() == other.read_bytes()


async def test_a_blob_makes_the_round_trip(client: BlobClient, tmp_path: Path) -> None:
    source = blob(tmp_path, 5_000_000)
    stored = await client.upload(JOB, source)
    await client.download_to(JOB, BlobKey.parse(stored.key), tmp_path / "copy")
    assert same(source, tmp_path / "copy")
    assert stored.size == 5_000_000


async def test_known_content_is_not_sent_again(wire: Any, tmp_path: Path) -> None:
    """B1"""
    source = blob(tmp_path, 2_000_000)
    async with BlobClient(wire.url, token=TOKEN, retries=0) as client:
        first = await client.upload(JOB, source)
        before = wire.received
        assert await client.upload(JOB, source) == first
    assert wire.received - before < 2000


async def test_a_set_of_artifacts_is_uploaded_as_one(client: BlobClient, tmp_path: Path) -> None:
    """B6"""
    sources = {"a.py": blob(tmp_path, 10, "1"), "lib/b.zip": blob(tmp_path, 20, "2"), "same": tmp_path / "1"}
    artifacts = {artifact.name: artifact for artifact in await client.upload_all(JOB, sources)}
    assert {name: artifact.size for name, artifact in artifacts.items()} == {"a.py": 10, "lib/b.zip": 20, "same": 10}
    assert artifacts["a.py"].key == artifacts["same"].key
    with pytest.raises(ObjectNotFound, match="nowhere"):
        await client.upload_all(JOB, {"a.py": tmp_path / "1", "b.py": tmp_path / "nowhere"})


async def test_a_set_is_complete_after_its_last_blob_and_not_before(
    client: BlobClient, server: BlobServer, tmp_path: Path
) -> None:
    """If a client dies or fails before the end, its blobs stay in an incomplete set (B6)."""
    with pytest.raises(ObjectNotFound):
        await client.upload_all(JOB, {"a.py": blob(tmp_path, 10, "1"), "b.py": tmp_path / "nowhere"})
    assert {info.state for info in await server.blobs()} <= {"uploaded"}
    await client.upload_all(JOB, {"a.py": tmp_path / "1", "c.py": blob(tmp_path, 10, "3")})
    states = {info.key[2:66]: info.state for info in await server.blobs()}
    sha256 = {name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in ("1", "3")}
    assert states[sha256["3"]] == "staged"
    upload_set = "5" * 32
    await client.upload(JOB, blob(tmp_path, 10, "4"), upload_set=upload_set)
    for _ in range(2):
        await client.complete(JOB, upload_set)  # may be repeated


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 1_500_000])
async def test_bytes_make_the_round_trip(client: BlobClient, wire: Any, size: int) -> None:
    """B3"""
    data = os.urandom(size)
    key = await client.put_bytes(None, data, BlobKind.TRANSIENT)
    assert await client.get_bytes(None, key) == data
    wire.damage = 1 if size > 50_000 else 0
    async with BlobClient(wire.url, token=TOKEN, retries=3, pause=0.01) as damaged:
        assert await damaged.get_bytes(None, key) == data
    assert wire.damage == 0


async def test_a_download_may_break_at_any_byte(client: BlobClient, wire: Any, tmp_path: Path) -> None:
    """The break may be in the head of the answer, in its body, or at its end (B8)."""
    source = blob(tmp_path, 900)
    key = BlobKey.parse((await client.upload(JOB, source)).key)
    async with BlobClient(wire.url, token=TOKEN, retries=3, pause=0.001) as cut:
        for at in range(0, 1300, 61):
            wire.cuts = [at, at]
            await cut.download_to(JOB, key, tmp_path / "copy")
            assert same(source, tmp_path / "copy"), at
            await cut.aclose()  # so the next one begins with a new connection
    assert files(tmp_path) == ["blob", "copy", f"server/{JOB}/{key}"]


async def test_progress_is_told_in_bytes(client: BlobClient, wire: Any, tmp_path: Path) -> None:
    source, size = blob(tmp_path, 3_000_000), 3_000_000
    up: list[int] = []
    key = BlobKey.parse((await client.upload(JOB, source, progress=up.append)).key)
    assert (up[0], up[-1], up == sorted(up)) == (0, size, True)
    again: list[int] = []
    await client.upload(JOB, source, progress=again.append)
    assert again == [size], "nothing had to be sent"
    down: list[int] = []
    wire.cuts = [1_500_000]
    async with BlobClient(wire.url, token=TOKEN, retries=1, pause=0.01) as cut:
        await cut.download_to(JOB, key, tmp_path / "copy", progress=down.append)
    assert (down[0], down[-1], down == sorted(down)) == (0, size, True), "it went on where it broke off"


async def test_a_file_that_changes_while_it_is_sent_is_hashed_again(client: BlobClient, tmp_path: Path) -> None:
    source = blob(tmp_path, 200_000)
    changes = [150_000, 300_000]

    def change(sent: int) -> None:
        if sent == 0 and changes:
            blob(tmp_path, changes.pop(0))

    stored = await client.upload(JOB, source, progress=change)
    await client.download_to(JOB, BlobKey.parse(stored.key), tmp_path / "copy")
    assert (stored.size, changes) == (300_000, [])
    assert same(source, tmp_path / "copy")


async def test_a_busy_server_says_when_to_come_again() -> None:
    """B9"""
    asked: list[float] = []

    async def busy_once(_: web.Request) -> web.Response:
        asked.append(asyncio.get_running_loop().time())
        if len(asked) == 1:
            error = BlobServerBusy("50 transfers run").info()
            return web.Response(status=503, body=msgspec.json.encode(error), headers={"Retry-After": "1"})
        return web.Response(body=b"content")

    app = web.Application()
    app.router.add_get("/{path:.*}", busy_once)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    key = BlobKey.new(BlobKind.TRANSIENT, hashlib.sha256(b"content").hexdigest())
    async with BlobClient(f"http://127.0.0.1:{runner.addresses[0][1]}", retries=1, pause=0.001) as client:
        assert await client.get_bytes(None, key) == b"content"
    await runner.cleanup()
    assert asked[1] - asked[0] >= 1.0


async def test_transient_blobs_alone_are_deleted_one_by_one(client: BlobClient, server: BlobServer) -> None:
    """B2"""
    permanent = await client.put_bytes(JOB, b"kept", BlobKind.PERMANENT)
    transient = await client.put_bytes(JOB, b"gone", BlobKind.TRANSIENT)
    with pytest.raises(BlobPermanent):
        await client.delete(JOB, permanent)
    for _ in range(2):
        await client.delete(JOB, transient)
    assert [info.key for info in await server.blobs()] == [str(permanent)]


async def test_a_broken_download_goes_on_where_it_broke_off(client: BlobClient, wire: Any, tmp_path: Path) -> None:
    """B8"""
    source = blob(tmp_path, 24_000_000)
    key = BlobKey.parse((await client.upload(JOB, source)).key)
    wire.cuts = [11_000_000, 11_000_000]
    async with BlobClient(wire.url, token=TOKEN, retries=3, pause=0.01) as cut:
        await cut.download_to(JOB, key, tmp_path / "copy")
    assert same(source, tmp_path / "copy")
    assert wire.connections == 3
    assert wire.sent < 32_000_000, "what had come was not fetched again, but for what the sockets held"


async def test_a_damaged_download_is_fetched_again(client: BlobClient, wire: Any, tmp_path: Path) -> None:
    source = blob(tmp_path, 100_000)
    key = BlobKey.parse((await client.upload(JOB, source)).key)
    wire.damage = 1
    async with BlobClient(wire.url, token=TOKEN, retries=3, pause=0.01) as damaged:
        await damaged.download_to(JOB, key, tmp_path / "copy")
    assert same(source, tmp_path / "copy")
    assert wire.sent > 200_000


async def test_an_upload_is_tried_again(client: BlobClient, wire: Any, tmp_path: Path) -> None:
    source = blob(tmp_path, 3_000_000)
    wire.cuts = [0, 0]
    async with BlobClient(wire.url, token=TOKEN, retries=3, pause=0.01) as cut:
        stored = await cut.upload(JOB, source)
    await client.download_to(JOB, BlobKey.parse(stored.key), tmp_path / "copy")
    assert same(source, tmp_path / "copy")


async def test_an_upload_that_was_damaged_on_its_way_is_sent_again(
    client: BlobClient, server: BlobServer, wire: Any, tmp_path: Path
) -> None:
    source = blob(tmp_path, 3_000_000)
    wire.damage_up = 1
    async with BlobClient(wire.url, token=TOKEN, retries=3, pause=0.01) as damaged:
        stored = await damaged.upload(JOB, source)
    assert wire.damage_up == 0
    assert wire.received > 2 * 3_000_000
    assert [info.key for info in await server.blobs()] == [stored.key], "nothing is left of the first try"
    await client.download_to(JOB, BlobKey.parse(stored.key), tmp_path / "copy")
    assert same(source, tmp_path / "copy")


async def test_giving_up_says_why_and_leaves_nothing(wire: Any, client: BlobClient, tmp_path: Path) -> None:
    source = blob(tmp_path, 3_000_000)
    key = BlobKey.parse((await client.upload(JOB, source)).key)
    (tmp_path / "out").mkdir()
    async with BlobClient(wire.url, token=TOKEN, retries=1, pause=0.01) as cut:
        wire.cuts = [1_000_000, 1_000_000]
        with pytest.raises(BlobServerUnreachable, match="GET"):
            await cut.download_to(JOB, key, tmp_path / "out" / "copy")
    assert files(tmp_path / "out") == []


async def test_hopeless_requests_are_not_repeated(client: BlobClient, server: BlobServer, wire: Any) -> None:
    key = BlobKey.new(BlobKind.PERMANENT, "0" * 64)
    async with BlobClient(wire.url, token=TOKEN, retries=5, pause=10) as one:
        with pytest.raises(BlobNotFound):
            await one.download_to(JOB, key, Path("/nowhere/x"))
    async with BlobClient(server.url, token="wrong", retries=5, pause=10) as stranger:
        with pytest.raises(BlobUnauthorized):
            await stranger.delete_job(JOB)
    assert wire.connections == 1


async def test_a_server_that_is_away_is_named() -> None:
    async with BlobClient("http://127.0.0.1:1", retries=1, pause=0.01) as client:
        with pytest.raises(BlobServerUnreachable, match=r"127\.0\.0\.1:1"):
            await client.delete_job(JOB)


async def test_a_job_is_deleted(client: BlobClient, server: BlobServer, tmp_path: Path) -> None:
    key = BlobKey.parse((await client.upload(JOB, blob(tmp_path, 10))).key)
    await client.delete_job(JOB)
    assert not await server.contains(JOB, key)


@pytest.mark.slow
async def test_memory_does_not_grow_with_the_blob(tmp_path: Path) -> None:
    """Memory stays bounded for uploads and downloads; server and client are in this process (B40)."""
    size = 200 * 1024 * 1024

    def make() -> Path:
        with (tmp_path / "large").open("wb") as file:
            for _ in range(size // (1 << 20)):
                file.write(os.urandom(1 << 20))
        return tmp_path / "large"

    def peak() -> int:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

    def forget_the_peak() -> None:
        Path("/proc/self/clear_refs").write_text("5")  # otherwise VmHWM would be the peak of the whole process so far

    source = await asyncio.to_thread(make)
    async with (
        BlobServer(options=BlobOptions(directory=tmp_path / "server")) as server,
        BlobClient(server.url) as client,
    ):
        warm = await client.upload(JOB, blob(tmp_path, 4_000_000, "small"))
        await client.download_to(JOB, BlobKey.parse(warm.key), tmp_path / "small-copy")
        forget_the_peak()
        before = peak()
        stored = await client.upload(JOB, source)
        await client.download_to(JOB, BlobKey.parse(stored.key), tmp_path / "copy")
        assert peak() - before < 40 * 1024 * 1024
    assert await asyncio.to_thread(same, source, tmp_path / "copy")
