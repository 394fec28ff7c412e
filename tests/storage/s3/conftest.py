"""The backend for S3 as its tests make it, with moto or SeaweedFS as its server."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from minflinkd.storage.options import CommonOptions, parse
from minflinkd.storage.resilient import ResilientStorage
from minflinkd_s3 import S3Options, S3Storage
from tests.servers.gateway import Gateway
from tests.servers.s3 import BUCKET, Moto, S3Server

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


def error(code: str) -> str:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>as the test wants</Message></Error>"
