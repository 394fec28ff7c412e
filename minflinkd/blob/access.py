"""Who may use the BlobServer of a cluster."""

from __future__ import annotations

import hmac


def access_token(secret: bytes) -> str:
    """What a request carries. Made of the cluster's secret, since it travels as it is: who overhears it can use the
    BlobServer, and not pretend to be a TaskManager or the daemon."""
    return hmac.digest(secret, b"blob server", "sha256").hex()
