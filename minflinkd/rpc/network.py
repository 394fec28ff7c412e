"""What a network between parties offers, however it carries messages.

This module is the contract: addresses, mailboxes, requests with timeouts, one-way messages, fencing. The carriers are
`rpc.local` (inside one process), `rpc.tcp` (TaskManager <-> daemon) and `rpc.faulty` (tests: drops, doubles, delays).

A request has one of three outcomes, which callers keep apart: an answer; a refusal (RemoteError, Fenced); or *unknown*
(Unreachable, RpcTimeout): the request may or may not have been carried out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NewType, Protocol, TypeVar

from minflinkd.metrics.rpc import Pending
from minflinkd.rpc.messages import Message, Notice, Request
from minflinkd.runtime.errors import Consequence, Kind, MinflinkError
from minflinkd.runtime.ids import JobId, LeaderId, ResourceId

R = TypeVar("R")
Address = NewType("Address", str)

RESOURCE_MANAGER = Address("resourcemanager")
DISPATCHER = Address("dispatcher")


def job_master(job_id: JobId) -> Address:
    return Address(f"jobmaster/{job_id}")


def task_manager(resource_id: ResourceId) -> Address:
    return Address(f"taskmanager/{resource_id}")


class Unreachable(MinflinkError):
    """The party cannot be reached now. If the message was already sent, its outcome is unknown."""

    code = "unreachable"
    consequence = Consequence.RETRYABLE
    kind = Kind.CLUSTER


class RpcTimeout(MinflinkError):
    """No answer in time. The outcome is unknown."""

    code = "rpc-timeout"
    consequence = Consequence.RETRYABLE
    kind = Kind.CLUSTER


class Fenced(MinflinkError):
    """The message carries the token of a replaced leader, or is addressed to one."""

    code = "fenced"
    consequence = Consequence.FENCED
    kind = Kind.CLUSTER


Handler = Callable[[Any], Awaitable[Any]]


class Mailbox:
    """One party's handlers, by message type, protected by one fencing token.

    A party that leads (ResourceManager, JobMaster) sets `fence`. Messages with another token are refused before a
    handler sees them, and counted. A TaskManager follows several leaders: `admits` says whether a message carries the
    token of the leader that it claims to come from.
    """

    def __init__(
        self,
        address: Address,
        *,
        fence: LeaderId | None = None,
        admits: Callable[[Message, LeaderId | None], bool] | None = None,
    ) -> None:
        self.address = address
        self.fence = fence
        self._admits = admits
        self.fenced: Counter[str] = Counter()  # messages refused for a wrong token, by type; the carriers count them
        self.pending = Pending()  # messages that were taken and have no answer yet; the carriers count them
        self._handlers: dict[type[Message], Handler] = {}
        self._unfenced: set[type[Message]] = set()

    def on(self, kind: type[Request[R]], handler: Callable[[Any], Awaitable[R]], *, fenced: bool = True) -> None:
        """Answer requests of this type. Use `fenced=False` for requests sent before the sender knows the leader."""
        self._handlers[kind] = handler
        if not fenced:
            self._unfenced.add(kind)

    def on_notice(self, kind: type[Notice], handler: Callable[[Any], Awaitable[None]]) -> None:
        self._handlers[kind] = handler

    async def deliver(self, message: Message, fence: LeaderId | None) -> Any:
        """Run the handler. Raises Fenced, the handler's MinflinkError, or Unreachable for an unknown type."""
        kind = type(message)
        handler = self._handlers.get(kind)
        if handler is None:
            raise Unreachable(f"{self.address} does not take {kind.__name__}")
        stale = self.fence is not None and kind not in self._unfenced and fence != self.fence
        if stale or (self._admits is not None and not self._admits(message, fence)):
            raise Fenced(
                f"{self.address} refuses {kind.__name__}: its token {fence} is not the present leader's",
                hint="the sender must register with the present leader",
            )
        return await handler(message)


class Network(Protocol):
    def attach(self, mailbox: Mailbox) -> None:
        """Make a party reachable here. It replaces an earlier one with the same address."""
        ...

    def detach(self, mailbox: Mailbox) -> None:
        """Make a party unreachable. Idempotent; does nothing if another mailbox has taken the address."""
        ...

    async def ask(self, target: Address, request: Request[R], *, timeout: float, fence: LeaderId | None = None) -> R:
        """Raises RemoteError, Fenced, Unreachable, RpcTimeout."""
        ...

    def tell(self, target: Address, notice: Notice, *, fence: LeaderId | None = None) -> None:
        """Send and forget. Failures in transit are never raised."""
        ...
