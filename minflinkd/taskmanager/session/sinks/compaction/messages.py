"""What the process of a compaction is asked, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from minflinkd.jobgraph.model import Sink
from minflinkd.runtime.units import decode_unit, encode_unit


@dataclass(frozen=True)
class Joined:
    """`files` were joined `into` fewer. `overtaken`: commits that were given up, because another one was first."""

    files: int = 0
    into: int = 0
    overtaken: int = 0

    def __add__(self, other: Joined) -> Joined:
        return Joined(self.files + other.files, self.into + other.into, self.overtaken + other.overtaken)


class Request(msgspec.Struct, frozen=True):
    """`sink` has its secrets filled in: this is never on a command line, nor in a file."""

    sink: Sink
    owner: str  # whose commits these are: `minflinkd.<job>.<sink>`
    expires: bool = True  # whether old versions are looked for, too

    def line(self) -> bytes:
        return msgspec.json.encode(self, enc_hook=encode_unit) + b"\n"

    @classmethod
    def of_line(cls, line: bytes) -> Request:
        return msgspec.json.decode(line, type=cls, dec_hook=decode_unit)


class Answer(msgspec.Struct, frozen=True):
    """What was done, also before a failure."""

    joined: Joined = Joined()
    deleted: int = 0  # files that only expired versions had
    failure: str = ""
