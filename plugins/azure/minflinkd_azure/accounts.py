"""The account and container that a path names, and the client for them.

    container/blob                                    in the account of the options
    container@account.dfs.core.windows.net/blob       in that account, as in Hadoop's URIs

adlfs finds the credentials and creates the clients; requests use the SDK directly.
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
# Accounts in Azure's clouds. Credentials are sent nowhere else.
_HOST = re.compile(r"[a-z0-9]{3,24}\.(dfs|blob)\.core\.(windows\.net|chinacloudapi\.cn|usgovcloudapi\.net)")
_SCOPE = "https://storage.azure.com/.default"
_SIGNED_FOR = timedelta(hours=1)  # each request of a copy has its own signature
_NEVER = re.compile(r"[\\\x00-\x1f\x7f\ud800-\udfff]")

logging.getLogger("azure.core.pipeline.policies.http_logging_policy").setLevel(logging.WARNING)  # a line per request
logging.getLogger("azure.identity").setLevel(logging.ERROR)  # logs what the chain has not found


class Place(NamedTuple):
    """The parts of a path."""

    root: str  # the path's first part, as given
    container: str
    host: str  # of the account's blobs; empty: from the options
    name: str  # the blob's name; empty: the container itself


class Accounts:
    """Creates clients at first use, in the running loop."""

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
        """Return a URL from which the service can read a blob, and more arguments of the copy request.

        The requester's own rights do not apply to the source. A SAS token is already in the URL, an account key signs
        one for this blob, and an identity passes its token. Raises InvalidPath, InvalidStorageOption.
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
        """Close the clients. Idempotent; a later request creates new ones."""
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
    """Split a path. Raises InvalidPath."""
    place = listed(path)
    if not is_plain(place):
        hint = "no backslash or control character, no part that ends with a dot: Azure takes these for other names"
        raise InvalidPath(f"abfs: {path[:200]!r} cannot be the name of a blob", hint=hint)
    if len(place.name) > LONGEST:
        raise InvalidPath(f"abfs: {path[:200]!r}...: a name has at most {LONGEST} characters", hint="shorten the name")
    return place


def listed(path: str) -> Place:
    """Split a path from a listing, which may have any name. Raises InvalidPath."""
    root, _, name = path.partition("/")
    container, at, host = root.partition("@")
    if not container or (at and not _HOST.fullmatch(host)):
        hint = "abfs://container/blob, or abfs://container@account.dfs.core.windows.net/blob"
        raise InvalidPath(f"abfs: {path[:200]!r} names no container of Azure", hint=hint)
    return Place(root, container, host.replace(".dfs.", ".blob.", 1), name)


def is_plain(place: Place) -> bool:
    """Whether the service takes the name literally, and not for another name."""
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
        "asynchronous": False,  # otherwise it would close its clients at exit, on a loop that it does not have
        "skip_instance_cache": True,  # an instance belongs to one loop
    }
