"""Who may read the exchanges of a TaskManager, and how requests name their parts."""

from __future__ import annotations

import hmac
import re

from minflinkd.runtime.errors import Consequence, Kind, MinflinkError

AT_ONCE = 500  # entries per answer
_DATA_FILE = re.compile(r"[0-9a-f]{32}\.parquet")


class ExchangeUnreachable(MinflinkError):
    """A task cannot read the output of a task on another TaskManager. Both restart from a checkpoint."""

    code = "exchange-unreachable"
    consequence = Consequence.RETRYABLE
    kind = Kind.EXCHANGE


def data_token(secret: bytes) -> str:
    """Return the token that requests carry.

    It is derived from the cluster's secret, since without TLS it travels unencrypted. Whoever intercepts it can read
    exchanges, but can neither act as a TaskManager nor use the BlobServer.
    """
    return hmac.digest(secret, b"data endpoint", "sha256").hex()


def is_data_file(name: str) -> bool:
    """Whether `name` can only be the name of a data file of an entry."""
    return _DATA_FILE.fullmatch(name) is not None
