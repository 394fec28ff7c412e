"""The interface between what a party decides and how it is carried out.

ResourceManager, JobMaster and TaskManager each have a *core*: synchronous, deterministic, without clock, socket, task
or Spark. A core is told what was received, the outcomes of its requests, and the time. It returns commands.

In production a thin asyncio driver carries them out, in the simulation a discrete-event loop (resources.md R30). The
code that decides is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from minflinkd.rpc.messages import Message, Notice, Request
from minflinkd.rpc.network import Address, Fenced, Mailbox, RpcTimeout, Unreachable
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import LeaderId


@dataclass(frozen=True)
class Ask:
    """Send `request`. Its outcome comes back as `core.answered(about, outcome, now)`, once and not before `after`."""

    target: Address
    request: Request[Any]
    timeout: float  # seconds, from the sending
    fence: LeaderId | None = None
    about: object = None  # handed back to the core with the outcome
    after: float = 0.0  # seconds to wait before it is sent


@dataclass(frozen=True)
class Tell:
    """Send `notice` and forget it."""

    target: Address
    notice: Notice
    fence: LeaderId | None = None


@dataclass(frozen=True)
class Answered:
    value: Any


@dataclass(frozen=True)
class Refused:
    """The party understood the request and refused it; the error says why."""

    error: MinflinkError


@dataclass(frozen=True)
class Unknown:
    """The request may or may not have been carried out."""

    error: MinflinkError


Outcome = Answered | Refused | Unknown


def outcome_of(error: MinflinkError) -> Outcome:
    return Unknown(error) if isinstance(error, Unreachable | RpcTimeout) else Refused(error)


class Core(Protocol):
    """What the drivers need from every core. They call `take_commands` after every other call."""

    def receive(self, message: Message, fence: LeaderId | None, now: float) -> Any:
        """Return the answer to a request; None for a notice.

        Raises MinflinkError for a refusal, Fenced for a stale token.
        """
        ...

    def answered(self, about: object, outcome: Outcome, now: float) -> None: ...

    def tick(self, now: float) -> None:
        """Do what is due. Called at `next_wakeup()` or later; an earlier call is harmless."""
        ...

    def next_wakeup(self) -> float | None: ...

    def take_commands(self) -> tuple[object, ...]:
        """Return and clear the commands: Ask, Tell, and the party's own."""
        ...


class Door(Mailbox):
    """Passes a message without a handler here to the core, with its token. The core knows who may send what."""

    def __init__(
        self, address: Address, receive: Callable[[Message, LeaderId | None], Any], *, fence: LeaderId | None = None
    ) -> None:
        super().__init__(address, fence=fence)
        self._receive = receive

    async def deliver(self, message: Message, fence: LeaderId | None) -> Any:
        if type(message) in self._handlers:
            return await super().deliver(message, fence)
        return self._receive(message, fence)


def fenced(party: Address, message: Message, fence: LeaderId | None) -> Fenced:
    return Fenced(
        f"{party} refuses {type(message).__name__}: its token {fence} is not the present leader's",
        hint="the sender must register with the present leader",
    )
