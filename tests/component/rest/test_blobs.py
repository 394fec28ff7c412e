"""`GET /blobs`, and what the metrics say about blobs, with a real BlobServer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from minflinkd.blob.access import user_token
from minflinkd.blob.client import BlobClient
from minflinkd.blob.keys import BlobKind
from minflinkd.blob.server import BlobOptions, BlobServer
from minflinkd.metrics.registry import Metrics
from minflinkd.rest.backend import Backend
from minflinkd.rest.cluster import About
from minflinkd.rest.identity.access import Access
from minflinkd.rest.server import Entrance, Listening, RestServer
from minflinkd.rpc.local import LocalNetwork
from minflinkd.runtime.ids import JobId
from tests.component.rest.described import described
from tests.component.rest.test_metrics_route import scrape

Http = aiohttp.ClientSession
TOKEN = "token"
JOB, OTHER = JobId("a" * 32), JobId("b" * 32)


@pytest.fixture
async def blobs(tmp_path: Path) -> AsyncIterator[BlobServer]:
    async with BlobServer(options=BlobOptions(directory=tmp_path / "blobs"), token=TOKEN) as blobs:
        yield blobs


@pytest.fixture
async def client(blobs: BlobServer) -> AsyncIterator[BlobClient]:
    async with BlobClient(blobs.url, token=TOKEN) as client:
        yield client


@pytest.fixture
async def http(blobs: BlobServer, network: LocalNetwork) -> AsyncIterator[Http]:
    server = RestServer(
        Backend(network),
        listening=Listening(host="127.0.0.1", port=0),
        entrance=Entrance(access=Access.open_to_all()),
        about=About(version="0.1.0", config_items=list, blob_url=lambda: blobs.url),
        metrics=Metrics(version="0.1.0"),
        blobs=blobs,
    )
    async with server, aiohttp.ClientSession(server.url, trace_configs=[described(server.routes)]) as session:
        yield session


async def get(http: Http, path: str) -> Any:
    async with http.get(path) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def test_whoever_may_use_the_endpoint_is_told_how_to_use_the_blob_server(http: Http, blobs: BlobServer) -> None:
    """E40: with a token of their own, so that their uploads count for them (E46)."""
    token = user_token(TOKEN, "anonymous")
    assert await get(http, "/v1/blobs/access") == {"url": blobs.url, "token": token}
    async with BlobClient(blobs.url, token=token) as client:
        await client.put_bytes(None, b"mine", BlobKind.TRANSIENT)
    assert [(upload.user, upload.size) for upload in blobs.uploads()] == [("anonymous", 4)]


async def test_blobs_are_listed_with_who_needs_them(http: Http, client: BlobClient, blobs: BlobServer) -> None:
    """E1, B17"""
    held = await client.put_bytes(JOB, b"held", BlobKind.PERMANENT)
    free = await client.put_bytes(None, b"free", BlobKind.TRANSIENT)
    await blobs.hold(JOB, [held])
    found = await get(http, "/v1/blobs")
    created = [blob.pop("created") for blob in found["blobs"]]
    assert min(created) > 1_500_000_000_000
    assert found == {
        "blobs": [
            {"key": str(held), "job": JOB, "kind": "permanent", "size": 4, "references": 1, "state": "referenced"},
            {"key": str(free), "job": "none", "kind": "transient", "size": 4, "references": 0, "state": "staged"},
        ],
        "offset": 0,
        "truncated": False,
        "totals": {"blobs": 2, "size": 8, "states": {"referenced": 1, "staged": 1}},
        "jobs": [
            {"job": JOB, "blobs": 1, "size": 4, "states": {"referenced": 1}},
            {"job": "none", "blobs": 1, "size": 4, "states": {"staged": 1}},
        ],
    }


async def test_the_list_comes_in_parts_and_by_job(http: Http, client: BlobClient) -> None:
    keys = sorted([str(await client.put_bytes(JOB, bytes([n]), BlobKind.PERMANENT)) for n in range(3)])
    await client.put_bytes(OTHER, b"other", BlobKind.PERMANENT)
    first, rest = [await get(http, f"/blobs?job={JOB}&limit=2&offset={offset}") for offset in (0, 2)]
    assert [blob["key"] for blob in first["blobs"] + rest["blobs"]] == keys
    assert [part["truncated"] for part in (first, rest)] == [True, False]
    assert first["totals"] == rest["totals"] == {"blobs": 3, "size": 3, "states": {"staged": 3}}
    assert (await get(http, "/blobs?job=none"))["totals"]["blobs"] == 0


@pytest.mark.parametrize("query", ["job=../etc", "job=", "limit=-1", "offset=one", "limit=" + "9" * 30])
async def test_what_does_not_parse_is_refused(http: Http, query: str) -> None:
    """B41, E3"""
    async with http.get(f"/blobs?{query}") as response:
        assert response.status == 400
        assert response.headers["Minflinkd-Error-Code"] in ("invalid-id", "invalid-request")


async def test_a_scrape_counts_blobs_and_transfers(http: Http, client: BlobClient, tmp_path: Path) -> None:
    """E30"""
    key = await client.put_bytes(JOB, b"four", BlobKind.PERMANENT)
    await client.get_bytes(JOB, key)
    found = await scrape(http)
    assert found["minflinkd_blobs", ("staged",)] == 1
    assert found["minflinkd_blob_stored_bytes", ("staged",)] == 4
    assert found["minflinkd_blob_bytes_total", ("up",)] == found["minflinkd_blob_bytes_total", ("down",)] == 4
    assert found["minflinkd_blob_transfers", ("running",)] == found["minflinkd_blob_transfers", ("waiting",)] == 0
    assert found["minflinkd_blobs_deleted_total", ()] == found["minflinkd_blobs_corrupt_total", ()] == 0
