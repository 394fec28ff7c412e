"""rpc.json of the state directory: where TaskManagers that outlive a daemon find the next one (R7, A15a)."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import msgspec

from minflinkd import __version__
from minflinkd.rpc.protocol_range import SPOKEN, ProtocolRange
from minflinkd.runtime.errors import MALFORMED

FILE = "rpc.json"


class MeetingPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The port of the last daemon, and the versions of the protocol that it spoke with its TaskManagers.

    The previous and the next version of minflinkd also read this file: a new field needs a default.
    """

    port: int
    oldest: int
    newest: int
    version: str = ""  # of the package; for people
    tls: bool = False  # whether they used TLS

    @classmethod
    def of_this_version(cls, port: int, *, tls: bool = False) -> Self:
        return cls(port=port, oldest=SPOKEN.oldest, newest=SPOKEN.newest, version=__version__, tls=tls)

    @property
    def spoken(self) -> ProtocolRange:
        return ProtocolRange(self.oldest, self.newest)

    def finds(self, next_one: MeetingPoint) -> bool:
        """Whether TaskManagers of the last daemon find the next one, and may be able to speak with it.

        They spoke a version from this range. If the next daemon knows only a part of the range, a TaskManager may be
        too old. Then the handshake refuses it, and its tasks end as if no daemon came back.
        """
        return self.port == next_one.port and self.tls is next_one.tls and self.spoken.meets(next_one.spoken)


def last_meeting_point(state: Path) -> MeetingPoint | None:
    """Return the last daemon's meeting point, or None if there is none or the file cannot be read."""
    try:
        return msgspec.json.decode((state / FILE).read_bytes(), type=MeetingPoint)
    except (OSError, *MALFORMED):
        return None
