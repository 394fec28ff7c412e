"""Which versions of the protocol a process speaks, and which one two processes agree on (A15a).

The protocol's version has nothing to do with the version of the package: most releases change no message in a way that
the release before would not understand, and leave it as it is. It is raised for a change that the rules of
`rpc.messages` do not allow. A daemon then speaks two versions, its own and the one before, so that it takes over the
TaskManagers of the daemon before it; `Connection.protocol` says which of them the other side speaks.
"""

from __future__ import annotations

from typing import NamedTuple

from minflinkd.runtime.errors import Consequence, MinflinkError

PROTOCOL_VERSION = 1
OLDEST_PROTOCOL = 1  # the version before PROTOCOL_VERSION, once there is one


class ProtocolMismatch(MinflinkError):
    """Two processes have no version of the protocol in common."""

    code = "rpc-version"
    consequence = Consequence.FATAL


class ProtocolRange(NamedTuple):
    """All versions from `oldest` to `newest`."""

    oldest: int
    newest: int

    def meets(self, other: ProtocolRange) -> bool:
        """Whether there is a version in both."""
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
