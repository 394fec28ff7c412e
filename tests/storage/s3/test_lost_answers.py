"""Answers of S3 that are lost, and refusals that pass."""

from __future__ import annotations

import asyncio
import secrets

import pytest
from aiohttp import web

from minflinkd.storage.conformance import CLOCKS, names, read, write
from minflinkd.storage.interface import ObjectExists, PermissionDenied, StorageError, StorageUnavailable
from minflinkd.storage.resilient import ResilientStorage
from minflinkd_s3 import S3Storage
from tests.servers.gateway import Gateway
from tests.servers.s3 import BUCKET
from tests.storage.s3.conftest import MIB, error


def is_put(request: web.Request) -> bool:
    return request.method == "PUT"


def is_finish(request: web.Request) -> bool:
    return request.method == "POST" and "uploadId=" in request.query_string


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
