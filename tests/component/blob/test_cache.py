import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from minflinkd.blob import cache as cache_module
from minflinkd.blob.cache import BlobCache, BlobCacheClosed
from minflinkd.blob.client import BlobClient
from minflinkd.blob.errors import BlobNotFound
from minflinkd.blob.incoming import Incoming
from minflinkd.blob.keys import BlobKey, BlobKind
from minflinkd.blob.references import NotReferenced
from minflinkd.blob.server import BlobOptions, BlobServer
from minflinkd.runtime.ids import JobId
from minflinkd.storage.interface import StorageFull, StorageUnavailable
from minflinkd.storage.location import Location
from minflinkd.storage.recording import StorageStatistics
from minflinkd.storage.registry import Storages
from tests.waiting import until

JOB = JobId("a" * 32)
TOKEN = "cluster-secret"  # conftest's
DATA = os.urandom(100_000)


class Downloads(BlobClient):
    """Counts downloads, and can hold them up."""

    def __init__(self, url: str) -> None:
        super().__init__(url, token=TOKEN, retries=2, pause=0.01)
        self.count = 0
        self.cancelled = 0
        self.begun = asyncio.Event()
        self.hold = asyncio.Event()
        self.hold.set()

    async def download(self, job_id: JobId | None, key: BlobKey, incoming: Incoming, **options: Any) -> None:
        self.count += 1
        self.begun.set()
        try:
            await self.hold.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        await super().download(job_id, key, incoming, **options)


def files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def flip(path: Path) -> None:
    """Change one bit, and leave the size and the modification time as they were."""
    before, data = path.stat(), bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.fixture
async def downloads(server: BlobServer) -> AsyncIterator[Downloads]:
    async with Downloads(server.url) as client:
        yield client


@pytest.fixture
async def cache(downloads: Downloads, tmp_path: Path) -> AsyncIterator[BlobCache]:
    async with BlobCache(directory=tmp_path / "cache", client=downloads) as cache:
        yield cache


Upload = Callable[[bytes], Awaitable[BlobKey]]


@pytest.fixture
def upload(client: BlobClient) -> Upload:
    async def upload(data: bytes) -> BlobKey:
        return await client.put_bytes(JOB, data, BlobKind.PERMANENT)

    return upload


@pytest.fixture
async def key(upload: Upload) -> BlobKey:
    return await upload(DATA)


async def test_a_blob_is_fetched_once_and_counted(cache: BlobCache, downloads: Downloads, key: BlobKey) -> None:
    """Parallel requests share one download (B8), and two tasks of a job share the file (B15)."""
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
    assert cache.statistics().metrics() == {
        "blobs.hits": 2,
        "blobs.shared": 9,
        "blobs.from_ha": 0,
        "blobs.ha_bytes": 0,
        "blobs.from_server": 1,
        "blobs.server_bytes": len(DATA),
        "blobs.ha_failures": 0,
        "blobs.failures": 0,
        "blobs.corrupt": 0,
        "blobs.deleted": 0,
    }


