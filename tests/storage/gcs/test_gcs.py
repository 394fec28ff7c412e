"""The GCS backend against fake-gcs-server, and its resumable uploads against Google's documented protocol."""

from __future__ import annotations

import asyncio
import secrets
import socket
import threading
import time
import traceback
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from minflinkd.storage.conformance import ServerLossConformance, StorageConformance, names, read, write
from minflinkd.storage.interface import (
    InvalidPath,
    ObjectExists,
    ObjectNotFound,
    PermissionDenied,
    Storage,
    StorageError,
    StorageFull,
    StorageUnavailable,
)
from minflinkd.storage.options import InvalidStorageOption, parse
from minflinkd.storage.registry import Storages
from minflinkd.storage.resilient import ResilientStorage
from minflinkd_gcs import GcsOptions, GcsStorage
from minflinkd_gcs.connection import Connection, refusal
from minflinkd_gcs.objects import listed
from tests.proxy import Proxy
from tests.servers.gateway import Gateway
from tests.servers.gcs import FakeGcs
from tests.storage.gcs.conftest import MIB, PATIENCE, gcs
from tests.storage.processes import run_client, start_writer

SILENCE = 20  # in seconds; longer than the limit for a token request


class TestGcsStorage(StorageConformance):
    entries = 250

    @pytest.fixture(autouse=True)
    def _small_pages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("minflinkd_gcs._PAGE", 100)

    @pytest_asyncio.fixture
    async def storage(self, fake_gcs: FakeGcs) -> AsyncIterator[Storage]:
        storage = gcs(fake_gcs.endpoint)
        yield storage
        await storage.aclose()

    @pytest.fixture
    def nowhere(self) -> str:
        return "none-such/x"


@pytest.mark.slow
class TestGcsWhoseServerDies(ServerLossConformance):
    """fake-gcs-server keeps objects on disk, and uploads in memory (S5)."""

    @pytest_asyncio.fixture
    async def storage(self, own_fake_gcs: FakeGcs) -> AsyncIterator[Storage]:
        storage = gcs(own_fake_gcs.endpoint)
        yield storage
        await storage.aclose()

    @pytest.fixture
    def server(self, own_fake_gcs: FakeGcs) -> FakeGcs:
        return own_fake_gcs


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect methods and URLs of all requests as they are made."""
    made: list[str] = []
    inner = Connection.request

    def recorded(self: Connection, method: str, url: str, path: str, **rest: object) -> object:
        made.append(f"{method} {url}")
        return inner(self, method, url, path, **rest)

    monkeypatch.setattr(Connection, "request", recorded)
    return made


async def test_a_small_object_takes_one_request(storage: GcsStorage, prefix: str, requests: list[str]) -> None:
    await write(storage, f"{prefix}/a", b"1" * MIB)
    await storage.create_exclusive(f"{prefix}/b", b"2")
    assert len(requests) == 2


async def test_a_directory_that_another_program_marked_is_no_object(storage: GcsStorage, prefix: str) -> None:
    await storage.put(f"{prefix}/d/", b"")
    await write(storage, f"{prefix}/d/x", b"1")
    assert await names(storage, prefix) == ["d/x"]


@pytest.mark.parametrize(
    "path", ["test", "/x", "test/", "test/a/../b", "test/a\nb", "test/a\0b", f"test/{'ü' * 513}", "test/\ud800"]
)
async def test_a_name_that_no_object_can_have_is_refused(storage: GcsStorage, path: str, requests: list[str]) -> None:
    with pytest.raises(InvalidPath):
        await write(storage, path, b"")
    with pytest.raises(InvalidPath):
        await storage.stat(path)
    assert requests == []


async def test_a_missing_object_costs_one_request(storage: GcsStorage, prefix: str, requests: list[str]) -> None:
    """Whether the bucket is missing is asked only once."""
    for name in "abc":
        with pytest.raises(ObjectNotFound):
            await storage.stat(f"{prefix}/{name}")
    assert len(requests) == 4


async def test_a_page_of_a_listing_is_repeated_alone(
    fake_gcs: FakeGcs, storage: GcsStorage, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minflinkd_gcs._PAGE", 10)
    made = [f"{number}" for number in range(10, 35)]
    for name in made:
        await storage.put(f"{prefix}/{name}", b"")
    async with Gateway(fake_gcs.endpoint) as wire:
        resilient = ResilientStorage(gcs(wire.endpoint), PATIENCE)
        wire.fault(lambda request: "pageToken" in request.query, status=503)
        assert await names(resilient, prefix) == made
        assert len(wire.requests) == 4
        await resilient.aclose()


async def test_whatever_is_listed_can_be_deleted(
    fake_gcs: FakeGcs, storage: GcsStorage, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects of other programs can be deleted, even under names that callers may not use."""
    odd = ["a\nb", "a\rb"]
    with monkeypatch.context() as patched:
        patched.setattr("minflinkd_gcs.split", listed)
        for name in odd:
            await storage.put(f"{prefix}/{name}", b"1")
    found = [entry.path async for entry in storage.list(prefix)]
    assert sorted(found) == sorted(f"{prefix}/{name}" for name in odd)
    await storage.delete(found)
    assert await names(storage, prefix) == []


