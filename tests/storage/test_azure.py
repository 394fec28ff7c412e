"""The Azure backend against azurite."""

from __future__ import annotations

import base64
import secrets
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from urllib.parse import quote

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from azure.core.credentials import AccessToken
from azure.core.exceptions import ResourceNotFoundError
from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas
from azure.storage.blob.aio import BlobServiceClient
from yarl import URL

from minflinkd.runtime.units import MemorySize
from minflinkd.storage.conformance import ODD_NAMES, ServerLossConformance, StorageConformance, names, read, write
from minflinkd.storage.interface import (
    InvalidPath,
    ObjectNotFound,
    PermissionDenied,
    Storage,
    StorageError,
    StorageUnavailable,
    Writer,
)
from minflinkd.storage.options import CommonOptions, InvalidStorageOption, parse
from minflinkd.storage.registry import Storages
from minflinkd.storage.resilient import ResilientStorage
from minflinkd_azure import AzureOptions, AzureStorage
from minflinkd_azure.accounts import Accounts
from tests.proxy import Proxy
from tests.servers.azure import Azurite
from tests.servers.gateway import Gateway
from tests.storage.processes import run_client, start_writer
from tests.waiting import until

T = TypeVar("T")

MIB = 1 << 20
KIB = 1 << 10
PATIENCE = CommonOptions(pause=0.01, longest_pause=0.02)
HOST = "devstoreaccount1.dfs.core.windows.net"


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


def sas(server: Azurite, permission: str = "rwdlac") -> str:
    return generate_account_sas(
        server.account,
        server.key,
        ResourceTypes(container=True, object=True),
        AccountSasPermissions.from_string(permission),
        datetime.now(UTC) + timedelta(hours=1),
    )


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


# --- copies ---


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


# --- accounts, credentials ---


def test_options_do_not_print_credentials() -> None:
    """S4"""
    names = ("account_key", "connection_string", "sas_token", "client_secret")
    assert "very-secret" not in repr(AzureOptions(**dict.fromkeys(names, "very-secret")))


async def test_an_account_in_the_uri_is_the_one_of_the_options(azurite: Azurite, prefix: str) -> None:
    """URIs in Hadoop's form name the same blobs, and paths stay as they were given (S7)."""
    key = {
        "endpoint": f"{azurite.endpoint}/{azurite.account}",
        "account-name": azurite.account,
        "account-key": azurite.key,
    }
    storages = Storages({f"abfs.{name}": value for name, value in key.items()})
    directory = prefix.partition("/")[2]
    await storages.at(f"abfs://{prefix}").child("a b").write_bytes(b"1")
    place = storages.at(f"abfss://test@{HOST}/{directory}")
    assert [entry.path async for entry in place.list()] == [f"test@{HOST}/{directory}/a b"]
    await place.child("a b").rename(place.child("c"))
    assert await storages.at(f"az://{prefix}/c").read_bytes() == b"1"
    with pytest.raises(InvalidPath, match="another account"):
        await storages.at("abfs://test@other.dfs.core.windows.net/x").read_bytes()
    await storages.aclose()


@pytest.mark.parametrize(
    "host",
    ["evil.example.com", "core.windows.net", "x.dfs.core.windows.net.example.com", "mine.x.dfs.core.windows.net", ""],
)
async def test_credentials_are_sent_to_no_host_that_is_not_azures(host: str) -> None:
    """Whoever chooses a URI must not get a token in this way (S4)."""
    storage = AzureStorage()
    with pytest.raises(InvalidPath, match="no container of Azure"):
        await storage.stat(f"test@{host}/x")
    await storage.aclose()


async def test_other_accounts_are_reached_by_an_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """The identity chain belongs to no account in particular, so the URI may choose the account."""
    accounts = Accounts(AzureOptions(account_name="mine").completed())
    assert accounts.blob("c/x").url == "https://mine.blob.core.windows.net/c/x"
    assert accounts.blob("c@mine.dfs.core.windows.net/x").url == "https://mine.blob.core.windows.net/c/x"
    assert accounts.blob("c@other.dfs.core.chinacloudapi.cn/x").url == "https://other.blob.core.chinacloudapi.cn/c/x"
    await accounts.aclose()


