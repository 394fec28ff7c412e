"""A changed byte in either copy is never delivered. A good copy repairs it; otherwise it is reported (B7)."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import time
from collections.abc import AsyncIterator
from io import FileIO
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
from structlog.testing import capture_logs

from minflinkd.blob.client import BlobClient
from minflinkd.blob.errors import BlobNotFound
from minflinkd.blob.files import Identity
from minflinkd.blob.ha_store import HaStore
from minflinkd.blob.keys import Blob, BlobKey
from minflinkd.blob.server import BlobOptions, BlobServer
from minflinkd.blob.store import TRUSTED, _Verified
from minflinkd.runtime.ids import JobId
from minflinkd.storage.faulty import FaultyStorage
from minflinkd.storage.interface import StorageUnavailable
from minflinkd.storage.location import Location
from minflinkd_local import LocalStorage
from tests.waiting import until

JOB, OTHER = JobId("a" * 32), JobId("b" * 32)
MIB = 1 << 20
DATA = bytes(range(256)) * 400


def files(directory: Path) -> list[str]:
    found = (Path(where) / name for where, _, names in os.walk(directory) for name in names)
    return sorted(str(path.relative_to(directory)) for path in found)


def flip(path: Path, at: int = -1, *, hide: bool = False) -> None:
    """Change one byte in place. With `hide`, the file's modification time stays as it was."""
    before = path.stat()
    with path.open("r+b") as file:
        at %= before.st_size
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    if hide:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


class Cluster:
    def __init__(self, root: Path, server: BlobServer) -> None:
        self.root = root
        self.server = server

    def local(self, key: BlobKey) -> Path:
        return self.root / "server" / JOB / str(key)

    def copy(self, key: BlobKey) -> Path:
        return self.root / "ha" / JOB / str(key)

    async def put(self, data: bytes = DATA, kind: str = "p") -> BlobKey:
        params = {"sha256": hashlib.sha256(data).hexdigest(), "kind": kind}
        async with aiohttp.request("PUT", f"{self.server.url}/blobs/{JOB}", params=params, data=data) as response:
            assert response.status == 201, await response.text()
            return BlobKey.parse((await response.json())["key"])

    async def get(self, key: BlobKey) -> tuple[int, bytes]:
        async with aiohttp.request("GET", f"{self.server.url}/blobs/{JOB}/{key}") as response:
            return response.status, await response.read()

    def moved_aside(self) -> list[str]:
        return [name for name in files(self.root / "server") if name.startswith("corrupt/")]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    ha = Location(LocalStorage(), "file", str(tmp_path / "ha"))
    async with BlobServer(options=BlobOptions(directory=tmp_path / "server"), ha_store=ha) as server:
        await server.take_stock({})
        yield Cluster(tmp_path, server)


@pytest.mark.parametrize("hide", [False, True], ids=["in the open", "with the old time"])
@pytest.mark.parametrize("served", [False, True], ids=["fresh", "served before"])
async def test_a_damaged_local_file_is_replaced_by_the_copy(cluster: Cluster, hide: bool, served: bool) -> None:
    """Damage is found even right after the file was written, when its times cannot show a change (B7)."""
    key = await cluster.put()
    if served:
        assert await cluster.get(key) == (200, DATA)
    flip(cluster.local(key), hide=hide)
    assert set(await asyncio.gather(*(cluster.get(key) for _ in range(8)))) == {(200, DATA)}
    assert len(cluster.moved_aside()) == 1
    assert cluster.server.statistics().moved_aside == 1
    assert cluster.local(key).read_bytes() == DATA


async def test_a_damaged_blob_without_a_copy_is_reported_and_not_served(cluster: Cluster) -> None:
    """Transient blobs have no copy (B7)."""
    key = await cluster.put(kind="t")
    flip(cluster.local(key))
    with capture_logs() as logs:
        status, answer = await cluster.get(key)
    assert (status, b"corrupt and was moved aside" in answer) == (404, True)
    assert [entry["blob"] for entry in logs if entry["log_level"] == "error"] == [str(key)]
    assert len(cluster.moved_aside()) == 1
    assert await cluster.put(kind="t") != key, "the content can be uploaded again"


