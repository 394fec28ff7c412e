import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from minflinkd.blob.cache import BlobCache, BlobCacheClosed
from minflinkd.blob.client import BlobClient
from minflinkd.blob.errors import BlobNotFound
from minflinkd.blob.keys import BlobKey, BlobKind
from minflinkd.blob.references import NotReferenced
from minflinkd.blob.server import BlobOptions, BlobServer
from minflinkd.blob.store import Incoming
from minflinkd.runtime.ids import JobId
from minflinkd.storage.interface import StorageUnavailable
from minflinkd.storage.location import Location
from minflinkd.storage.recording import StorageStatistics
from minflinkd.storage.registry import Storages

JOB = JobId("a" * 32)
DATA = os.urandom(100_000)


class Downloads(BlobClient):
    """Counts them, and can hold them up."""

    def __init__(self, url: str) -> None:
        super().__init__(url, token="cluster-secret", retries=2, pause=0.01)
        self.count = 0
        self.begun = asyncio.Event()
        self.hold = asyncio.Event()
        self.hold.set()

    async def _fetch(self, job_id: JobId | None, key: BlobKey, incoming: Incoming) -> None:
        self.count += 1
        self.begun.set()
        await self.hold.wait()
        await super()._fetch(job_id, key, incoming)


def files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


@pytest.fixture
async def downloads(server: BlobServer) -> AsyncIterator[Downloads]:
    async with Downloads(server.url) as client:
        yield client


@pytest.fixture
async def cache(downloads: Downloads, tmp_path: Path) -> AsyncIterator[BlobCache]:
    async with BlobCache(directory=tmp_path / "cache", client=downloads) as cache:
        yield cache


@pytest.fixture
async def key(client: BlobClient, tmp_path: Path) -> BlobKey:
    (tmp_path / "source").write_bytes(DATA)
    return BlobKey.parse((await client.upload(JOB, tmp_path / "source")).key)


async def test_a_blob_is_fetched_once_and_counted(cache: BlobCache, downloads: Downloads, key: BlobKey) -> None:
    """B8: parallel requests share one download. B15: two tasks of a job share the file."""
    paths = await asyncio.gather(*(cache.get(JOB, key) for _ in range(10)))
    assert len(set(paths)) == 1
    assert paths[0].read_bytes() == DATA
    assert await cache.get(JOB, key) == paths[0]
    assert (downloads.count, cache.references(JOB, key)) == (1, 11)
    for _ in range(11):
        cache.release(JOB, key)
    assert cache.references(JOB, key) == 0
    await cache.get(JOB, key)
    with pytest.raises(NotReferenced):
        cache.release(JOB, BlobKey.new(BlobKind.PERMANENT, "0" * 64))


async def test_a_corrupt_file_is_fetched_again(cache: BlobCache, downloads: Downloads, key: BlobKey) -> None:
    """B8: own file if verified."""
    path = await cache.get(JOB, key)
    path.write_bytes(b"garbage")
    assert (await cache.get(JOB, key)).read_bytes() == DATA
    assert downloads.count == 2


async def test_a_file_survives_the_caches_restart(downloads: Downloads, key: BlobKey, tmp_path: Path) -> None:
    for _ in range(2):
        async with BlobCache(directory=tmp_path / "cache", client=downloads) as cache:
            assert (await cache.get(JOB, key)).read_bytes() == DATA
    assert downloads.count == 1


async def test_a_blob_that_is_nowhere_is_not_held(cache: BlobCache, tmp_path: Path) -> None:
    missing = BlobKey.new(BlobKind.PERMANENT, "0" * 64)
    outcomes = await asyncio.gather(*(cache.get(JOB, missing) for _ in range(3)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [BlobNotFound] * 3
    assert cache.references(JOB, missing) == 0
    assert files(tmp_path / "cache") == []


async def test_one_who_stops_waiting_does_not_stop_the_others(
    cache: BlobCache, downloads: Downloads, key: BlobKey
) -> None:
    downloads.hold.clear()
    impatient, patient = (asyncio.create_task(cache.get(JOB, key)) for _ in range(2))
    await asyncio.wait_for(downloads.begun.wait(), 10)
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    downloads.hold.set()
    assert (await patient).read_bytes() == DATA
    assert (downloads.count, cache.references(JOB, key)) == (1, 1)


@pytest.mark.parametrize("how", ["forget", "close"])
async def test_what_is_on_its_way_goes_too(
    cache: BlobCache, downloads: Downloads, key: BlobKey, tmp_path: Path, how: str
) -> None:
    downloads.hold.clear()
    waiting = asyncio.create_task(cache.get(JOB, key))
    await asyncio.wait_for(downloads.begun.wait(), 10)
    await (cache.forget_job(JOB) if how == "forget" else cache.aclose())
    with pytest.raises(BlobCacheClosed):
        await waiting
    assert files(tmp_path / "cache") == []
    assert cache.references(JOB, key) == 0


async def test_a_forgotten_jobs_files_go(cache: BlobCache, downloads: Downloads, key: BlobKey, tmp_path: Path) -> None:
    await cache.get(JOB, key)
    await cache.forget_job(JOB)
    assert files(tmp_path / "cache") == []
    cache.release(JOB, key)  # its task ends after its job was forgotten
    assert (await cache.get(JOB, key)).read_bytes() == DATA


class TestWithHaStore:
    """B8: the HA store comes before the server, and is only read."""

    @pytest.fixture
    def storages(self) -> Storages:
        return Storages()

    @pytest.fixture
    def ha(self, storages: Storages, tmp_path: Path) -> Location:
        return storages.at(str(tmp_path / "ha"))

    @pytest.fixture
    async def server(self, ha: Location, tmp_path: Path) -> AsyncIterator[BlobServer]:
        options = BlobOptions(directory=tmp_path / "server")
        async with BlobServer(options=options, token="cluster-secret", ha_store=ha) as server:
            yield server

    @pytest.fixture
    async def cache(self, downloads: Downloads, ha: Location, tmp_path: Path) -> AsyncIterator[BlobCache]:
        async with BlobCache(directory=tmp_path / "cache", client=downloads, ha_store=ha) as cache:
            yield cache

    async def test_a_permanent_blob_comes_from_there(
        self, cache: BlobCache, downloads: Downloads, key: BlobKey, storages: Storages
    ) -> None:
        before = _writes(storages.statistics()["file"])
        assert (await cache.get(JOB, key)).read_bytes() == DATA
        assert downloads.count == 0
        await cache.forget_job(JOB)
        assert _writes(storages.statistics()["file"]) == before

    @pytest.mark.parametrize("copy", ["missing", "corrupt", "longer", "unreadable"])
    async def test_a_bad_copy_is_passed_over(
        self,
        cache: BlobCache,
        downloads: Downloads,
        key: BlobKey,
        ha: Location,
        copy: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        place = ha.child(JOB, str(key))
        if copy == "missing":
            await place.delete()
        elif copy == "unreadable":
            monkeypatch.setattr(place.storage, "open_read", _unreadable)
        else:
            await place.write_bytes(DATA[:-1] if copy == "corrupt" else DATA + b"more")
        assert (await cache.get(JOB, key)).read_bytes() == DATA
        assert downloads.count == 1


async def _unreadable(*_: object) -> AsyncIterator[bytes]:
    yield b"some"
    raise StorageUnavailable("file: away")


def _writes(statistics: StorageStatistics) -> dict[str, int]:
    return {kind: one.requests for kind, one in statistics.items() if kind in ("create", "delete", "rename")}