# --- credentials ---


def test_a_metadata_server_that_is_silent_holds_up_no_exit() -> None:
    """Neither the end of the loop nor that of the process waits for the search for a token."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        work = (
            "import asyncio, threading, time; from minflinkd.storage.options import CommonOptions;"
            "from minflinkd.storage.resilient import ResilientStorage;"
            "patient = ResilientStorage(storage, CommonOptions(request_timeout=0.5, deadline=1, retries=0));"
            "print(repr((await asyncio.gather(patient.stat('b/x'), return_exceptions=True))[0]));"
            "print([thread.name for thread in threading.enumerate() if 'Google' in thread.name and thread.daemon]);"
            "print(time.time())"
        )
        make = "minflinkd_gcs.GcsStorage(minflinkd_gcs.GcsOptions(token='cloud'))"
        out = run_client("minflinkd_gcs", make, work, GCE_METADATA_HOST=host, GCE_METADATA_IP=host)
        took = time.time() - float(out.splitlines()[-1])  # from the last thing that it did until its end
    assert "StorageUnavailable" in out
    assert out.count("search for Google's credentials") == 1
    assert took < SILENCE


class Renewed:
    """Google's credentials, with a token that lasts until the test ends it."""

    def __init__(self) -> None:
        self.valid = False
        self.renewals = 0
        self.go_on = threading.Event()

    def apply(self, headers: dict[str, str]) -> None:
        headers["authorization"] = f"Bearer {self.renewals}"

    def maybe_refresh(self) -> None:
        assert self.go_on.wait(20)
        self.renewals += 1
        self.valid = True


async def test_a_token_is_renewed_once_for_all_that_wait_for_it(fake_gcs: FakeGcs, prefix: str) -> None:
    """A token is renewed once even if the first waiting request is cancelled, and not again before it ends."""
    storage, renewed = gcs(fake_gcs.endpoint), Renewed()
    system = await storage._connection._open(prefix)
    system.credentials.credentials, system.credentials.maybe_refresh = renewed, renewed.maybe_refresh
    waiting = [asyncio.create_task(storage.put(f"{prefix}/{number}", b"")) for number in range(5)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    renewed.go_on.set()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert await names(storage, prefix) == ["1", "2", "3", "4"]
    assert renewed.renewals == 1
    await storage.aclose()


def test_options_do_not_print_credentials() -> None:
    """S4"""
    assert "very-secret" not in repr(GcsOptions(token="very-secret"))


async def test_options_are_read_from_texts(fake_gcs: FakeGcs, prefix: str) -> None:
    """S7"""
    given = {"gs.endpoint-url": fake_gcs.endpoint, "gs.token": "anon", "gs.part-size": "1 MiB", "gs.retries": "2"}
    storages = Storages(given)
    place = storages.at(f"gs://{prefix}").child("a b%20")
    await place.write_bytes(b"1")
    assert [entry.path for entry in [entry async for entry in storages.at(f"gs://{prefix}").list()]] == [place.path]
    await storages.aclose()


@pytest.mark.parametrize("size", ["100 KiB", "300 KiB"])
def test_a_part_size_that_the_server_would_refuse_is_refused(size: str) -> None:
    with pytest.raises(InvalidStorageOption, match="part-size"):
        GcsStorage(parse(GcsOptions, {"part-size": size}, "gs"))


def test_a_token_given_in_place_of_a_file_is_not_shown() -> None:
    """S4"""
    token = "ya29." + secrets.token_hex(8)
    with pytest.raises(InvalidStorageOption, match=r"storage\.gs\.token names no file") as caught:
        GcsStorage(GcsOptions(token=token))
    assert token not in "".join(traceback.format_exception(caught.value))


async def test_credentials_that_are_none_are_a_permission_error_without_their_text(
    fake_gcs: FakeGcs,
    tmp_path: Path,
) -> None:
    """S4"""
    file = tmp_path / "credentials.json"
    file.write_text('{"type": "service_account", "private_key": "very-secret", "refresh_token": "very-secret"}')
    storage = gcs(fake_gcs.endpoint, token=str(file))
    with pytest.raises(PermissionDenied) as caught:
        await storage.stat("test/x")
    assert "very-secret" not in "".join(traceback.format_exception(caught.value))
    await storage.aclose()


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (401, '{"error": {"message": "Anonymous caller"}}', PermissionDenied),
        (403, '{"error": {"message": "no access", "errors": [{"reason": "forbidden"}]}}', PermissionDenied),
        (
            403,
            '{"error": {"message": "slow down", "errors": [{"reason": "userRateLimitExceeded"}]}}',
            StorageUnavailable,
        ),
        (404, "Not Found", ObjectNotFound),
        (408, "", StorageUnavailable),
        (412, '{"error": "conditionNotMet"}', ObjectExists),
        (429, '{"error": {}}', StorageUnavailable),
        (500, '{"error": {"message": "write /data: no space left on device"}}', StorageFull),
        (503, "<html>", StorageUnavailable),
        (400, "[]", StorageError),
    ],
)
def test_each_refusal_is_of_one_kind(status: int, body: str, kind: type[StorageError]) -> None:
    """S4"""
    error = refusal("b/x", status, body.encode())
    assert type(error) is kind
    assert "gs: b/x: " in error.message
    assert f"HTTP {status}" in error.message