@pytest.mark.parametrize("served", [False, True], ids=["fresh", "served before"])
async def test_a_file_damaged_while_it_is_sent_does_not_arrive(cluster: Cluster, served: bool) -> None:
    """The last piece is held back, and the next try gets good content, even if the file is not hashed again (B7)."""
    data = os.urandom(16 * MIB)
    key = await cluster.put(data)
    if served:
        assert await cluster.get(key) == (200, data)
    address = urlsplit(cluster.server.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=4096)
    writer.write(f"GET /blobs/{JOB}/{key} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    flip(cluster.local(key))
    arrived = 0
    try:
        while piece := await reader.read(MIB):
            arrived += len(piece)
    except ConnectionError:
        pass
    writer.close()
    assert arrived < len(data)
    assert await cluster.get(key) == (200, data)
    assert len(cluster.moved_aside()) == 1


async def test_a_client_gets_the_good_content_in_the_end(cluster: Cluster, tmp_path: Path) -> None:
    data = os.urandom(4 * MIB)
    key = await cluster.put(data)
    flip(cluster.local(key), 100)
    async with BlobClient(cluster.server.url, pause=0.01) as client:
        await client.download_to(JOB, key, tmp_path / "mine")
    assert (tmp_path / "mine").read_bytes() == data


@pytest.mark.parametrize("how", ["file", "bytes"])
async def test_a_client_that_got_bad_content_has_the_file_verified(cluster: Cluster, tmp_path: Path, how: str) -> None:
    """A client's report finds damage that a disk did without a trace after the file was verified (B7)."""
    key = await cluster.put()
    flip(cluster.local(key))
    store = cluster.server._store
    store._verified[cluster.local(key)] = _Verified(Identity.of(cluster.local(key).stat()), time.monotonic())
    assert (await cluster.get(key))[1] != DATA, "else this shows nothing"
    async with BlobClient(cluster.server.url, pause=0.01, retries=1) as client:
        if how == "file":
            await client.download_to(JOB, key, tmp_path / "mine")
            assert (tmp_path / "mine").read_bytes() == DATA
        else:
            assert await client.get_bytes(JOB, key) == DATA
    assert len(cluster.moved_aside()) == 1


async def test_what_was_verified_long_ago_is_hashed_while_it_is_sent(cluster: Cluster) -> None:
    """A disk may damage a file without a trace (B7)."""
    key = await cluster.put()
    flip(cluster.local(key))
    store, identity = cluster.server._store, Identity.of(cluster.local(key).stat())
    store._verified[cluster.local(key)] = _Verified(identity, time.monotonic() - TRUSTED - 1)
    with pytest.raises(aiohttp.ClientPayloadError):
        await cluster.get(key)
    assert await cluster.get(key) == (200, DATA)
    store._verified[cluster.local(key)] = _Verified(
        Identity.of(cluster.local(key).stat()), time.monotonic() - TRUSTED - 1
    )
    assert await cluster.get(key) == (200, DATA)
    assert time.monotonic() - store._verified[cluster.local(key)].at < TRUSTED, "it is trusted again"


@pytest.mark.parametrize("damage", ["flipped", "lost"])
async def test_a_bad_copy_is_replaced_by_the_local_file(cluster: Cluster, damage: str) -> None:
    """Caches ask the HA store first, so a cache that asks the server has found no good copy there."""
    key = await cluster.put()
    flip(cluster.copy(key)) if damage == "flipped" else cluster.copy(key).unlink()
    assert await cluster.get(key) == (200, DATA)
    await until(lambda: cluster.copy(key).exists() and cluster.copy(key).read_bytes() == DATA)


async def test_a_disk_that_cannot_be_read_is_an_error_of_the_storage(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that cannot be read ends neither the reader nor the task that repairs copies (B7)."""

    class Broken(FileIO):
        def readall(self) -> bytes:
            raise OSError(errno.EIO, "input/output error")

        def read(self, size: int | None = -1) -> bytes:
            return self.readall()

    key = await cluster.put()

    async def broken(*_: object) -> FileIO:
        return Broken(cluster.local(key))

    monkeypatch.setattr(cluster.server._reader, "open", broken)
    with pytest.raises(StorageUnavailable, match=str(key)):
        await cluster.server.read(JOB, key)
    cluster.copy(key).unlink()
    with pytest.raises(StorageUnavailable, match=str(key)):
        await cluster.server._mender.mend(Blob(JOB, key))
    assert not cluster.copy(key).exists()


async def test_the_cleanup_puts_back_the_lost_copy_of_a_job_that_runs(cluster: Cluster) -> None:
    """Otherwise the job could not be recovered (B20)."""
    key = await cluster.put()
    await cluster.server.hold(JOB, [key])
    cluster.copy(key).unlink()
    await cluster.server.clean_up()
    assert cluster.copy(key).read_bytes() == DATA


async def test_a_lost_blob_does_not_keep_others_from_being_mended(cluster: Cluster) -> None:
    """B20"""
    lost, other = await cluster.put(b"lost"), await cluster.put()
    await cluster.server.hold(JOB, [lost, other])
    await cluster.server.hold(OTHER, [BlobKey.parse(f"p-{'0' * 64}-{'1' * 32}")])  # it never existed
    for path in (cluster.local(lost), cluster.copy(lost), cluster.copy(other)):
        path.unlink()
    with capture_logs() as logs:
        await cluster.server.clean_up()
    assert cluster.copy(other).read_bytes() == DATA
    later = [entry["blob"] for entry in logs if entry["event"] == "the copy of a blob is looked at again later"]
    assert str(lost) in later


async def test_the_cleanup_mends_a_copy_of_another_size(cluster: Cluster) -> None:
    """The size in the listing shows the damage (B20)."""
    key = await cluster.put()
    await cluster.server.hold(JOB, [key])
    cluster.copy(key).write_bytes(DATA[:-1])
    await cluster.server.clean_up()
    assert cluster.copy(key).read_bytes() == DATA


async def test_two_bad_copies_are_reported_and_left_alone(cluster: Cluster) -> None:
    """If both copies are bad, neither is deleted because of the damage (B17)."""
    key = await cluster.put()
    await cluster.server.hold(JOB, [key])
    flip(cluster.copy(key))
    flip(cluster.local(key))
    with capture_logs() as logs:
        assert (await cluster.get(key))[0] == 404
    assert "a blob has no good copy" in [entry["event"] for entry in logs]
    with pytest.raises(BlobNotFound, match="no good copy"):
        await cluster.server.recover(JOB, [key])
    await cluster.server.clean_up()
    assert cluster.copy(key).exists()
    assert len(cluster.moved_aside()) == 1


# --- an HA store that fails ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True], ids=["before it worked", "after it worked"])
async def test_an_upload_whose_copy_fails_fails_and_leaves_nothing(tmp_path: Path, after: bool) -> None:
    """Whichever request of the storage fails, the upload fails and leaves nothing, and the next one succeeds (B5)."""
    failed = 0
    for number in range(1, 6):
        storage = FaultyStorage(LocalStorage(), number, after=after)
        root = tmp_path / str(number)
        options = BlobOptions(directory=root / "server")
        async with BlobServer(options=options, ha_store=Location(storage, "file", str(root / "ha"))) as server:
            cluster = Cluster(root, server)
            params = {"sha256": hashlib.sha256(DATA).hexdigest()}
            async with aiohttp.request("PUT", f"{server.url}/blobs/{JOB}", params=params, data=DATA) as response:
                if response.status == 201:  # after the last request, or a lost answer did no harm
                    continue
                failed += 1
                assert (response.status, (await response.json())["code"]) == (503, "storage-transient")
                assert response.headers["Retry-After"] == "1"
            await until(lambda root=root: files(root) == [])
            key = await cluster.put()
            assert (cluster.local(key).read_bytes(), cluster.copy(key).read_bytes()) == (DATA, DATA)
    assert failed in (1, 2)


async def test_whether_there_is_a_copy_is_not_known_while_the_storage_is_away(tmp_path: Path) -> None:
    """While the storage cannot be asked, a blob does not count as missing."""
    storage = FaultyStorage(LocalStorage())
    options = BlobOptions(directory=tmp_path / "server")
    async with BlobServer(options=options, ha_store=Location(storage, "file", str(tmp_path / "ha"))) as server:
        cluster = Cluster(tmp_path, server)
        key = await cluster.put()
        cluster.local(key).unlink()
        storage.fail_at = storage.requests + 1
        assert (await cluster.get(key))[0] == 503
        assert await cluster.get(key) == (200, DATA)


# --- exit ------------------------------------------------------------------------------------------------------------


async def test_an_orderly_exit_leaves_the_copies_of_jobs_only(tmp_path: Path) -> None:
    """If there is no HA store, the local files that jobs need stay too (B17)."""
    ha = Location(LocalStorage(), "file", str(tmp_path / "ha"))
    async with BlobServer(options=BlobOptions(directory=tmp_path / "server"), ha_store=ha) as server:
        cluster = Cluster(tmp_path, server)
        key = await cluster.put()
        await cluster.put(kind="t")
        await server.hold(JOB, [key])
    assert files(tmp_path) == [f"ha/{JOB}/{key}"]
    async with BlobServer(options=BlobOptions(directory=tmp_path / "server"), ha_store=ha) as server:
        await server.take_stock({JOB: [key]})
        await server.recover(JOB, [key])
        assert cluster.local(key).read_bytes() == DATA
    async with BlobServer(options=BlobOptions(directory=tmp_path / "other")) as server:
        cluster = Cluster(tmp_path, server)
        key = await cluster.put()
        await cluster.put(b"of no job")
        await cluster.put(kind="t")
        await server.hold(JOB, [key])
    assert files(tmp_path / "other") == [f"{JOB}/{key}"]


@pytest.mark.parametrize("copy", ["flipped", "shorter", "slow"])
async def test_an_orderly_exit_keeps_what_has_no_copy_known_to_be_good(
    tmp_path: Path, copy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that was only listed may be damaged. Then the job is recovered from the local file (B17)."""
    ha = Location(LocalStorage(), "file", str(tmp_path / "ha"))
    options = BlobOptions(directory=tmp_path / "server")
    async with BlobServer(options=options, ha_store=ha) as server:
        cluster = Cluster(tmp_path, server)
        key = await cluster.put()
        await server.take_stock({JOB: [key]})
        await server.clean_up()
        if copy == "flipped":
            flip(cluster.copy(key))
        elif copy == "shorter":
            cluster.copy(key).write_bytes(DATA[:-1])
        else:

            async def never(*_: object) -> bool:
                await asyncio.Event().wait()
                raise AssertionError("unreachable")

            monkeypatch.setattr("minflinkd.blob.mending.LAST_LOOK", 0.05)
            monkeypatch.setattr("minflinkd.blob.ha_store.HaStore.is_good", never)
    assert files(tmp_path / "server") == [f"{JOB}/{key}"]
    async with BlobServer(options=options, ha_store=ha) as server:
        await server.take_stock({JOB: [key]})
        await server.recover(JOB, [key])
        assert cluster.local(key).read_bytes() == DATA


async def test_the_cleanup_finishes_a_deletion_that_met_an_error(tmp_path: Path) -> None:
    """Nobody need ask again, and the job's id can be used again (B17)."""
    storage = FaultyStorage(LocalStorage())
    options = BlobOptions(directory=tmp_path / "server")
    async with BlobServer(options=options, ha_store=Location(storage, "file", str(tmp_path / "ha"))) as server:
        cluster = Cluster(tmp_path, server)
        await cluster.put()
        storage.fail_at = storage.requests + 1  # nothing is cleaned up before `take_stock`
        async with aiohttp.request("DELETE", f"{server.url}/blobs/{JOB}") as response:
            assert response.status == 503
        await server.clean_up()
        assert files(tmp_path) == []
        await cluster.put()


async def test_a_deletion_is_finished_where_its_client_leaves(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B17"""
    await cluster.put()
    delete, began, go_on = HaStore.delete_job, asyncio.Event(), asyncio.Event()

    async def slowly(store: HaStore, job_id: JobId | None) -> None:
        began.set()
        await go_on.wait()
        await delete(store, job_id)

    monkeypatch.setattr(HaStore, "delete_job", slowly)
    address = urlsplit(cluster.server.url)
    _, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(f"DELETE /blobs/{JOB} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    await began.wait()
    writer.transport.abort()
    async with aiohttp.request("GET", f"{cluster.server.url}/blobs") as response:  # the server has seen that
        assert response.status == 200
    go_on.set()
    await until(lambda: files(cluster.root) == [])
    await until(lambda: not cluster.server._lifecycle.ending())
    await cluster.put()


async def test_only_the_leader_deletes_in_the_ha_store(tmp_path: Path) -> None:
    """The blob stays marked for deletion, and is deleted when the server leads (B20)."""
    leads = True
    ha = Location(LocalStorage(), "file", str(tmp_path / "ha"))
    options = BlobOptions(directory=tmp_path / "server", retention=0.05)
    async with BlobServer(options=options, ha_store=ha, leads=lambda: leads) as server:
        cluster = Cluster(tmp_path, server)
        leads = False
        key = await cluster.put()
        await server.take_stock({})
        with capture_logs():
            await until(lambda: not server._lifecycle.can_be_had(Blob(JOB, key)))
            await server.clean_up()
            assert cluster.copy(key).exists()
            leads = True
            await until(lambda: not cluster.copy(key).exists())
