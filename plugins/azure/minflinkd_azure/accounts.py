"""Which account and container a path names, and the client for it.

    container/blob                                    of the account in the options
    container@account.dfs.core.windows.net/blob       of that account, as Hadoop's URIs say it

adlfs finds the credentials and makes the clients; requests go to the SDK.
"""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from adlfs import AzureBlobFileSystem
from azure.storage.blob import BlobSasPermissions, generate_blob_sas
from azure.storage.blob.aio import BlobClient, BlobServiceClient, ContainerClient

from minflinkd.storage.interface import InvalidPath
from minflinkd.storage.options import InvalidStorageOption
from minflinkd_azure.options import AzureOptions

LONGEST = 1024  # characters of a blob's name
# An account of one of Azure's clouds; credentials are sent nowhere else.
_HOST = re.compile(r"[a-z0-9]{3,24}\.(dfs|blob)\.core\.(windows\.net|chinacloudapi\.cn|usgovcloudapi\.net)")
_SCOPE = "https://storage.azure.com/.default"
_SIGNED_FOR = timedelta(hours=1)  # each request of a copy has a signature of its own
_NEVER = re.compile(r"[\\\x00-\x1f\x7f\ud800-\udfff]")

logging.getLogger("azure.core.pipeline.policies.http_logging_policy").setLevel(logging.WARNING)  # a line a request
logging.getLogger("azure.identity").setLevel(logging.ERROR)  # what each link of the chain has not found


class Place(NamedTuple):
    """A path, taken apart."""

    root: str  # the path's first part, as it was given
    container: str
    host: str  # of the account's blobs; empty: the options'
    name: str  # of the blob; empty: the container itself


class Accounts:
    """Clients are made in the running loop when they are first used."""

    def __init__(self, options: AzureOptions) -> None:
        self._options = options
        self._systems: dict[str, AzureBlobFileSystem] = {}

    def blob(self, path: str) -> BlobClient:
        """Raises InvalidPath, InvalidStorageOption."""
        place = split(path)
        if not place.name:
            raise InvalidPath(f"abfs: {path[:200]!r} names no blob", hint="abfs://container/blob")
        return self._service(place).get_blob_client(place.container, place.name)

    def container(self, place: Place) -> ContainerClient:
        """Raises InvalidStorageOption, InvalidPath."""
        return self._service(place).get_container_client(place.container)

    async def source(self, path: str) -> tuple[str, dict[str, Any]]:
        """The URL that the service itself may read a blob from, and what the request that says so must show beside it.

        It does not take the requester's own right for one: a SAS token is in the URL, an account's key signs one for
        this blob, and an identity gives its token. Raises InvalidPath, InvalidStorageOption.
        """
        blob = self.blob(path)
        if "sig=" in blob.url:
            return blob.url, {}
        key = getattr(blob.credential, "account_key", None)
        if key:
            until = datetime.now(UTC) + _SIGNED_FOR
            reading = BlobSasPermissions(read=True)
            signature = generate_blob_sas(
                *(str(blob.account_name), blob.container_name, blob.blob_name),
                account_key=key,
                permission=reading,
                expiry=until,
            )
            return f"{blob.url}?{signature}", {}
        if hasattr(blob.credential, "get_token"):
            token = await blob.credential.get_token(_SCOPE)
            return blob.url, {"source_authorization": f"Bearer {token.token}"}
        return blob.url, {}

    async def aclose(self) -> None:
        """Idempotent; a later request makes new clients."""
        systems, self._systems = self._systems, {}
        for system in systems.values():
            await system.service_client.close()
            if hasattr(system.credential, "close"):
                await system.credential.close()

    def _service(self, place: Place) -> BlobServiceClient:
        options, host = self._options, place.host
        account = host.partition(".")[0] or options.account
        if host and account == options.account:
            host = ""
        if host and options.bound:
            raise InvalidPath(
                f"abfs: {place.root} is of another account than storage.abfs.* has credentials for",
                hint=f"use a container of {options.account or 'that account'}, or an identity for both",
            )
        if host not in self._systems:
            if not (account or options.connection):
                raise InvalidStorageOption(f"abfs: {place.root} names no account", hint="set storage.abfs.account-name")
            self._systems[host] = AzureBlobFileSystem(**_arguments(options, account, host))
        service: BlobServiceClient = self._systems[host].service_client
        return service


def split(path: str) -> Place:
    """Raises InvalidPath."""
    place = listed(path)
    if not is_plain(place):
        hint = "no backslash or control character, no part that ends with a dot: Azure takes these for other names"
        raise InvalidPath(f"abfs: {path[:200]!r} cannot be the name of a blob", hint=hint)
    if len(place.name) > LONGEST:
        raise InvalidPath(f"abfs: {path[:200]!r}...: a name has at most {LONGEST} characters", hint="shorten the name")
    return place


def listed(path: str) -> Place:
    """Of a path that a listing may have given: of any name. Raises InvalidPath."""
    root, _, name = path.partition("/")
    container, at, host = root.partition("@")
    if not container or (at and not _HOST.fullmatch(host)):
        hint = "abfs://container/blob, or abfs://container@account.dfs.core.windows.net/blob"
        raise InvalidPath(f"abfs: {path[:200]!r} names no container of Azure", hint=hint)
    return Place(root, container, host.replace(".dfs.", ".blob.", 1), name)


def is_plain(place: Place) -> bool:
    """Whether the service takes the name for itself, and no other."""
    parts = (place.container, *place.name.split("/"))
    return not _NEVER.search(place.root + place.name) and not any(part.endswith(".") for part in parts)


def _arguments(options: AzureOptions, account: str, host: str) -> dict[str, Any]:
    endpoint = urlsplit(options.endpoint)
    own_host = host or (endpoint.netloc + endpoint.path).rstrip("/")
    return {
        "account_name": account or None,
        "account_key": options.account_key or None,
        "connection_string": options.connection or None,
        "sas_token": options.sas_token or None,
        "tenant_id": options.tenant_id or None,
        "client_id": options.client_id or None,
        "client_secret": options.client_secret or None,
        "anon": options.anonymous or None,
        **({"account_host": own_host} if own_host else {}),
        "asynchronous": False,  # or else it closes its clients at the exit on a loop that it does not have
        "skip_instance_cache": True,  # an instance belongs to one loop
    }
