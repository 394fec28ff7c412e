"""The backend for GCS as its tests make it, with fake-gcs-server as its server."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from minflinkd.runtime.units import MemorySize
from minflinkd.storage.options import CommonOptions
from minflinkd_gcs import GcsOptions, GcsStorage
from tests.servers.gcs import FakeGcs

MIB = 1 << 20
PATIENCE = CommonOptions(pause=0.01, longest_pause=0.02)


def gcs(endpoint: str, **options: object) -> GcsStorage:
    given: dict[str, object] = {"endpoint_url": endpoint, "token": "anon", "part_size": MemorySize(MIB), **options}
    return GcsStorage(GcsOptions(**given))


@pytest.fixture
def prefix(fake_gcs: FakeGcs) -> str:
    return f"{fake_gcs.bucket}/{secrets.token_hex(4)}"


@pytest_asyncio.fixture
async def storage(fake_gcs: FakeGcs) -> AsyncIterator[GcsStorage]:
    storage = gcs(fake_gcs.endpoint)
    yield storage
    await storage.aclose()
