"""The S3 backend against two servers, and tests of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from minflinkd.storage.conformance import ODD_NAMES, ServerLossConformance, StorageConformance, names, read, write
from minflinkd.storage.interface import (
    InvalidPath,
    ObjectExists,
    ObjectNotFound,
    PermissionDenied,
    StorageError,
    StorageFull,
    StorageUnavailable,
)
from minflinkd.storage.options import InvalidStorageOption, parse
from minflinkd.storage.registry import Storages
from minflinkd_s3 import S3Options, S3Storage
from minflinkd_s3.errors import UploadGone, of_answer
from tests.servers.gateway import Gateway
from tests.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server, SeaweedFS
from tests.storage.processes import run_client, start_writer
from tests.storage.s3.conftest import options, s3


class Quick:
    """Makes listings and deletions of conformance tests take several requests without thousands of objects."""

    entries = 250

    @pytest.fixture(autouse=True)
    def _small_pages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("minflinkd_s3.storage._PAGE", 100)
        monkeypatch.setattr("minflinkd_s3.storage._BATCH", 100)


class S3Conformance(StorageConformance):
    @pytest.fixture
    def nowhere(self) -> str:
        return "no-bucket/x"


class TestS3OnMoto(Quick, S3Conformance):
    test_ten_thousand_entries_are_listed = None  # takes minutes, so it runs on SeaweedFS


@pytest.mark.slow
class TestS3OnSeaweedFS(S3Conformance):
    odd_names = [name for name in ODD_NAMES if "\\" not in name]  # SeaweedFS takes it for a /

    @pytest_asyncio.fixture
    async def storage(self, seaweedfs: SeaweedFS) -> AsyncIterator[S3Storage]:
        storage = s3(seaweedfs)
        yield storage
        await storage.aclose()


@pytest.mark.slow
class TestS3WhoseServerDies(ServerLossConformance):
    """The server keeps its data on disk (S5)."""

    @pytest_asyncio.fixture
    async def storage(self, own_seaweedfs: SeaweedFS) -> AsyncIterator[S3Storage]:
        storage = s3(own_seaweedfs)
        yield storage
        await storage.aclose()

    @pytest.fixture
    def server(self, own_seaweedfs: SeaweedFS) -> SeaweedFS:
        return own_seaweedfs


# --- credentials ---


async def test_a_wrong_secret_is_refused_and_not_shown(seaweedfs: SeaweedFS, prefix: str) -> None:
    """S4"""
    wrong = "wrong-secret-0123456789"
    given = {f"s3.{name}": value for name, value in options(seaweedfs, **{"secret-key": wrong}).items()}
    storages = Storages(given)
    try:
        with pytest.raises(PermissionDenied) as caught:
            await storages.at(f"s3://{prefix}/x").write_bytes(b"1")
    finally:
        await storages.aclose()
    assert wrong not in f"{caught.value.message} {caught.value.hint} {caught.value.__cause__!r}"
    assert "secret-key" in caught.value.hint


def test_options_do_not_print_credentials() -> None:
    """S4"""
    assert SECRET_KEY not in repr(S3Options(access_key=ACCESS_KEY, secret_key=SECRET_KEY, session_token=SECRET_KEY))


async def test_credentials_come_from_the_sdks_own_chain(
    seaweedfs: SeaweedFS, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment comes first, then a profile in the SDK's files (S7)."""
    without = {"endpoint-url": seaweedfs.endpoint, "region": REGION}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    await _write_and_close(S3Storage(parse(S3Options, without, "s3")), f"{prefix}/environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    credentials = tmp_path / "credentials"
    credentials.write_text(f"[mine]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    await _write_and_close(S3Storage(parse(S3Options, without | {"profile": "mine"}, "s3")), f"{prefix}/profile")
    with pytest.raises(PermissionDenied, match="none"):
        await _write_and_close(S3Storage(parse(S3Options, without | {"profile": "none"}, "s3")), f"{prefix}/x")


async def _write_and_close(storage: S3Storage, path: str) -> None:
    try:
        await write(storage, path, b"1")
    finally:
        await storage.aclose()


# --- options and names ---


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"endpoint": "http://x"}, r"storage\.s3\.endpoint: no such option"),
        ({"part-size": "1 MiB"}, "at least 5 MiB"),
        ({"part-size": "much"}, "is not a size"),
        ({"copy-part-size": "1 B"}, "at least 5 MiB"),
        ({"copy-part-size": "6 GiB"}, "at most 5 GiB"),
        ({"parts-at-once": "0"}, ">= 1"),
        ({"access-key": "only"}, "secret-key"),
        ({"anonymous": "true", "profile": "x"}, "anonymous"),
    ],
)
def test_options_that_cannot_be_are_refused(given: dict[str, str], said: str) -> None:
    """S7"""
    with pytest.raises(InvalidStorageOption, match=said):
        S3Storage(parse(S3Options, given, "s3"))


async def test_an_endpoint_that_is_none_is_named(prefix: str) -> None:
    storage = S3Storage(S3Options(endpoint_url="no url", access_key="a", secret_key="b"))
    with pytest.raises(StorageError, match="no url") as caught:
        await storage.stat(f"{prefix}/x")
    assert "endpoint-url" in caught.value.hint
    await storage.aclose()


async def test_a_server_that_is_away_is_unavailable(prefix: str) -> None:
    """S4"""
    storage = S3Storage(S3Options(endpoint_url="http://127.0.0.1:9", access_key="a", secret_key="b"))
    with pytest.raises(StorageUnavailable, match=f"{prefix}/x"):
        await storage.stat(f"{prefix}/x")
    await storage.aclose()


