import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from minflinkd.blob.client import BlobClient
from minflinkd.blob.errors import BlobNotFound, BlobServerUnreachable, BlobUnauthorized
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
    """B40: up and down, server and client in this process."""
    size = 200 * 1024 * 1024

    def make() -> Path:
        with (tmp_path / "large").open("wb") as file:
            for _ in range(size // (1 << 20)):
                file.write(os.urandom(1 << 20))
        return tmp_path / "large"

    def peak() -> int:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

    source = await asyncio.to_thread(make)
    async with (
        BlobServer(options=BlobOptions(directory=tmp_path / "server")) as server,
        BlobClient(server.url) as client,
    ):
        warm = await client.upload(JOB, blob(tmp_path, 4_000_000, "small"))
        await client.download_to(JOB, BlobKey.parse(warm.key), tmp_path / "small-copy")
        before = peak()
        stored = await client.upload(JOB, source)
        await client.download_to(JOB, BlobKey.parse(stored.key), tmp_path / "copy")
        assert peak() - before < 40 * 1024 * 1024
    assert await asyncio.to_thread(same, source, tmp_path / "copy")