async def test_a_server_that_is_not_there_is_a_transient_error() -> None:
    """S4"""
    async with Proxy("127.0.0.1", 1) as proxy:
        port = proxy.port
    storage = gcs(f"http://127.0.0.1:{port}")
    with pytest.raises(StorageUnavailable, match="gs: test/x: "):
        await storage.stat("test/x")
    await storage.aclose()


def made(server: FakeGcs) -> str:
    options = f"endpoint_url={server.endpoint!r}, token='anon', part_size={MIB}"
    return f"minflinkd_gcs.GcsStorage(minflinkd_gcs.GcsOptions({options}))"


@pytest.mark.slow
def test_a_process_killed_while_writing_leaves_nothing_visible(fake_gcs: FakeGcs, prefix: str) -> None:
    """The process gets kill -9 in the middle of a write (S5)."""
    make = made(fake_gcs)
    with start_writer("minflinkd_gcs", make, f"{prefix}/x") as writer:
        writer.kill()
    out = run_client("minflinkd_gcs", make, f"print([entry async for entry in storage.list({prefix!r})])")
    assert out == "[]\n"


@pytest.mark.slow
def test_nothing_is_left_open_or_asked_over_grpc(fake_gcs: FakeGcs, prefix: str) -> None:
    """gcsfs's support for other kinds of buckets stays on, as it is by default."""
    make = made(fake_gcs)
    work = f"print(await storage.put({prefix + '/x'!r}, b'123') == await storage.stat({prefix + '/x'!r}))"
    assert run_client("minflinkd_gcs", make, work, GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT="true") == "True\n"


@pytest.mark.parametrize("lost", [1, 2])
async def test_what_was_done_without_an_answer_is_done_once(fake_gcs: FakeGcs, prefix: str, lost: int) -> None:
    """Every request is safe to repeat (S4)."""
    async with Gateway(fake_gcs.endpoint) as wire:
        storage = ResilientStorage(gcs(wire.endpoint), PATIENCE)
        for step in (
            lambda: write(storage, f"{prefix}/a", b"1"),
            lambda: storage.create_exclusive(f"{prefix}/b", b"2"),
            lambda: storage.rename(f"{prefix}/a", f"{prefix}/c"),
            lambda: storage.delete([f"{prefix}/c"]),
        ):
            fault = wire.fault(lambda _: True, times=lost, lost=True)
            await step()
            assert fault.met == lost
        wire.fault(lambda _: True, times=lost, lost=True)
        assert await names(storage, prefix) == ["b"]
        assert await read(storage, f"{prefix}/b") == b"2"
        await storage.aclose()
