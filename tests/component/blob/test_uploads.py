"""Uploads of users count for them, and one that is too much is refused (E46)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from minflinkd.blob.access import user_token
from minflinkd.blob.client import BlobClient
from minflinkd.blob.keys import BlobKey, BlobKind
from minflinkd.blob.server import BlobOptions, BlobServer
from minflinkd.config.quotas import Quotas
from minflinkd.dispatcher.quotas import QuotaBook
from minflinkd.runtime.errors import RemoteError
from minflinkd.runtime.ids import JobId
from tests.component.blob.raw_clients import JOB, files, sha256
from tests.waiting import until

TOKEN = "cluster-secret"
LIMIT = 200_000
OTHER = JobId("b" * 32)
SMALL, LARGE = b"s" * 1000, b"l" * 150_000


class World:
    """A server whose users may have 200,000 bytes each."""

    def __init__(self, directory: Path) -> None:
        quotas = Quotas.parse({"*.artifacts": str(LIMIT)})
        self.book = QuotaBook(quotas=lambda: quotas, stored=tuple, uploads=lambda: self.server.uploads())
        self.directory = directory
        self.server = BlobServer(
            options=BlobOptions(directory=directory, retention=0.1, cleanup_interval=0.05),
            token=TOKEN,
            admit=lambda user, size: self.book.admit_upload(user, size),
        )

    def client(self, user: str = "") -> BlobClient:
        return BlobClient(self.server.url, token=user_token(TOKEN, user) if user else TOKEN, retries=1, pause=0.01)

    def used(self, user: str = "alice") -> int:
        return self.book.usage(user).artifacts


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path / "blobs")
    async with world.server:
        yield world


async def test_an_upload_counts_for_its_user_and_what_is_too_much_is_refused(at: World) -> None:
    """The answer has the figures. Nothing of it is kept, and another user has room."""
    async with at.client("alice") as alice, at.client("bob") as bob:
        await alice.put_bytes(JOB, LARGE, BlobKind.PERMANENT)
        assert at.used() == len(LARGE)
        with pytest.raises(RemoteError, match="has 150,000 bytes, and this needs 150,001 bytes more") as refused:
            await alice.put_bytes(OTHER, LARGE + b".", BlobKind.PERMANENT)
        assert refused.value.info().code == "quota-exceeded"
        await bob.put_bytes(OTHER, LARGE + b".", BlobKind.PERMANENT)
    assert (at.used(), at.used("bob")) == (len(LARGE), len(LARGE) + 1)
    assert len(files(at.directory)) == 2


async def test_the_same_content_again_costs_nothing_more(at: World) -> None:
    """Whether the client asks before it sends, which it does for large content, or not."""
    async with at.client("alice") as alice:
        for data in (SMALL, LARGE, SMALL, LARGE):
            await alice.put_bytes(JOB, data, BlobKind.PERMANENT)
    assert at.used() == len(SMALL) + len(LARGE)


async def test_two_uploads_at_once_cannot_both_have_the_last_bytes(at: World) -> None:
    """The second is refused while the first has sent one byte of its body."""
    go_on = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield LARGE[:1]
        await go_on.wait()
        yield LARGE[1:]

    headers = {"Authorization": f"Bearer {user_token(TOKEN, 'alice')}", "Content-Length": str(len(LARGE))}

    async def slowly(http: aiohttp.ClientSession) -> int:
        params = {"sha256": sha256(LARGE)}
        async with http.put(f"/blobs/{JOB}", params=params, data=body(), headers=headers) as response:
            return response.status

    async with aiohttp.ClientSession(at.server.url) as http, at.client("alice") as alice:
        first = asyncio.create_task(slowly(http))
        await until(lambda: at.used() == len(LARGE))
        with pytest.raises(RemoteError, match="artifacts"):
            await alice.put_bytes(OTHER, LARGE[1:], BlobKind.PERMANENT)
        go_on.set()
        assert await first == 201


async def test_a_body_without_a_length_is_refused_where_it_is_too_much(at: World) -> None:
    """So leaving out the length is no way around the limit."""

    async def body() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield LARGE

    headers = {"Authorization": f"Bearer {user_token(TOKEN, 'alice')}"}
    async with (
        aiohttp.ClientSession(at.server.url) as http,
        http.put(f"/blobs/{JOB}?sha256={'0' * 64}", data=body(), headers=headers) as response,
    ):
        assert (response.status, (await response.json())["code"]) == (409, "quota-exceeded")
    await until(lambda: at.used() == 0)
    assert files(at.directory) == []


async def test_bytes_are_free_again_when_a_blob_is_deleted_by_whomever(at: World) -> None:
    """By its user, with its job, or by the cleanup, since nobody needs it."""
    async with at.client("alice") as alice:
        one = await alice.put_bytes(None, SMALL, BlobKind.TRANSIENT)
        await alice.delete(None, one)
        assert at.used() == 0
        await alice.put_bytes(JOB, SMALL, BlobKind.PERMANENT)
        await alice.delete_job(JOB)
        assert at.used() == 0
        await alice.put_bytes(JOB, SMALL, BlobKind.PERMANENT)
        await at.server.take_stock({})
        await until(lambda: at.used() == 0, "the cleanup deletes it")


async def test_bytes_are_free_again_when_a_file_is_lost(at: World) -> None:
    """A corrupt one is moved aside. No figure stays that nothing stands behind."""
    async with at.client("alice") as alice:
        key = await alice.put_bytes(JOB, SMALL, BlobKind.PERMANENT)
    (at.directory / JOB / str(key)).unlink()
    await at.server.clean_up()
    assert at.used() == 0


async def test_what_a_job_has_taken_over_counts_as_the_jobs(at: World) -> None:
    async with at.client("alice") as alice:
        key = await alice.put_bytes(JOB, SMALL, BlobKind.PERMANENT)
    await at.server.hold(JOB, [key])
    assert at.used() == len(SMALL), "a dry run holds it as well"
    at.server.taken_over(JOB, [key])
    assert at.used() == 0


async def test_processes_of_the_cluster_have_no_quota(at: World) -> None:
    async with at.client() as task_manager:
        key: BlobKey = await task_manager.put_bytes(JOB, LARGE * 2, BlobKind.TRANSIENT)
        assert await task_manager.get_bytes(JOB, key) == LARGE * 2
    assert at.server.uploads() == ()


async def test_a_users_token_gets_blobs_and_one_that_is_made_up_does_not(at: World) -> None:
    async with at.client("alice") as alice:
        key = await alice.put_bytes(JOB, SMALL, BlobKind.PERMANENT)
        assert await alice.get_bytes(JOB, key) == SMALL
    name, _, proof = user_token(TOKEN, "alice").partition(".")
    for token in (f"{name}.{proof[:-1]}", f"{user_token(TOKEN, 'bob').partition('.')[0]}.{proof}", name):
        async with (
            aiohttp.ClientSession(at.server.url) as http,
            http.get(f"/blobs/{JOB}/{key}", headers={"Authorization": f"Bearer {token}"}) as response,
        ):
            assert response.status == 401
