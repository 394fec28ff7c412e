"""The Azure backend against azurite."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from typing import TypeVar

import pytest
import pytest_asyncio
from azure.core.exceptions import ResourceNotFoundError
from azure.storage.blob.aio import BlobServiceClient

from minflinkd.runtime.units import MemorySize
from minflinkd.storage.conformance import ODD_NAMES, ServerLossConformance, StorageConformance, names, read, write
from minflinkd.storage.interface import InvalidPath, ObjectNotFound, Storage, StorageUnavailable, Writer
from minflinkd.storage.resilient import ResilientStorage
from minflinkd_azure import AzureOptions, AzureStorage
from tests.servers.azure import Azurite
from tests.servers.gateway import Gateway
from tests.storage.azure.conftest import KIB, MIB, PATIENCE, azure
from tests.storage.processes import run_client, start_writer
from tests.waiting import until

T = TypeVar("T")


class SavedAzurite:
    """Azurite saves its state to disk every five seconds. Killed just after that, it is as durable as Azure."""

    def __init__(self, server: Azurite) -> None:
        self._server = server
        self.restart = server.restart

    async def kill(self) -> None:
        asked, data = time.time(), self._server.directory / "data"
        files = [data / f"__azurite_db_{name}__.json" for name in ("blob", "blob_extent")]

        async def saved() -> bool:
            return all(file.is_file() and file.stat().st_mtime > asked for file in files)

        await until(saved, "azurite has saved what it knows")
        await self._server.kill()


@pytest.mark.slow
class TestAzureWhoseServerDies(ServerLossConformance):
    """S5"""

    @pytest_asyncio.fixture
    async def storage(self, own_azurite: Azurite) -> AsyncIterator[Storage]:
        storage = azure(own_azurite)
        yield storage
        await storage.aclose()

    @pytest.fixture
    def server(self, own_azurite: Azurite) -> SavedAzurite:
        return SavedAzurite(own_azurite)


REFUSED = ("back\\slash", "dot.")  # the service takes them for other names


class TestAzureStorage(StorageConformance):
    entries = 250
    odd_names = [name for name in ODD_NAMES if name not in REFUSED]

    @pytest.fixture(autouse=True)
    def _small_pages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("minflinkd_azure._PAGE", 100)

    @pytest_asyncio.fixture
    async def storage(self, azurite: Azurite) -> AsyncIterator[Storage]:
        storage = azure(azurite)
        yield storage
        await storage.aclose()

    @pytest.fixture
    def nowhere(self) -> str:
        return "no-container/x"


async def test_a_long_blob_is_read_request_by_request(storage: AzureStorage, prefix: str) -> None:
    """The reader gets it piece by piece: neither the whole blob nor the whole of one request."""
    data = secrets.token_bytes(9 * MIB + 5)
    await write(storage, f"{prefix}/x", data)
    pieces = [piece async for piece in storage.open_read(f"{prefix}/x", 3, 9 * MIB)]
    assert b"".join(pieces) == data[3 : 9 * MIB + 3]
    assert max(map(len, pieces)) <= MIB


async def test_a_blob_that_is_replaced_while_it_is_read_is_not_mixed(storage: AzureStorage, prefix: str) -> None:
    await write(storage, f"{prefix}/x", b"1" * 5 * MIB)
    pieces = storage.open_read(f"{prefix}/x")
    assert set(await anext(pieces)) == {ord("1")}
    await write(storage, f"{prefix}/x", b"2" * 5 * MIB)
    with pytest.raises(StorageUnavailable, match="was replaced while it was read"):
        assert b"2" not in b"".join([piece async for piece in pieces])


async def test_a_directory_is_no_blob(azurite: Azurite, storage: AzureStorage, prefix: str) -> None:
    """Accounts with directories show them like this, and Hadoop marks them like this elsewhere."""
    async with BlobServiceClient.from_connection_string(azurite.connection_string) as client:
        container = client.get_container_client(azurite.container)
        name = f"{prefix.partition('/')[2]}/d"
        await container.upload_blob(name, b"", metadata={"hdi_isfolder": "true"})
    await write(storage, f"{prefix}/d/x", b"1")
    assert await names(storage, prefix) == ["d/x"]
    with pytest.raises(ObjectNotFound, match="is a directory"):
        await storage.stat(f"{prefix}/d")
    with pytest.raises(ObjectNotFound):
        await read(storage, f"{prefix}/d")


async def test_the_blocks_of_an_aborted_writer_are_no_blob(
    azurite: Azurite, storage: AzureStorage, prefix: str
) -> None:
    """The blocks of an aborted writer cannot be deleted. Azure drops them after a week."""
    async with await storage.create(f"{prefix}/x") as writer:
        await writer.append(bytes(3 * MIB))
        await until_sent(azurite, f"{prefix}/x")
        await writer.abort()
    assert await names(storage, prefix) == []
    assert await uncommitted(azurite, f"{prefix}/x") > 0
    await write(storage, f"{prefix}/x", b"2" * 3 * MIB)
    assert await read(storage, f"{prefix}/x") == b"2" * 3 * MIB
    assert await uncommitted(azurite, f"{prefix}/x") == 0


async def uncommitted(server: Azurite, path: str) -> int:
    """Return the blocks that exist without a list that names them."""
    container, _, name = path.partition("/")
    async with BlobServiceClient.from_connection_string(server.connection_string) as client:
        try:
            _, blocks = await client.get_blob_client(container, name).get_block_list("uncommitted")
        except ResourceNotFoundError:
            return 0
        return len(blocks)


async def test_a_writer_whose_blocks_another_one_dropped_fails(
    azurite: Azurite, storage: AzureStorage, prefix: str
) -> None:
    """If two writers write one blob, their data is not mixed."""
    resilient = ResilientStorage(azure(azurite), PATIENCE)
    async with await resilient.create(f"{prefix}/x") as writer:
        await writer.append(b"1" * 3 * MIB)
        await until_sent(azurite, f"{prefix}/x")
        await write(storage, f"{prefix}/x", b"2" * 3 * MIB)
        with pytest.raises(StorageUnavailable, match="InvalidBlockList"):
            await writer.commit()
    assert await read(storage, f"{prefix}/x") == b"2" * 3 * MIB
    await resilient.aclose()


async def until_sent(server: Azurite, path: str) -> None:
    await until(lambda: uncommitted(server, path), "a block has come")


@pytest.mark.parametrize(
    "path",
    [
        "/x",
        "a@b.example.com/x",
        "test/a/../b",
        "test/a\0b",
        f"test/{'x' * 1025}",
        "test/..\\a",
        "test/a./b",
        *(f"test/{name}" for name in REFUSED),
        "test/\ud800",
    ],
)
async def test_a_name_that_no_blob_can_have_is_refused(storage: AzureStorage, path: str) -> None:
    with pytest.raises(InvalidPath):
        await write(storage, path, b"")
    with pytest.raises(InvalidPath):
        await storage.stat(path)
    with pytest.raises(InvalidPath):
        await names(storage, path)


async def test_a_page_of_a_listing_is_repeated_alone(
    azurite: Azurite, storage: AzureStorage, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minflinkd_azure._PAGE", 10)
    made = [f"{number}" for number in range(10, 35)]
    for name in made:
        await storage.put(f"{prefix}/{name}", b"")
    async with Gateway(azurite.endpoint) as wire:
        here = azurite.connection_string.replace(azurite.endpoint, wire.endpoint)
        resilient = ResilientStorage(AzureStorage(AzureOptions(connection_string=here)), PATIENCE)
        wire.fault(lambda request: "marker=" in request.query_string, status=503)
        assert await names(resilient, prefix) == made
        assert len([request for request in wire.requests if "comp=list" in request]) == 4
        await resilient.aclose()


async def test_whatever_is_listed_can_be_deleted(azurite: Azurite, storage: AzureStorage, prefix: str) -> None:
    """Blobs of other programs can be deleted, even under names that callers may not use."""
    odd = ["a./b", "dot."]
    async with BlobServiceClient.from_connection_string(azurite.connection_string) as client:
        container = client.get_container_client(azurite.container)
        for name in (*odd, "dot"):
            await container.upload_blob(f"{prefix.partition('/')[2]}/{name}", b"1")
    listed = [entry.path async for entry in storage.list(prefix)]
    assert listed == [f"{prefix}/{name}" for name in ("a./b", "dot", "dot.")]
    await storage.delete([f"{prefix}/{name}" for name in odd])
    assert await names(storage, prefix) == ["dot"]
    await storage.delete([f"{prefix}/{name}" for name in odd])


# --- what fails in between ---


@pytest.mark.parametrize("lost", [1, 2])
async def test_what_was_done_without_an_answer_is_done_once(azurite: Azurite, prefix: str, lost: int) -> None:
    """Every request is safe to repeat (S4)."""
    async with Gateway(azurite.endpoint) as wire:
        here = azurite.connection_string.replace(azurite.endpoint, wire.endpoint)
        options = AzureOptions(connection_string=here, part_size=MemorySize(64 * KIB))
        storage = ResilientStorage(AzureStorage(options), PATIENCE)
        long = secrets.token_bytes(200 * KIB)

        async def commit(writer: Writer) -> None:
            await writer.append(long)
            wire.fault(lambda _: True, times=lost, lost=True)  # answers to blocks, or to their list
            await writer.commit()

        for step in (
            lambda: write(storage, f"{prefix}/a", b"1"),
            lambda: storage.create_exclusive(f"{prefix}/b", b"2"),
            lambda: storage.rename(f"{prefix}/a", f"{prefix}/c"),
            lambda: storage.delete([f"{prefix}/c"]),
        ):
            fault = wire.fault(lambda _: True, times=lost, lost=True)
            await step()
            assert fault.met == lost
        await commit(await storage.create(f"{prefix}/d"))
        wire.fault(lambda _: True, times=lost, lost=True)
        assert await names(storage, prefix) == ["b", "d"]
        wire.fault(lambda _: True, times=lost, lost=True)
        assert await read(storage, f"{prefix}/d") == long
        assert await read(storage, f"{prefix}/b") == b"2"
        await storage.aclose()


async def test_an_exclusive_create_knows_itself_when_its_request_is_sent_twice(azurite: Azurite, prefix: str) -> None:
    """The HTTP client does this by itself when a kept connection breaks during a PUT."""
    async with Gateway(azurite.endpoint) as wire:
        here = azurite.connection_string.replace(azurite.endpoint, wire.endpoint)
        storage = AzureStorage(AzureOptions(connection_string=here))
        assert await names(storage, prefix) == []  # opens a connection to keep
        fault = wire.fault(lambda _: True, lost=True)
        await storage.create_exclusive(f"{prefix}/x", b"1")
        assert fault.met == 1
        await storage.aclose()


def made(server: Azurite) -> str:
    options = f"connection_string={server.connection_string!r}, part_size={MIB}"
    return f"minflinkd_azure.AzureStorage(minflinkd_azure.AzureOptions({options}))"


@pytest.mark.slow
def test_a_process_killed_while_writing_leaves_nothing_visible(azurite: Azurite, prefix: str) -> None:
    """The process gets kill -9 in the middle of a write (S5)."""
    with start_writer("minflinkd_azure", made(azurite), f"{prefix}/x") as writer:
        writer.kill()
    work = f"print([entry async for entry in storage.list({prefix!r})])"
    assert run_client("minflinkd_azure", made(azurite), work) == "[]\n"


@pytest.mark.slow
def test_nothing_is_left_open(azurite: Azurite, prefix: str) -> None:
    work = f"print(await storage.put({prefix + '/x'!r}, b'123') == await storage.stat({prefix + '/x'!r}))"
    assert run_client("minflinkd_azure", made(azurite), work) == "True\n"
