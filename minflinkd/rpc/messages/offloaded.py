"""Envelopes for messages with large fields, which are stored in blobs (B3)."""

from __future__ import annotations

from minflinkd.rpc.messages.base import Message, Request
from minflinkd.runtime.ids import JobId


class BlobPart(Message, frozen=True):
    """A field of a message that is stored in a blob."""

    field: str
    key: str
    size: int


class OffloadedAnswer(Message, frozen=True):
    """B3: the answer to the offloaded message as MessagePack, inline or in a blob."""

    body: bytes = b""
    key: str = ""


class Offloaded(Request[OffloadedAnswer], frozen=True):
    """B3: stands for a request; its large fields are stored in blobs of the job (blob.offloading)."""

    job_id: JobId
    type: str  # name of the request
    body: bytes  # its other fields; MessagePack
    parts: tuple[BlobPart, ...]
    patience: float  # seconds that the sender will still wait
