"""Who may use the BlobServer of a cluster, and whose an upload is."""

from __future__ import annotations

import base64
import binascii
import hmac


def access_token(secret: bytes) -> str:
    """Return the token that a request carries.

    It is derived from the cluster's secret, because without TLS it travels in the clear. Whoever overhears it can use
    the BlobServer, but cannot pretend to be a TaskManager or the daemon.
    """
    return hmac.digest(secret, b"blob server", "sha256").hex()


def user_token(token: str, user: str) -> str:
    """Return the token of one user of the HTTP endpoint. It allows the same, and says whose uploads are.

    `token`: the cluster's. Who has a user's token can make neither the cluster's nor that of another user.
    """
    name = base64.urlsafe_b64encode(user.encode(errors="surrogatepass")).decode()
    return f"{name}.{_proof(token, name)}"


def user_of(given: str, token: str) -> str | None:
    """Return whose token this is; empty for the cluster's own. None: it is not valid."""
    if hmac.compare_digest(given.encode(errors="surrogateescape"), token.encode()):
        return ""
    name, _, proof = given.rpartition(".")
    expected = _proof(token, name)
    if not name or not hmac.compare_digest(proof.encode(errors="surrogateescape"), expected.encode()):
        return None
    try:
        return base64.urlsafe_b64decode(name).decode(errors="surrogatepass")
    except (binascii.Error, ValueError):
        return None


def _proof(token: str, name: str) -> str:
    return hmac.digest(token.encode(), b"user " + name.encode(errors="surrogateescape"), "sha256").hex()
