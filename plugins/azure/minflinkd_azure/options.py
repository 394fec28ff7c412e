"""Options of the Azure backend."""

from __future__ import annotations

import os
from typing import Final
from urllib.parse import urlsplit

import msgspec

from minflinkd.runtime.units import MemorySize
from minflinkd.storage.options import InvalidStorageOption

SMALLEST: Final = MemorySize(64 << 10)  # of a part
LARGEST: Final = MemorySize(64 << 20)  # sent by the SDK as one request


class AzureOptions(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """`storage.abfs.*`. Empty options are taken from the variables AZURE_STORAGE_*.

    The first credential that exists is used: connection string, account key, SAS token, service principal,
    azure-identity's chain.
    """

    account_name: str = ""
    account_key: str = ""
    connection_string: str = ""
    sas_token: str = ""
    tenant_id: str = ""  # with client_id and client_secret: a service principal
    client_id: str = ""
    client_secret: str = ""
    anonymous: bool = False
    endpoint: str = ""  # for the account's blobs; empty: https://<account-name>.blob.core.windows.net
    part_size: MemorySize = MemorySize(8 << 20)

    def __repr__(self) -> str:
        return f"AzureOptions(account_name={self.account_name!r}, endpoint={self.endpoint!r})"  # no credentials in logs

    def completed(self) -> AzureOptions:
        """Return the options completed from the environment. Raises InvalidStorageOption."""
        names = (
            "account_name",
            "account_key",
            "connection_string",
            "sas_token",
            "tenant_id",
            "client_id",
            "client_secret",
        )
        found = {name: getattr(self, name) or os.environ.get(f"AZURE_STORAGE_{name.upper()}", "") for name in names}
        whole = msgspec.structs.replace(self, **found)
        if not SMALLEST <= self.part_size <= LARGEST:
            raise InvalidStorageOption(f"storage.abfs.part-size is not between {SMALLEST} and {LARGEST}")
        scheme = urlsplit(self.endpoint).scheme
        if self.endpoint and scheme not in ("http", "https"):
            raise InvalidStorageOption(
                "storage.abfs.endpoint is not a URL", hint="https://<account>.blob.core.windows.net"
            )
        if scheme == "http" and not (whole.account_key or whole.sas_token):
            raise InvalidStorageOption(
                "storage.abfs.endpoint: a token is not sent over http",
                hint="use https, or give storage.abfs.account-key",
            )
        return whole

    @property
    def account(self) -> str:
        """The account that the credentials are for; empty: any."""
        return self.account_name or _parts(self.connection_string).get("accountname", "")

    @property
    def bound(self) -> bool:
        """Whether the credentials belong to one account, not to a person or a service."""
        return bool(self.account_key or self.connection_string or self.sas_token or self.endpoint)

    @property
    def connection(self) -> str:
        """The complete connection string; empty if tokens are used."""
        if self.connection_string or not self.endpoint:
            return self.connection_string
        parts = {"BlobEndpoint": self.endpoint, "AccountName": self.account_name}
        if self.account_key:
            parts["AccountKey"] = self.account_key
        elif self.sas_token:
            parts["SharedAccessSignature"] = self.sas_token.removeprefix("?")
        else:
            return ""
        return ";".join(f"{name}={value}" for name, value in parts.items())

    def secrets(self) -> list[str]:
        """Return the values that must never be shown."""
        signature = self.sas_token.removeprefix("?")
        secrets = [self.account_key, self.connection_string, signature, self.client_secret]
        parts = _parts(self.connection_string)
        secrets += [parts.get("accountkey", ""), parts.get("sharedaccesssignature", "")]
        return [secret for secret in secrets if secret]


def _parts(connection_string: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in connection_string.split(";"))
    return {name.strip().lower(): value.strip() for name, _, value in pairs}
