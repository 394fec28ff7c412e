"""Requests between the daemon's parties and TaskManagers. Flink has nothing of the kind."""

from __future__ import annotations

from minflinkd.rest.schemas.answer import Answer


class RpcMessage(Answer, frozen=True, kw_only=True, rename="kebab"):
    """Requests of one type: those that ended in the last minute, and those under way."""

    message: str
    requests: int
    outcomes: dict[str, int]  # `ok`, or the code of the error
    unanswered: int  # of the requests: it is not known whether they were carried out
    mean: float | None  # milliseconds; None: none has ended
    slowest: float | None
    in_flight: int


class RpcMailbox(Answer, frozen=True, kw_only=True, rename="kebab"):
    """What a party has taken and not answered yet."""

    address: str
    waiting: int
    oldest: float  # milliseconds for which the oldest of them has been there
    message: str  # its type; empty: none is there


class Rpc(Answer, frozen=True, kw_only=True, rename="kebab"):
    window: int  # milliseconds
    messages: tuple[RpcMessage, ...]  # those with unanswered requests first, then by the slowest
    mailboxes: tuple[RpcMailbox, ...]  # of JobMasters only those in which something waits, the oldest first
    mailboxes_left_out: int
