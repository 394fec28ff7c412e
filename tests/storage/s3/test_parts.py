"""Objects of S3 that are written and copied in parts."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from minflinkd.storage.conformance import names, read, write
from minflinkd.storage.interface import ObjectNotFound, PermissionDenied, StorageError, StorageUnavailable
from minflinkd_s3 import S3Storage
from tests.servers.gateway import Gateway
from tests.storage.s3.conftest import MIB, error, s3


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
