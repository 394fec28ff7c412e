"""What a process knows of the other end of a connection, once it is let in."""

from __future__ import annotations

from dataclasses import dataclass

from minflinkd.rpc.parties import Party
from minflinkd.rpc.protocol_range import PROTOCOL_VERSION
from minflinkd.rpc.seal import Seals


@dataclass(frozen=True)
class Peer:
    """Without `seals`, frames carry none: nobody can be in between, or the other end is of an earlier version."""

    parties: frozenset[Party]  # that it may speak for
    protocol: int = PROTOCOL_VERSION
    seals: Seals | None = None
