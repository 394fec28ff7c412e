"""What an election needs from a coordination service (A11, A11a). ZooKeeper and Kubernetes' Leases offer this."""

from __future__ import annotations

from typing import Protocol

import msgspec

from minflinkd.runtime.errors import Consequence, MinflinkError


class ServiceUnavailable(MinflinkError):
    """The coordination service did not answer. The request may have been carried out."""

    code = "coordination-unavailable"
    consequence = Consequence.RETRYABLE


class ServiceRefused(MinflinkError):
    """The coordination service refuses this daemon: wrong credentials, no write access, or a short session timeout."""

    code = "coordination-refused"
    consequence = Consequence.REFUSED


class ServiceFull(ServiceRefused):
    """The coordination service has no room for this daemon's nodes."""

    code = "coordination-full"
    consequence = Consequence.RETRYABLE


class ClaimGone(MinflinkError):
    """The claim is no longer in the service, so this daemon does not lead. The request had no effect."""

    code = "leadership-lost"
    consequence = Consequence.RETRYABLE


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A daemon in the election, as the others see it.

    Daemons of adjacent versions read this as well: give each new field a default.
    """

    name: str  # host and process, for people
    url: str  # of its HTTP endpoint
    leading_since_ms: int = 0  # 0: it does not lead
    epoch: int = 0
    rpc: str = ""  # host:port at which TaskManagers reach it; empty: it does not say


def told(error: MinflinkError) -> str:
    """Return an error as /health/ready shows it: its code, for docs/errors.md, the message, and what to do."""
    return f"{error.code}: {error.message}" + (f"; {error.hint}" if error.hint else "")


class Ballot(Protocol):
    """The claims of one daemon, one at a time. Every call raises ServiceUnavailable, ServiceRefused."""

    async def join(self, member: Member) -> None:
        """Delete earlier claims of this daemon, and put a new one at the end of the queue."""
        ...

    async def before(self) -> str | None:
        """Return the name of the claim just before this one, or None if this one is first. Raises ClaimGone."""
        ...

    async def change_of(self, claim: str) -> None:
        """Return when a claim has changed or was deleted, or after a while."""
        ...

    async def record(self) -> int:
        """Record a new leadership and return its epoch. Raises ClaimGone, UnusableEpoch."""
        ...

    async def confirm(self) -> None:
        """Return if the claim exists. Raises ClaimGone."""
        ...

    async def describe(self, member: Member) -> None:
        """Publish this description to the other daemons. Raises ClaimGone."""
        ...

    async def withdraw(self) -> None:
        """Delete the present claim. A claim that is made later stays, however late this is carried out.

        If it fails, call it again: the claim may still be there.
        """
        ...

    async def leave(self) -> None:
        """Delete all claims of this daemon, so that the next daemon need not wait for the session timeout."""
        ...

    async def members(self) -> tuple[Member, ...]:
        """Return the daemons that take part, in the order of their claims."""
        ...