@pytest.mark.parametrize("hashed_always", [0, 1 << 20])
@pytest.mark.parametrize("damage", [flip, lambda path: path.write_bytes(b"garbage"), Path.unlink])
async def test_a_damaged_file_is_found_and_fetched_again(
    cache: BlobCache,
    downloads: Downloads,
    key: BlobKey,
    damage: Callable[[Path], None],
    hashed_always: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cached file is verified, even if it was verified before. Any change of a large file is noticed (B8)."""
    monkeypatch.setattr(cache_module, "HASHED_ALWAYS", hashed_always)
    damage(await cache.get(JOB, key))
    assert (await cache.get(JOB, key)).read_bytes() == DATA
    assert (downloads.count, cache.statistics().corrupt) == (2, damage is not Path.unlink)


async def test_what_an_earlier_cache_left_is_not_trusted_and_nothing_outlives_a_cache(
    downloads: Downloads, key: BlobKey, tmp_path: Path
) -> None:
    """At shutdown everything is deleted; after a crash, the next start in the same directory deletes it (B15)."""
    left = tmp_path / "cache" / "incoming" / "left"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"of a cache that was killed")
    async with BlobCache(directory=tmp_path / "cache", client=downloads) as cache:
        assert files(tmp_path / "cache") == []
        path = await cache.get(JOB, key)
        flip(path)
        await cache.get(JOB, key)
        assert len(files(tmp_path / "cache")) == 2, "the good file, and the corrupt one for a person to look at"
    assert not (tmp_path / "cache").exists()
    with pytest.raises(BlobCacheClosed):
        await cache.get(JOB, key)


async def test_a_blob_that_is_nowhere_is_not_held(cache: BlobCache, tmp_path: Path) -> None:
    missing = BlobKey.new(BlobKind.PERMANENT, "0" * 64)
    outcomes = await asyncio.gather(*(cache.get(JOB, missing) for _ in range(3)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [BlobNotFound] * 3
    assert cache.references(JOB, missing) == 0
    assert files(tmp_path / "cache") == []


async def test_one_who_stops_waiting_does_not_stop_the_others(
    cache: BlobCache, downloads: Downloads, key: BlobKey
) -> None:
    """The download goes on even if the request that began it is cancelled (B8)."""
    downloads.hold.clear()
    impatient, patient = (asyncio.create_task(cache.get(JOB, key)) for _ in range(2))
    await asyncio.wait_for(downloads.begun.wait(), 10)
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    downloads.hold.set()
    assert (await patient).read_bytes() == DATA
    assert (downloads.count, cache.references(JOB, key)) == (1, 1)


async def test_a_download_ends_with_the_last_who_waits_and_the_next_begins_anew(
    cache: BlobCache, downloads: Downloads, key: BlobKey, tmp_path: Path
) -> None:
    downloads.hold.clear()
    waiting = [asyncio.create_task(cache.get(JOB, key)) for _ in range(2)]
    await asyncio.wait_for(downloads.begun.wait(), 10)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    downloads.hold.set()  # the next one does not wait for the end of the first
    assert (await cache.get(JOB, key)).read_bytes() == DATA
    await until(lambda: downloads.cancelled == 1)
    assert (downloads.count, cache.references(JOB, key)) == (2, 1)
    await until(lambda: len(files(tmp_path / "cache")) == 1)


async def test_a_download_that_somebody_waits_for_outlives_the_job_that_went_elsewhere_and_came_back(
    cache: BlobCache, downloads: Downloads, key: BlobKey
) -> None:
    """A file that is held is not deleted (B15)."""
    downloads.hold.clear()
    waiting = asyncio.create_task(cache.get(JOB, key))
    await asyncio.wait_for(downloads.begun.wait(), 10)
    await cache.forget_job(JOB)
    downloads.hold.set()
    assert (await waiting).read_bytes() == DATA
    assert cache.references(JOB, key) == 1


async def test_what_is_on_its_way_goes_when_the_cache_closes(
    cache: BlobCache, downloads: Downloads, key: BlobKey, tmp_path: Path
) -> None:
    downloads.hold.clear()
    waiting = asyncio.create_task(cache.get(JOB, key))
    await asyncio.wait_for(downloads.begun.wait(), 10)
    await cache.aclose()
    with pytest.raises(BlobCacheClosed):
        await waiting
    assert not (tmp_path / "cache").exists() or files(tmp_path / "cache") == []
    assert cache.references(JOB, key) == 0


async def test_a_forgotten_jobs_files_go_but_for_what_is_held(
    cache: BlobCache, upload: Upload, key: BlobKey, tmp_path: Path
) -> None:
    held = await upload(b"held")
    await cache.get(JOB, held)
    await cache.get(JOB, key)
    cache.release(JOB, key)
    await cache.forget_job(JOB)
    assert files(tmp_path / "cache") == [f"{JOB}/{held}"]
    cache.release(JOB, held)
    await cache.forget_job(JOB)
    assert not (tmp_path / "cache" / JOB).exists()
    assert (await cache.get(JOB, key)).read_bytes() == DATA


class TestCleanup:
    """The cleanup, with lists that rotate every 50 ms (B16)."""

    @pytest.fixture
    async def cache(self, downloads: Downloads, tmp_path: Path) -> AsyncIterator[BlobCache]:
        async with BlobCache(directory=tmp_path / "cache", client=downloads, retention=0.05) as cache:
            yield cache

    async def test_what_nobody_holds_goes_after_a_while_and_what_is_held_stays(
        self, cache: BlobCache, upload: Upload, key: BlobKey, tmp_path: Path
    ) -> None:
        other = await upload(b"other")
        path, others = await cache.get(JOB, key), await cache.get(JOB, other)
        cache.release(JOB, key)
        cache.release(JOB, other)
        released = asyncio.get_running_loop().time()
        assert await cache.get(JOB, key) == path  # this takes the file off the lists
        await until(lambda: not others.exists())
        assert asyncio.get_running_loop().time() - released >= 0.05
        assert path.read_bytes() == DATA
        cache.release(JOB, key)
        await until(lambda: cache.statistics().deleted == 2)  # counted once the files are gone
        assert not path.parent.exists()
        assert (await cache.get(JOB, key)).read_bytes() == DATA

    async def test_what_nobody_knows_of_goes_too(self, cache: BlobCache, key: BlobKey, tmp_path: Path) -> None:
        """A file may be unknown because it could not be deleted, or was written for a cancelled request."""
        stray = tmp_path / "cache" / JOB / str(key)
        stray.parent.mkdir()
        stray.write_bytes(DATA)
        await until(lambda: not stray.parent.exists())

    async def test_one_who_asks_during_a_deletion_gets_the_file(
        self, cache: BlobCache, downloads: Downloads, key: BlobKey, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The request must not get the path of a file whose deletion is already decided."""
        deleting, go_on = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        delete = cache._store.delete

        def slow(job_id: JobId | None, key: BlobKey) -> None:
            loop.call_soon_threadsafe(deleting.set)
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(10)
            delete(job_id, key)

        monkeypatch.setattr(cache._store, "delete", slow)
        await cache.get(JOB, key)
        cache.release(JOB, key)
        await asyncio.wait_for(deleting.wait(), 10)
        asking = asyncio.create_task(cache.get(JOB, key))
        await asyncio.sleep(0)
        go_on.set()
        assert (await asking).read_bytes() == DATA
        assert downloads.count == 2


class TestWithHaStore:
    """The HA store is asked before the server, and is only read (B8)."""

    @pytest.fixture
    def storages(self) -> Storages:
        return Storages()

    @pytest.fixture
    def ha(self, storages: Storages, tmp_path: Path) -> Location:
        return storages.at(str(tmp_path / "ha"))

    @pytest.fixture
    async def server(self, ha: Location, tmp_path: Path) -> AsyncIterator[BlobServer]:
        options = BlobOptions(directory=tmp_path / "server")
        async with BlobServer(options=options, token=TOKEN, ha_store=ha) as server:
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
        assert (downloads.count, cache.statistics().ha_bytes) == (0, len(DATA))
        await cache.forget_job(JOB)
        assert _writes(storages.statistics()["file"]) == before

    async def test_a_transient_blob_comes_from_the_server(
        self, cache: BlobCache, downloads: Downloads, client: BlobClient
    ) -> None:
        """B2"""
        key = await client.put_bytes(None, DATA, BlobKind.TRANSIENT)
        assert (await cache.get(None, key)).read_bytes() == DATA
        assert downloads.count == 1

    @pytest.mark.parametrize("copy", ["missing", "corrupt", "longer", "unreadable", "slow", "trickling"])
    async def test_a_bad_copy_is_passed_over(
        self,
        cache: BlobCache,
        downloads: Downloads,
        key: BlobKey,
        ha: Location,
        copy: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(cache_module, "HA_PATIENCE", 0.05)
        place = ha.child(JOB, str(key))
        wrong = {"corrupt": DATA[:-1] + bytes([DATA[-1] ^ 1]), "longer": DATA + b"more"}
        reads = {"unreadable": _unreadable, "slow": _slow, "trickling": _trickling}
        if copy == "missing":
            await place.delete()
        elif copy in reads:
            monkeypatch.setattr(place.storage, "open_read", reads[copy])
        else:
            await place.write_bytes(wrong[copy])
        assert (await cache.get(JOB, key)).read_bytes() == DATA
        assert (downloads.count, cache.statistics().ha_failures) == (1, 1)
        assert files(tmp_path / "cache") == [f"{JOB}/{key}"]

    async def test_a_store_that_is_away_is_not_asked_for_each_blob(
        self, cache: BlobCache, upload: Upload, key: BlobKey, ha: Location, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        second = await upload(b"second")
        monkeypatch.setattr(ha.storage, "open_read", _unreadable)
        await cache.get(JOB, key)
        await cache.get(JOB, second)
        assert (cache.statistics().ha_failures, cache.statistics().from_server) == (1, 2)

    async def test_a_corrupt_copy_does_not_keep_others_from_being_read(
        self, cache: BlobCache, upload: Upload, key: BlobKey, tmp_path: Path
    ) -> None:
        second = await upload(b"second")
        flip(tmp_path / "ha" / JOB / str(key))
        await cache.get(JOB, key)
        await cache.get(JOB, second)
        assert (cache.statistics().ha_failures, cache.statistics().from_ha) == (1, 1)

    @pytest.mark.parametrize("step", ["write", "place"])
    async def test_what_is_wrong_with_the_own_disk_is_not_taken_for_the_store(
        self, cache: BlobCache, downloads: Downloads, key: BlobKey, monkeypatch: pytest.MonkeyPatch, step: str
    ) -> None:
        def full(*_: object) -> None:
            raise StorageFull("file: no space left")

        with monkeypatch.context() as broken:
            broken.setattr(Incoming, step, full)
            with pytest.raises(StorageFull):
                await cache.get(JOB, key)
        assert (downloads.count, cache.statistics().ha_failures) == (0, 0)
        await cache.get(JOB, key)
        assert cache.statistics().from_ha == 1

    async def test_without_a_good_copy_anywhere_nothing_is_delivered(
        self, cache: BlobCache, key: BlobKey, ha: Location, tmp_path: Path
    ) -> None:
        for path in (tmp_path / "server" / JOB / str(key), tmp_path / "ha" / JOB / str(key)):
            flip(path)
        with pytest.raises(BlobNotFound):
            await cache.get(JOB, key)
        assert (cache.references(JOB, key), files(tmp_path / "cache")) == (0, [])


async def test_in_any_order_what_is_held_is_there_and_all_else_goes(
    downloads: Downloads, upload: Upload, tmp_path: Path
) -> None:
    """Gets, cancellations, releases, cleanups, damage and the ends of jobs come in random order (B15, B16)."""
    import random

    rng = random.Random(4)
    directory = tmp_path / "cache"
    contents = {await upload(data): data for data in (os.urandom(100 * size) for size in range(4))}
    held: list[tuple[BlobKey, Path]] = []
    async with BlobCache(directory=directory, client=downloads, retention=0.002, cleanup_interval=0.001) as cache:
        for _ in range(300):
            step = rng.choice(["get", "get", "cancel", "release", "release", "damage", "forget", "rest"])
            if step in ("get", "cancel"):
                keys = rng.choices(list(contents), k=rng.randint(1, 3))
                getting = [asyncio.create_task(cache.get(JOB, key)) for key in keys]
                if step == "cancel":
                    for _ in range(rng.randint(0, 30)):
                        await asyncio.sleep(0)
                    getting[0].cancel()
                for key, task in zip(keys, getting, strict=True):
                    with suppress(asyncio.CancelledError):
                        held.append((key, await task))
            elif step == "release" and held:
                key, _ = held.pop(rng.randrange(len(held)))
                cache.release(JOB, key)
            elif step == "damage":
                unheld = {str(key) for key in contents} - {str(key) for key, _ in held}
                for path in directory.glob(f"{JOB}/*"):
                    if path.name in unheld:
                        with suppress(FileNotFoundError):
                            path.write_bytes(b"damaged")
            elif step == "forget":
                await cache.forget_job(JOB)
            elif step == "rest":
                await asyncio.sleep(0.004)
            for key, path in held:
                assert path.read_bytes() == contents[key], step
        for key, _ in held:
            cache.release(JOB, key)
        await until(lambda: not (directory / JOB).exists())
        await until(lambda: list((directory / "incoming").iterdir()) == [])


async def _unreadable(*_: object) -> AsyncIterator[bytes]:
    yield b"some"
    raise StorageUnavailable("file: away")


async def _slow(*_: object) -> AsyncIterator[bytes]:
    yield DATA[:50_000]
    await asyncio.Event().wait()


async def _trickling(*_: object) -> AsyncIterator[bytes]:
    for byte in DATA:
        yield bytes([byte])
        await asyncio.sleep(0.01)


def _writes(statistics: StorageStatistics) -> dict[str, int]:
    return {kind: one.requests for kind, one in statistics.items() if kind in ("create", "delete", "rename")}
