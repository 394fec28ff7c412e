"""How this daemon authenticates to ZooKeeper: user and password from a file, by `digest` or by SASL.

digest  ZooKeeper's own scheme. The password is sent in clear text.
sasl    DIGEST-MD5, for servers that require it (`sessionRequireClientSASLAuth`). Only a proof of the password is sent.

In both cases the nodes that this daemon creates belong to its user: nobody else can read or write them.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kazoo.security import make_acl, make_digest_acl

from minflinkd.config.ha_options import ZooKeeper
from minflinkd.runtime.errors import Consequence, MinflinkError

DIGEST_FILE = "high-availability.zookeeper.client.digest-file"
SASL_FILE = "high-availability.zookeeper.client.sasl-file"


class UnusableDigest(MinflinkError):
    """The file with the password for ZooKeeper cannot be read or contains no password; or a package is missing."""

    code = "unusable-zookeeper-digest"
    consequence = Consequence.REFUSED


@dataclass(frozen=True)
class Credentials:
    user: str = ""  # empty: everybody may read and write the nodes that this daemon creates
    password: str = field(default="", repr=False)
    option: str = DIGEST_FILE  # the option that names the file

    @property
    def sasl(self) -> bool:
        return bool(self.user) and self.option == SASL_FILE

    def for_kazoo(self) -> dict[str, Any]:
        """Return arguments for kazoo's client."""
        if not self.user:
            return {}
        if self.sasl:
            mechanism = {"mechanism": "DIGEST-MD5", "username": self.user, "password": self.password}
            return {"sasl_options": mechanism, "default_acl": [make_acl("sasl", self.user, all=True)]}
        digest = f"{self.user}:{self.password}"
        return {
            "auth_data": [("digest", digest)],
            "default_acl": [make_digest_acl(self.user, self.password, all=True)],
        }


def credentials(options: ZooKeeper) -> Credentials:
    """Return the credentials that the options name. Raises UnusableDigest."""
    if options.sasl_file:
        if importlib.util.find_spec("puresasl") is None:
            raise UnusableDigest(
                f"{SASL_FILE} is set, but the package pure-sasl is not installed",
                hint="pip install 'minflinkd[zookeeper-sasl]'",
            )
        return _read(options.sasl_file, SASL_FILE)
    return _read(options.digest_file, DIGEST_FILE) if options.digest_file else Credentials()


def _read(file: str, option: str) -> Credentials:
    try:
        found = Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UnusableDigest(
            f"{file} ({option}) cannot be read: {error}",
            hint="name a file with user:password that the daemon's user can read",
        ) from error
    user, _, password = found.partition(":")
    if not user or not password or "\n" in found:
        raise UnusableDigest(
            f"{file} ({option}) does not contain user:password", hint="write both into the file, on one line"
        )
    return Credentials(user, password, option)