@pytest.mark.parametrize("path", ["", "bucket", "/x", "b//x", "b/../x", "b/./x", "b/x/", "b/a\0b", "not a bucket/x"])
async def test_paths_that_name_no_object_are_refused(storage: S3Storage, path: str) -> None:
    with pytest.raises(InvalidPath):
        await write(storage, path, b"")
    with pytest.raises(InvalidPath):
        await read(storage, path)


async def test_markers_of_directories_are_no_objects(storage: S3Storage, prefix: str) -> None:
    """Other programs leave them."""
    bucket, _, key = prefix.partition("/")
    await storage._call("put_object", prefix, Bucket=bucket, Key=f"{key}/d/", Body=b"")
    await write(storage, f"{prefix}/d/x", b"1")
    assert await names(storage, prefix) == ["d/x"]


async def test_a_missing_object_costs_one_request(behind: S3Storage, gateway: Gateway, prefix: str) -> None:
    """Whether the bucket is missing is asked only once."""
    for name in "abc":
        with pytest.raises(ObjectNotFound):
            await behind.stat(f"{prefix}/{name}")
    assert len(gateway.requests) == 4


async def test_whatever_is_listed_can_be_deleted(storage: S3Storage, prefix: str) -> None:
    """Objects of other programs can be deleted, even under names that callers may not use."""
    bucket, _, key = prefix.partition("/")
    odd = ["a//b", "a/../b"]
    for name in (*odd, "b", "a/b"):
        await storage._call("put_object", prefix, Bucket=bucket, Key=f"{key}/{name}", Body=b"")
    assert sorted(await names(storage, prefix)) == sorted([*odd, "b", "a/b"])
    await storage.delete([f"{prefix}/a//b"])
    await storage.delete([f"{prefix}/a/../b"])
    assert await names(storage, prefix) == ["a/b", "b"]


async def test_names_that_xml_cannot_hold_are_names(storage: S3Storage, prefix: str) -> None:
    for name in ("a\x01b", "a\rb", "\ufffe"):
        await write(storage, f"{prefix}/{name}", b"1")
        assert await read(storage, f"{prefix}/{name}") == b"1"
    await storage.delete([f"{prefix}/{name}" for name in ("a\x01b", "a\rb", "\ufffe")])
    assert await names(storage, prefix) == []


async def test_a_store_that_lists_by_directory_is_told(seaweedfs: SeaweedFS, prefix: str) -> None:
    """Callers rely on the order, so a wrong one is not ignored."""
    storage = s3(seaweedfs, **{"sort-listings": "false"})
    for name in ("a/x", "a-b"):
        await write(storage, f"{prefix}/{name}", b"")
    with pytest.raises(StorageError, match="lists") as caught:
        await names(storage, prefix)
    assert "sort-listings" in caught.value.hint
    await storage.aclose()


def _make(server: S3Server) -> str:
    return (
        f"minflinkd_s3.S3Storage(minflinkd_s3.S3Options(endpoint_url={server.endpoint!r}, region={REGION!r},"
        f" access_key={ACCESS_KEY!r}, secret_key={SECRET_KEY!r}))"
    )


@pytest.mark.slow
def test_a_process_killed_while_writing_leaves_nothing_visible(seaweedfs: SeaweedFS, prefix: str) -> None:
    """The process gets kill -9 in the middle of a write (S5)."""
    with start_writer("minflinkd_s3", _make(seaweedfs), f"{prefix}/x") as writer:
        writer.kill()
    out = run_client("minflinkd_s3", _make(seaweedfs), f"print([e async for e in storage.list({prefix!r})])")
    assert out == "[]\n"


@pytest.mark.slow
def test_a_closed_storage_leaves_nothing_open(seaweedfs: SeaweedFS, prefix: str) -> None:
    work = (
        f"await storage.put({prefix + '/x'!r}, bytes(1 << 22)); pieces = storage.open_read({prefix + '/x'!r});"
        "await anext(pieces); await pieces.aclose(); await storage.aclose();"
        f"print((await storage.stat({prefix + '/x'!r})).size); await storage.aclose()"
    )
    assert run_client("minflinkd_s3", _make(seaweedfs), work) == f"{1 << 22}\n"


# --- what S3 says, as one of the few kinds (S4) ---


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("NoSuchKey", 404, ObjectNotFound),
        ("404", 404, ObjectNotFound),
        ("NoSuchUpload", 404, UploadGone),
        ("NoSuchBucket", 404, StorageError),
        ("PreconditionFailed", 412, ObjectExists),
        ("412", 412, ObjectExists),
        ("AccessDenied", 403, PermissionDenied),
        ("403", 403, PermissionDenied),
        ("SomethingNew", 403, PermissionDenied),
        ("ExpiredToken", 400, PermissionDenied),
        ("SignatureDoesNotMatch", 403, PermissionDenied),
        ("RequestTimeTooSkewed", 403, PermissionDenied),
        ("KeyTooLongError", 400, InvalidPath),
        ("SlowDown", 503, StorageUnavailable),
        ("SomethingNew", 503, StorageUnavailable),
        ("TooManyRequests", 429, StorageUnavailable),
        ("RequestTimeout", 400, StorageUnavailable),
        ("InternalError", 200, StorageUnavailable),  # in the body of an answer that began well
        ("BadDigest", 400, StorageUnavailable),
        ("QuotaExceeded", 403, StorageFull),
        ("XMinioStorageFull", 507, StorageFull),
        ("NotImplemented", 501, StorageError),
        ("SomethingNew", 400, StorageError),
    ],
)
def test_what_s3_says_is_of_few_kinds(code: str, status: int, kind: type[StorageError]) -> None:
    answer = {"Error": {"Code": code, "Message": "why"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    error = of_answer("bucket/key", answer)
    assert type(error) is kind or (kind is ObjectNotFound and isinstance(error, kind))
    assert error.message == f"s3: bucket/key: {code}: why"
