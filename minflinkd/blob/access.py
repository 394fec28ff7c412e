"""Who may use the BlobServer of a cluster."""

from __future__ import annotations

import hmac


def access_token(secret: bytes) -> str:
    """Return the token that a request carries.

    It is derived from the cluster's secret, because without TLS it travels in the clear. Whoever overhears it can use
    the BlobServer, but cannot pretend to be a TaskManager or the daemon.
    """
    return hmac.digest(secret, b"blob server", "sha256").hex()
