"""Around other messages: those whose large fields lie in blobs (B3)."""

from __future__ import annotations

from minflinkd.rpc.messages.base import Message, Request
from minflinkd.runtime.ids import JobId


class BlobPart(Message, frozen=True):
    """A field of a message that lies in a blob."""

    field: str
    key: str
    size: int


class OffloadedAnswer(Message, frozen=True):
    """B3: the answer to the message that was offloaded, here or in a blob; MessagePack."""

    body: bytes = b""
    key: str = ""


class Offloaded(Request[OffloadedAnswer], frozen=True):
    """B3: a request whose large fields lie in blobs of the job. It stands for that request (blob.offloading)."""

    job_id: JobId
    type: str  # name of the request
    body: bytes  # its other fields; MessagePack
    parts: tuple[BlobPart, ...]
    patience: float  # seconds that the sender still waits
