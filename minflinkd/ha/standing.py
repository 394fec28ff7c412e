"""The leader, since when it leads, and the standbys, as the leader shows them to people (A13)."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

from minflinkd.ha.service import Member

_NOBODY = Member(name="", url="")


@dataclass(frozen=True)
class Standing:
    leader: Member = _NOBODY
    standbys: tuple[Member, ...] = ()
    trouble: str = ""  # why the coordination service cannot be used at present


Standings = Callable[[], Standing]


def member_name() -> str:
    """Return the name of this daemon, for people."""
    return f"{socket.gethostname()}:{os.getpid()}"
