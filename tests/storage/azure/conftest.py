"""The backend for Azure as its tests make it, with azurite as its server."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from minflinkd.runtime.units import MemorySize
from minflinkd.storage.options import CommonOptions
from minflinkd_azure import AzureOptions, AzureStorage
from tests.servers.azure import Azurite
from tests.servers.gateway import Gateway

MIB = 1 << 20
KIB = 1 << 10
PATIENCE = CommonOptions(pause=0.01, longest_pause=0.02)


@pytest.fixture(autouse=True)
def _no_credentials_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCOUNT_NAME", "ACCOUNT_KEY", "CONNECTION_STRING", "SAS_TOKEN", "CLIENT_SECRET"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)


@pytest.fixture
def prefix(azurite: Azurite) -> str:
    return f"{azurite.container}/{secrets.token_hex(4)}"


@pytest_asyncio.fixture
async def storage(azurite: Azurite) -> AsyncIterator[AzureStorage]:
    storage = azure(azurite)
    yield storage
    await storage.aclose()


def azure(server: Azurite, part_size: int = MIB) -> AzureStorage:
    options = AzureOptions(connection_string=server.connection_string, part_size=MemorySize(part_size))
    return AzureStorage(options)


@pytest_asyncio.fixture
async def wire(azurite: Azurite) -> AsyncIterator[Gateway]:
    async with Gateway(azurite.endpoint) as wire:
        yield wire


@pytest_asyncio.fixture
async def behind(azurite: Azurite, wire: Gateway) -> AsyncIterator[AzureStorage]:
    """The storage behind the gateway, without retries."""
    here = azurite.connection_string.replace(azurite.endpoint, wire.endpoint)
    storage = AzureStorage(AzureOptions(connection_string=here, part_size=MemorySize(MIB)))
    yield storage
    await storage.aclose()
