"""Copies of blobs by Azure itself: by one request, or in blocks."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping

import aiohttp
import pytest
from aiohttp import web
from azure.core.credentials import AccessToken
from azure.storage.blob.aio import BlobServiceClient
from yarl import URL

from minflinkd.storage.conformance import names, read, write
from minflinkd.storage.interface import PermissionDenied, StorageUnavailable
from minflinkd_azure import AzureOptions, AzureStorage
from minflinkd_azure.accounts import Accounts
from tests.servers.azure import Azurite
from tests.servers.gateway import Gateway
from tests.storage.azure.conftest import MIB, azure


class CopiedBlocks:
    """Put Block From URL with range and condition of the source, which azurite does not have."""

    def __init__(self, server: Azurite) -> None:
        self._server = server
        self.ranges: list[str] = []
        self.sources: list[str] = []

    @staticmethod
    def chosen(request: web.Request) -> bool:
        return request.query.get("comp") == "block" and "x-ms-copy-source" in request.headers

    async def serve(self, request: web.Request) -> web.Response:
        source, span = request.headers["x-ms-copy-source"], request.headers["x-ms-source-range"]
        container, _, name = request.path.removeprefix(f"/{self._server.account}/").partition("/")
        self.ranges.append(span)
        self.sources.append(source)
        wanted = {"Range": span, "If-Match": request.headers["x-ms-source-if-match"]}
        behind = self._server.endpoint + URL(source).raw_path_qs
        async with (
            aiohttp.ClientSession() as session,
            session.get(URL(behind, encoded=True), headers=wanted) as answer,
        ):
            if answer.status != 206:
                return web.Response(status=answer.status)
            data = await answer.read()
        async with BlobServiceClient.from_connection_string(self._server.connection_string) as client:
            block = base64.b64decode(request.query["blockid"]).decode()
            await client.get_blob_client(container, name).stage_block(block, data)
        return web.Response(status=201)


async def test_a_copy_appears_whole_by_one_request_or_not_at_all(
    behind: AzureStorage, wire: Gateway, prefix: str
) -> None:
    """No copy goes on after the call returns: each is requested as synchronous, from one content of the source."""
    await write(behind, f"{prefix}/x", b"1")
    asked = list[Mapping[str, str]]()

    async def refuse(request: web.Request) -> web.Response:
        asked.append(request.headers)
        return web.Response(status=412, headers={"x-ms-error-code": "SourceConditionNotMet"})

    wire.fault(lambda request: "x-ms-copy-source" in request.headers, serve=refuse)
    with pytest.raises(StorageUnavailable, match="was replaced while it was copied"):
        await behind.copy(f"{prefix}/x", f"{prefix}/y")
    assert asked[0]["x-ms-requires-sync"] == "True"
    assert asked[0]["x-ms-source-if-match"].strip('"') == (await behind.stat(f"{prefix}/x")).version
    assert "sig=" in asked[0]["x-ms-copy-source"]
    assert await names(behind, prefix) == ["x"]


async def test_a_long_blob_is_copied_in_blocks_and_appears_with_the_last_request(
    azurite: Azurite, behind: AzureStorage, wire: Gateway, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minflinkd_azure._BLOCK_OF_COPY", MIB)
    data, blocks = secrets.token_bytes(2 * MIB + 7), CopiedBlocks(azurite)
    await write(behind, f"{prefix}/ä b", data)
    await write(behind, f"{prefix}/y", b"old")
    wire.fault(CopiedBlocks.chosen, times=99, serve=blocks.serve)
    lists = wire.fault(lambda request: request.query.get("comp") == "blocklist", status=403)
    with pytest.raises(PermissionDenied):
        await behind.copy(f"{prefix}/ä b", f"{prefix}/y")
    assert (lists.met, await read(behind, f"{prefix}/y")) == (1, b"old")
    entry = await behind.copy(f"{prefix}/ä b", f"{prefix}/y")
    assert entry == await behind.stat(f"{prefix}/y")
    assert await read(behind, f"{prefix}/y") == data
    expected = [f"bytes=0-{MIB - 1}", f"bytes={MIB}-{2 * MIB - 1}", f"bytes={2 * MIB}-{2 * MIB + 6}"]
    assert sorted(set(blocks.ranges)) == sorted(expected)
    assert all("sig=" in source for source in blocks.sources)  # the service has no other right to read it


async def test_a_copy_in_blocks_is_of_one_content(
    azurite: Azurite, behind: AzureStorage, wire: Gateway, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minflinkd_azure._BLOCK_OF_COPY", MIB)
    monkeypatch.setattr("minflinkd_azure._COPIES_AT_ONCE", 1)
    await write(behind, f"{prefix}/x", b"1" * 2 * MIB)
    blocks, storage = CopiedBlocks(azurite), azure(azurite)

    async def serve(request: web.Request) -> web.Response:
        answer = await blocks.serve(request)
        if len(blocks.ranges) == 1:
            await write(storage, f"{prefix}/x", b"2" * 2 * MIB)
        return answer

    wire.fault(CopiedBlocks.chosen, times=99, serve=serve)
    with pytest.raises(StorageUnavailable, match="was replaced while it was copied"):
        await behind.copy(f"{prefix}/x", f"{prefix}/y")
    assert await names(behind, prefix) == ["x"]
    await storage.aclose()


async def test_an_identity_shows_its_token_for_the_source_of_a_copy() -> None:
    """The service reads a blob that is not public with the right that the request contains."""
    accounts = Accounts(AzureOptions(account_name="mine").completed())
    asked = list[str]()

    class Identity:
        async def get_token(self, *scopes: str, **rest: object) -> AccessToken:
            asked.extend(scopes)
            return AccessToken("very-secret", 0)

    blob = accounts.blob("c/x")
    blob.credential = Identity()
    accounts.blob = lambda path: blob  # type: ignore[method-assign]  # the identity's account in place of the chain's
    assert await accounts.source("c/x") == (blob.url, {"source_authorization": "Bearer very-secret"})
    assert asked == ["https://storage.azure.com/.default"]
    await accounts.aclose()
