"""Which protocol versions a process speaks, and on which version two processes agree (A15a).

The protocol version is independent of the package version. Most releases keep it, because the previous release still
understands all their messages. Raise it for a change that the rules of `rpc.messages` do not allow. A daemon then
speaks two versions, its own and the previous one, so that it can adopt the TaskManagers of the previous daemon.
`Connection.protocol` is the version that both sides use.
"""

from __future__ import annotations

from typing import NamedTuple

from minflinkd.runtime.errors import Consequence, MinflinkError

PROTOCOL_VERSION = 2
OLDEST_PROTOCOL = 1
SEALED = 2  # from this version on, frames are sealed (`rpc.seal`)


class ProtocolMismatch(MinflinkError):
    """Two processes have no version of the protocol in common."""

    code = "rpc-version"
    consequence = Consequence.FATAL


class ProtocolRange(NamedTuple):
    """All versions from `oldest` to `newest`."""

    oldest: int
    newest: int

    def meets(self, other: ProtocolRange) -> bool:
        """Whether both contain the same version."""
        return max(self.oldest, other.oldest) <= min(self.newest, other.newest)

    def __str__(self) -> str:
        return str(self.newest) if self.oldest == self.newest else f"{self.oldest} to {self.newest}"


SPOKEN = ProtocolRange(OLDEST_PROTOCOL, PROTOCOL_VERSION)


def agree(here: ProtocolRange, there: ProtocolRange, *, other: str) -> int:
    """Return the newest version that both sides speak. `other` names the other side. Raises ProtocolMismatch."""
    if here.meets(there):
        return min(here.newest, there.newest)
    older = other if there.newest < here.newest else "this process"
    raise ProtocolMismatch(
        f"{other} speaks version {there} of the protocol, this process {here}",
        hint=f"the older side is {older}: upgrade minflinkd there and start it again",
    )
