"""What an election needs from a coordination service (A11, A11a). ZooKeeper offers it, and Kubernetes' Leases do."""

from __future__ import annotations

from typing import Protocol

import msgspec

from minflinkd.runtime.errors import Consequence, MinflinkError


class ServiceUnavailable(MinflinkError):
    """The coordination service did not answer. What was asked of it may have been done."""

    code = "coordination-unavailable"
    consequence = Consequence.RETRYABLE


class ServiceRefused(MinflinkError):
    """The coordination service does not let this daemon in: wrong credentials, or no right to write there."""

    code = "coordination-refused"
    consequence = Consequence.REFUSED


class ServiceFull(ServiceRefused):
    """The coordination service has no room for this daemon's nodes."""

    code = "coordination-full"
    consequence = Consequence.RETRYABLE


class ClaimGone(MinflinkError):
    """The claim is not in the service any more, so this daemon does not lead. Nothing of the request was done."""

    code = "leadership-lost"
    consequence = Consequence.RETRYABLE


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A daemon in the election, as the others see it."""

    name: str  # host and process, for people
    url: str  # of its HTTP endpoint
    leading_since_ms: int = 0  # 0: it does not lead
    epoch: int = 0


def told(error: MinflinkError) -> str:
    """Return what /health/ready says of an error: its code, for docs/errors.md, and what to do."""
    return f"{error.code}: {error.message}" + (f"; {error.hint}" if error.hint else "")


class Ballot(Protocol):
    """The claims of one daemon, one at a time. Every call raises ServiceUnavailable, ServiceRefused."""

    async def join(self, member: Member) -> None:
        """Delete earlier claims of this daemon, and put a new one at the end of the queue."""
        ...

    async def before(self) -> str | None:
        """Return the name of the claim just before this one; None: this is the first one. Raises ClaimGone."""
        ...

    async def change_of(self, claim: str) -> None:
        """Return when something has happened to a claim, or after a while."""
        ...

    async def record(self) -> int:
        """Record a new leadership and return its epoch. Raises ClaimGone, UnusableEpoch."""
        ...

    async def confirm(self) -> None:
        """Return if the claim is there. Raises ClaimGone."""
        ...

    async def describe(self, member: Member) -> None:
        """Show this to the other daemons from now on. Raises ClaimGone."""
        ...

    async def withdraw(self) -> None:
        """Delete the present claim. One that is made later stays, however late this is carried out.

        If it fails, call it again: the claim may still be there.
        """
        ...

    async def leave(self) -> None:
        """Delete all claims of this daemon, so that the next one need not wait for the session timeout."""
        ...

    async def members(self) -> tuple[Member, ...]:
        """Return who takes part, the first one first."""
        ...
