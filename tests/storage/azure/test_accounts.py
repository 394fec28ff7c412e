"""Accounts and credentials of Azure: which are used where, and that no error shows them."""

from __future__ import annotations

import base64
import traceback
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest
from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas

from minflinkd.storage.conformance import names, write
from minflinkd.storage.interface import InvalidPath, PermissionDenied, StorageError
from minflinkd.storage.options import InvalidStorageOption, parse
from minflinkd.storage.registry import Storages
from minflinkd_azure import AzureOptions, AzureStorage
from minflinkd_azure.accounts import Accounts
from tests.proxy import Proxy
from tests.servers.azure import Azurite
from tests.storage.azure.conftest import azure

HOST = "devstoreaccount1.dfs.core.windows.net"


def sas(server: Azurite, permission: str = "rwdlac") -> str:
    return generate_account_sas(
        server.account,
        server.key,
        ResourceTypes(container=True, object=True),
        AccountSasPermissions.from_string(permission),
        datetime.now(UTC) + timedelta(hours=1),
    )


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
