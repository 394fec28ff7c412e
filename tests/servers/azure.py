"""Azurite: Azure's blob storage on a disk, with leases and conditions."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence

from tests.servers.install import AZURITE
from tests.servers.process import HOST, Server

CONTAINER = "test"
ACCOUNT = "devstoreaccount1"  # every emulator has this account with this key
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class Azurite(Server):
    """An azurite with the container `test`."""

    name = "azurite"
    container = CONTAINER
    account = ACCOUNT
    key = KEY

    @classmethod
    def missing(cls) -> str | None:
        if shutil.which("node") is None:
            return "azurite needs node: install nodejs and npm, then `make servers`"
        return None if AZURITE.is_file() else "azurite is not installed: `make servers`"

    def command(self, ports: Mapping[str, int]) -> Sequence[str]:
        return (
            *("node", str(AZURITE), "--blobHost", HOST, "--blobPort", str(ports["main"])),
            *("--silent", "--skipApiVersionCheck", "--disableTelemetry", "-l", str(self.directory / "data")),
        )

    @property
    def connection_string(self) -> str:
        return (
            f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
            f"BlobEndpoint={self.endpoint}/{ACCOUNT};"
        )

    async def answers(self) -> bool:
        _, writer = await asyncio.open_connection(HOST, self.port)
        writer.close()
        await writer.wait_closed()
        return True

    async def prepare(self) -> None:
        from azure.core.exceptions import ResourceExistsError
        from azure.storage.blob.aio import BlobServiceClient

        async with BlobServiceClient.from_connection_string(self.connection_string) as client:
            try:
                await client.create_container(CONTAINER)
            except ResourceExistsError:
                return  # it existed before the restart
