"""Who may read the exchanges of a TaskManager, and how what is asked for is named."""

from __future__ import annotations

import hmac
import re

from minflinkd.runtime.errors import Consequence, MinflinkError

_DATA_FILE = re.compile(r"[0-9a-f]{32}\.parquet")


class ExchangeUnreachable(MinflinkError):
    """A task cannot read what a task on another TaskManager yields: both begin again from a checkpoint."""

    code = "exchange-unreachable"
    consequence = Consequence.RETRYABLE


def data_token(secret: bytes) -> str:
    """What a request carries. Made of the cluster's secret, since it travels as it is: who overhears it can read
    exchanges, and not pretend to be a TaskManager, nor use the BlobServer."""
    return hmac.digest(secret, b"data endpoint", "sha256").hex()


def is_data_file(name: str) -> bool:
    """Whether it is the name of a file of an entry's data, and so of no other."""
    return _DATA_FILE.fullmatch(name) is not None
