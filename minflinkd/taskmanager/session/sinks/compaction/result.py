"""What a compaction has done, and what the process that does it is asked and answers."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from minflinkd.jobgraph.model import Sink
from minflinkd.runtime.units import decode_unit, encode_unit


@dataclass(frozen=True)
class Joined:
    """`files` were joined `into` fewer, by so many commits. `overtaken`: given up, because another writer was first."""

    files: int = 0
    into: int = 0
    commits: int = 0
    overtaken: int = 0

    def __add__(self, other: Joined) -> Joined:
        return Joined(
            self.files + other.files,
            self.into + other.into,
            self.commits + other.commits,
            self.overtaken + other.overtaken,
        )


class Asked(msgspec.Struct, frozen=True):
    """`sink` has its secrets filled in: this is never on a command line, nor in a file."""

    sink: Sink
    owner: str  # whose commits these are: `minflinkd.<job>.<sink>`

    def line(self) -> bytes:
        return msgspec.json.encode(self, enc_hook=encode_unit) + b"\n"

    @classmethod
    def of_line(cls, line: bytes) -> Asked:
        return msgspec.json.decode(line, type=cls, dec_hook=decode_unit)


class Answer(msgspec.Struct, frozen=True):
    joined: Joined = Joined()
    deleted: int = 0  # files that only expired versions had
    failure: str = ""
