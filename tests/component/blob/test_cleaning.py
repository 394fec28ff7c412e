"""What the BlobServer does when its own records contradict each other."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from structlog.testing import capture_logs

from minflinkd.blob.keys import Blob, BlobKey, BlobKind
from minflinkd.blob.server import BlobOptions, BlobServer
from minflinkd.runtime.ids import JobId
from tests.waiting import until

JOB, OTHER = JobId("a" * 32), JobId("b" * 32)
REFUSED = "no blob is deleted, because what is known of the blobs is contradictory: a bug in minflinkd"


class Contradictory:
    """A server with a staged blob that seems to be referenced as well, and one that is only staged."""

    def __init__(self, server: BlobServer, directory: Path) -> None:
        self.server = server
        self.directory = directory

    async def begin(self) -> None:
        self.wrong = Blob(JOB, await self.upload(JOB, b"wrong"))
        self.right = Blob(OTHER, await self.upload(OTHER, b"right"))
        self.server._lifecycle._counts[self.wrong] += 1
        await self.server.take_stock({})

    def mend(self) -> None:
        del self.server._lifecycle._counts[self.wrong]

    async def upload(self, job_id: JobId, data: bytes) -> BlobKey:
        key = BlobKey.new(BlobKind.PERMANENT, hashlib.sha256(data).hexdigest())
        params = {"sha256": key.sha256}
        async with aiohttp.request("PUT", f"{self.server.url}/blobs/{job_id}", params=params, data=data) as response:
            assert response.status == 201
            return BlobKey.parse((await response.json())["key"])

    def exists(self, blob: Blob) -> bool:
        return (self.directory / str(blob.job_id) / str(blob.key)).exists()


@pytest.fixture
async def contradictory(tmp_path: Path) -> AsyncIterator[Contradictory]:
    options = BlobOptions(directory=tmp_path / "server", retention=0.05, cleanup_interval=0.05)
    async with BlobServer(options=options) as server:
        yield Contradictory(server, options.directory)


async def test_no_rotation_deletes_anything_until_the_records_agree(contradictory: Contradictory) -> None:
    """Each rotation says which blob is wrong, and the loop goes on: when the records agree, it deletes again (B20)."""
    with capture_logs() as logs:
        await contradictory.begin()
        await until(lambda: len(logs) >= 6)  # later than both would have been deleted
        assert contradictory.exists(contradictory.wrong)
        assert contradictory.exists(contradictory.right)
        contradictory.mend()
        await until(lambda: not contradictory.exists(contradictory.wrong))
        await until(lambda: not contradictory.exists(contradictory.right))
    assert {(log["log_level"], log["event"]) for log in logs} == {("error", REFUSED)}
    assert all(f"{contradictory.wrong} is staged, but also referenced" in log["error"] for log in logs)


async def test_a_contradiction_keeps_nobody_from_uploading_reading_and_deleting(contradictory: Contradictory) -> None:
    """Only what is deleted because nobody holds it stays. A job that has ended takes all of its blobs along (B17)."""
    with capture_logs() as logs:
        await contradictory.begin()
        await until(lambda: bool(logs))
        await contradictory.server.clean_up()
        key = await contradictory.upload(OTHER, b"more")
        assert await contradictory.server.read(OTHER, key) == b"more"
        await contradictory.server.delete_job(OTHER)
        assert not contradictory.exists(contradictory.right)
        assert contradictory.exists(contradictory.wrong)