async def test_without_an_account_it_is_said_what_to_set() -> None:
    with pytest.raises(InvalidStorageOption, match="names no account") as caught:
        await AzureStorage().stat("test/x")
    assert "storage.abfs.account-name" in caught.value.hint


@pytest.mark.parametrize(
    "options",
    [
        {"part-size": "1 KiB"},
        {"part-size": "1 GiB"},
        {"endpoint": "mine.blob.core.windows.net"},
        {"endpoint": "http://127.0.0.1:10000/mine", "account-name": "mine"},
        {"no-such": "x"},
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(InvalidStorageOption):
        AzureStorage(parse(AzureOptions, options, "abfs"))


async def test_a_sas_token_does_all_of_it(azurite: Azurite, prefix: str) -> None:
    """Copies work too, because the token is part of the source's URL."""
    endpoint = f"{azurite.endpoint}/{azurite.account}"
    storage = AzureStorage(AzureOptions(account_name=azurite.account, sas_token="?" + sas(azurite), endpoint=endpoint))
    await write(storage, f"{prefix}/x", b"1")
    await storage.rename(f"{prefix}/x", f"{prefix}/y")
    assert await names(storage, prefix) == ["y"]
    await storage.delete([f"{prefix}/y"])
    await storage.aclose()


def wrong_credentials(server: Azurite) -> dict[str, AzureOptions]:
    endpoint, wrong = f"{server.endpoint}/{server.account}", base64.b64encode(b"x" * 64).decode()
    refused, name = sas(server, "r"), server.account
    return {
        "a wrong key": AzureOptions(account_name=name, account_key=wrong, endpoint=endpoint),
        "a key that is none": AzureOptions(account_name=name, account_key="not-base64-at-all", endpoint=endpoint),
        "a key in a connection string": AzureOptions(
            connection_string=server.connection_string.replace(server.key, wrong)
        ),
        "a token that may only read": AzureOptions(account_name=name, sas_token=refused, endpoint=endpoint),
        "a token that is wrong": AzureOptions(
            account_name=name, sas_token=refused.replace("sig=", "sig=very"), endpoint=endpoint
        ),
        "a connection string that is none": AzureOptions(connection_string="AccountKey=very-secret;nonsense"),
    }


WRONG = ["a wrong key", "a key that is none", "a key in a connection string", "a token that may only read"]
WRONG += ["a token that is wrong", "a connection string that is none"]


@pytest.mark.parametrize("which", WRONG)
@pytest.mark.parametrize("reachable", [True, False])
async def test_no_error_shows_a_credential(azurite: Azurite, which: str, reachable: bool) -> None:
    """Errors show neither a credential nor a part of it, nor its form in a URL (S4)."""
    server = azurite
    if not reachable:
        async with Proxy("127.0.0.1", 1) as proxy:
            server = Azurite(azurite.directory)
            server._ports = {"main": proxy.port}  # nobody listens there any more
    if reachable:
        right = azure(azurite)
        await write(right, "test/x", b"1")
        await right.aclose()
    options = wrong_credentials(server)[which]
    storage = AzureStorage(options)
    steps: list[Callable[[], Awaitable[object]]] = [
        lambda: storage.put("test/x", b"1"),
        lambda: storage.put_part("test/x", "1", 1, 0, b"1", last=False),
        lambda: names(storage, "test"),
        lambda: storage.delete(["test/x"]),
        lambda: storage.copy("test/x", "test/y"),
    ]
    for step in steps:
        with pytest.raises(StorageError) as caught:
            await step()
        text = "".join(traceback.format_exception(caught.value))
        assert "test" in caught.value.message
        if reachable:
            assert isinstance(caught.value, PermissionDenied)
        for secret in options.secrets():
            assert secret not in text
            assert quote(secret, safe="") not in text
        assert "sig=" not in text.replace("sig=******", "")
    await storage.aclose()


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
