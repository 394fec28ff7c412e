"""The S3 backend against two servers, and tests of its own."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web

from minflinkd.storage.conformance import (
    CLOCKS,
    ODD_NAMES,
    ServerLossConformance,
    StorageConformance,
    names,
    read,
    write,
)
from minflinkd.storage.interface import (
    InvalidPath,
    ObjectExists,
    ObjectNotFound,
    PermissionDenied,
    StorageError,
    StorageFull,
    StorageUnavailable,
)
from minflinkd.storage.options import CommonOptions, InvalidStorageOption, parse
from minflinkd.storage.registry import Storages
from minflinkd.storage.resilient import ResilientStorage
from minflinkd_s3 import S3Options, S3Storage
from minflinkd_s3.errors import UploadGone, of_answer
from tests.servers.gateway import Gateway
from tests.servers.s3 import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, Moto, S3Server, SeaweedFS
from tests.storage.processes import run_client, start_writer

MIB = 1 << 20
PATIENT = CommonOptions(pause=0.01, longest_pause=0.02)


def options(server: S3Server, **other: str) -> dict[str, str]:
    """Return options of the backend with small parts."""
    return server.options | {"part-size": "5 MiB", "copy-part-size": "5 MiB"} | other


def s3(server: S3Server, endpoint: str = "", **other: str) -> S3Storage:
    given = options(server, **other)
    return S3Storage(parse(S3Options, given | {"endpoint-url": endpoint or server.endpoint}, "s3"))


@pytest.fixture
def prefix() -> str:
    return f"{BUCKET}/{secrets.token_hex(8)}"


@pytest_asyncio.fixture
async def storage(moto: Moto) -> AsyncIterator[S3Storage]:
    storage = s3(moto)
    yield storage
    await storage.aclose()


@pytest_asyncio.fixture
async def gateway(moto: Moto) -> AsyncIterator[Gateway]:
    async with Gateway(moto.endpoint) as gateway:
        yield gateway


@pytest_asyncio.fixture
async def behind(moto: Moto, gateway: Gateway) -> AsyncIterator[S3Storage]:
    """The storage behind the gateway, without retries."""
    storage = s3(moto, gateway.endpoint)
    yield storage
    await storage.aclose()


@pytest_asyncio.fixture
async def patient(moto: Moto, gateway: Gateway) -> AsyncIterator[ResilientStorage]:
    """The storage behind the gateway, as the registry makes it."""
    storage = ResilientStorage(s3(moto, gateway.endpoint), PATIENT)
    yield storage
    await storage.aclose()


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


# --- answers that are lost, and refusals that pass ---


def is_put(request: web.Request) -> bool:
    return request.method == "PUT"


def is_finish(request: web.Request) -> bool:
    return request.method == "POST" and "uploadId=" in request.query_string


def error(code: str) -> str:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>as the test wants</Message></Error>"


async def test_a_store_that_is_too_busy_is_asked_again(
    patient: ResilientStorage, gateway: Gateway, prefix: str
) -> None:
    """S4"""
    slow = gateway.fault(is_put, times=2, status=503, body=error("SlowDown"))
    await write(patient, f"{prefix}/x", b"1")
    assert slow.met == 2
    assert await read(patient, f"{prefix}/x") == b"1"


async def test_a_refusal_is_asked_once(patient: ResilientStorage, gateway: Gateway, prefix: str) -> None:
    """S4"""
    denied = gateway.fault(is_put, times=9, status=403, body=error("AccessDenied"))
    with pytest.raises(PermissionDenied, match=f"{prefix}/x: AccessDenied"):
        await write(patient, f"{prefix}/x", b"1")
    assert denied.met == 1


async def test_the_sdk_itself_does_not_repeat(behind: S3Storage, gateway: Gateway, prefix: str) -> None:
    fault = gateway.fault(lambda request: True, times=9, status=500, body=error("InternalError"))
    with pytest.raises(StorageUnavailable, match="InternalError"):
        await read(behind, f"{prefix}/x")
    assert fault.met == 1


async def test_a_write_is_one_request(patient: ResilientStorage, gateway: Gateway, prefix: str) -> None:
    """No later question, such as for its time, can turn it into a failure (S4)."""
    refused = gateway.fault(lambda request: request.method == "HEAD", times=9, status=403)
    entry = await write(patient, f"{prefix}/x", b"1")
    assert [request.partition(" ")[0] for request in gateway.requests] == ["PUT"]
    refused.times = 0
    found = await patient.stat(f"{prefix}/x")
    assert (entry.size, entry.version) == (found.size, found.version)
    assert abs(entry.modified_ms - found.modified_ms) <= CLOCKS


async def test_a_finish_whose_answer_was_lost_is_repeated(
    patient: ResilientStorage, gateway: Gateway, prefix: str
) -> None:
    """Every request is safe to repeat (S4)."""
    lost = gateway.fault(is_finish, lost=True)
    data = secrets.token_bytes(11 * MIB)
    entry = await write(patient, f"{prefix}/x", data)
    assert (lost.met, entry.size) == (1, len(data))
    found = await patient.stat(f"{prefix}/x")
    assert (entry.size, entry.version) == (found.size, found.version)
    assert await read(patient, f"{prefix}/x") == data


async def test_a_finish_is_not_taken_for_another_writers(behind: S3Storage, gateway: Gateway, prefix: str) -> None:
    """moto answers 500 where S3 says NoSuchUpload, so the gateway gives that answer."""
    path = f"{prefix}/x"
    gateway.fault(is_finish, status=404, body=error("NoSuchUpload"))
    mine, other = await behind.start_parts(path), await behind.start_parts(path)
    part = await behind.put_part(path, mine, 1, 0, b"1234", last=True)
    with pytest.raises(StorageUnavailable, match="did not make the object") as caught:
        await behind.finish_parts(path, mine, [part])
    assert caught.value.settled
    await behind.finish_parts(path, other, [await behind.put_part(path, other, 1, 0, b"1234", last=True)])
    gateway.fault(is_finish, status=404, body=error("NoSuchUpload"))
    with pytest.raises(StorageError, match="did not make the object"):
        await behind.finish_parts(path, mine, [part])
    gateway.fault(is_finish, status=404, body=error("NoSuchUpload"))
    assert await behind.finish_parts(path, other, [part]) == await behind.stat(path)


async def test_a_part_of_an_upload_that_is_gone_is_asked_once_and_may_be_written_again(
    patient: ResilientStorage, gateway: Gateway, prefix: str
) -> None:
    """The error is transient, and not that of a missing object (S4)."""
    gone = gateway.fault(lambda request: "partNumber=" in request.query_string, status=404, body=error("NoSuchUpload"))
    with pytest.raises(StorageUnavailable, match="NoSuchUpload"):
        await write(patient, f"{prefix}/x", bytes(11 * MIB))
    assert gone.met == 1
    await write(patient, f"{prefix}/x", bytes(11 * MIB))


async def test_a_winner_learns_of_it_even_if_the_answer_was_lost(
    patient: ResilientStorage, gateway: Gateway, prefix: str
) -> None:
    """The HTTP client repeats the PUT by itself, and is refused because of the first one."""
    lost = gateway.fault(is_put, lost=True)
    await patient.create_exclusive(f"{prefix}/leader", b"mine")
    assert lost.met == 1
    with pytest.raises(ObjectExists):
        await patient.create_exclusive(f"{prefix}/leader", b"mine")  # not the same call


async def test_writers_that_met_try_again(patient: ResilientStorage, gateway: Gateway, prefix: str) -> None:
    """S3 answers 409 while neither has won yet."""
    met = gateway.fault(is_put, status=409, body=error("ConditionalRequestConflict"))
    await patient.create_exclusive(f"{prefix}/leader", b"mine")
    assert met.met == 1
    assert await read(patient, f"{prefix}/leader") == b"mine"


async def test_a_writer_that_meets_the_winner_has_lost(behind: S3Storage, gateway: Gateway, prefix: str) -> None:
    await write(behind, f"{prefix}/leader", b"first")
    body = error("ConditionalRequestConflict")
    gateway.fault(is_put, status=409, body=body)
    with pytest.raises(ObjectExists):
        await behind.create_exclusive(f"{prefix}/leader", b"second")


async def test_a_rename_is_repeated_where_its_deletion_was_lost(
    patient: ResilientStorage, gateway: Gateway, prefix: str
) -> None:
    await write(patient, f"{prefix}/a", b"1")
    lost = gateway.fault(lambda request: request.method == "DELETE", lost=True)
    await patient.rename(f"{prefix}/a", f"{prefix}/b")
    assert lost.met == 1
    assert await names(patient, prefix) == ["b"]


async def test_a_page_of_a_listing_is_repeated_alone(
    patient: ResilientStorage, gateway: Gateway, storage: S3Storage, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minflinkd_s3.storage._PAGE", 10)
    await asyncio.gather(*(storage.put(f"{prefix}/{number}", b"") for number in range(10, 25)))
    gateway.fault(lambda request: "continuation-token" in request.query_string, status=503, body=error("SlowDown"))
    assert await names(patient, prefix) == [f"{number}" for number in range(10, 25)]
    assert len([request for request in gateway.requests if "list-type=2" in request]) == 3


async def test_a_key_that_is_not_deleted_is_said(behind: S3Storage, gateway: Gateway, prefix: str) -> None:
    """DeleteObjects answers 200 and lists what it refused."""
    key = f"{prefix.removeprefix(BUCKET + '/')}/b"
    body = f"<DeleteResult><Error><Key>{key}</Key><Code>AccessDenied</Code><Message>no</Message></Error></DeleteResult>"
    gateway.fault(lambda request: request.method == "POST", status=200, body=body)
    with pytest.raises(PermissionDenied, match=f"{prefix}/b: AccessDenied"):
        await behind.delete([f"{prefix}/a", f"{prefix}/b"])


async def test_each_request_of_a_deletion_is_repeated_alone(
    patient: ResilientStorage, gateway: Gateway, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minflinkd_s3.storage._BATCH", 10)
    monkeypatch.setattr("minflinkd_s3.storage._BATCHES_AT_ONCE", 1)
    busy = gateway.fault(lambda _: len(gateway.requests) == 2, status=503, body=error("SlowDown"))
    await patient.delete([f"{prefix}/{number}" for number in range(30)])
    assert (busy.met, len(gateway.requests)) == (1, 4)


async def test_many_are_deleted_a_thousand_at_a_time(behind: S3Storage, gateway: Gateway, prefix: str) -> None:
    await behind.put(f"{prefix}/0001", b"")
    await behind.put(f"{prefix}/2400", b"")
    await behind.delete([f"{prefix}/{number:04d}" for number in range(2500)])
    assert await names(behind, prefix) == []
    assert len([request for request in gateway.requests if request.startswith("POST")]) == 3


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


# --- objects in parts ---


@pytest.mark.parametrize("server", ["moto", "seaweedfs"])
def test_a_large_object_is_copied_in_parts(request: pytest.FixtureRequest, server: str, prefix: str) -> None:
    """Each part has the time of one request."""
    data = secrets.token_bytes(11 * MIB + 3)

    async def copy(storage: S3Storage) -> None:
        await write(storage, f"{prefix}/ä b", data)
        entry = await storage.copy(f"{prefix}/ä b", f"{prefix}/copy")
        found = await storage.stat(f"{prefix}/copy")
        assert (entry.size, entry.version) == (len(data), found.version)
        assert await read(storage, f"{prefix}/copy") == data
        with pytest.raises(ObjectNotFound):
            await storage.copy(f"{prefix}/none", f"{prefix}/copy")
        await storage.aclose()

    asyncio.run(copy(s3(request.getfixturevalue(server))))


async def test_a_copy_in_parts_that_fails_leaves_no_upload(behind: S3Storage, gateway: Gateway, prefix: str) -> None:
    await write(behind, f"{prefix}/x", bytes(11 * MIB))
    behind.parts_at_once = 1  # moto may fail to end an upload that still gets a part
    gateway.fault(lambda request: "partNumber=2" in request.query_string, status=403, body=error("AccessDenied"))
    with pytest.raises(PermissionDenied):
        await behind.copy(f"{prefix}/x", f"{prefix}/y")
    assert await names(behind, prefix) == ["x"]
    assert await _uploads(behind, prefix) == []


async def test_two_contents_are_not_mixed_in_a_copy(behind: S3Storage, gateway: Gateway, prefix: str) -> None:
    await write(behind, f"{prefix}/x", bytes(11 * MIB))
    behind.parts_at_once = 1  # moto may fail to end an upload that still gets a part
    body = error("PreconditionFailed")
    changed = gateway.fault(lambda request: "x-amz-copy-source-if-match" in request.headers, status=412, body=body)
    with pytest.raises(StorageUnavailable, match="was replaced"):
        await behind.copy(f"{prefix}/x", f"{prefix}/y")
    assert changed.met == 1
    assert await _uploads(behind, prefix) == []


async def test_a_write_that_is_given_up_leaves_no_upload(storage: S3Storage, prefix: str) -> None:
    writer = await storage.create(f"{prefix}/x")
    await writer.append(bytes(16 * MIB))
    assert await _uploads(storage, prefix) == [f"{prefix}/x"]
    await writer.abort()
    assert await _uploads(storage, prefix) == []


async def test_parts_beyond_the_last_possible_one_are_refused(storage: S3Storage, prefix: str) -> None:
    with pytest.raises(StorageError, match="10000 parts") as caught:
        await storage.put_part(f"{prefix}/x", "mark id", 10_001, 0, b"1", last=True)
    assert "part-size" in caught.value.hint


async def _uploads(storage: S3Storage, prefix: str) -> list[str]:
    bucket, _, key = prefix.partition("/")
    answer = await storage._call("list_multipart_uploads", prefix, Bucket=bucket, Prefix=key)
    return [f"{bucket}/{upload['Key']}" for upload in answer.get("Uploads", ())]


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
