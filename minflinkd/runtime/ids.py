"""Identities (resources.md R1): created here, and parsed here before they get into a path or a message.

Defines the form of every id, not who may use it.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import NewType

from minflinkd.runtime.errors import InvalidId

JobId = NewType("JobId", str)  # 32 hex digits, as Flink's
ResourceId = NewType("ResourceId", str)  # one TaskManager process, `tm-` and 12 hex digits
InstanceId = NewType("InstanceId", str)  # one registration of one TaskManager with one ResourceManager
AllocationId = NewType("AllocationId", str)  # created by the JobMaster for a slot request; retries keep it
AttemptId = NewType("AttemptId", str)  # one execution attempt of one task
LeaderId = NewType("LeaderId", str)  # fencing token: every leader has a new one; a later one is greater
VertexId = NewType("VertexId", str)  # stable between versions of a job; also the name of its SQL view
TaskId = NewType("TaskId", str)  # id of the task's first vertex in topological order

HEX32 = re.compile(r"[0-9a-f]{32}")
RESOURCE_ID = re.compile(r"tm-[0-9a-z][0-9a-z-]{0,40}")
VERTEX_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


class IdSource:
    """Creates ids from an injected source of randomness, so that a simulation with a seed repeats exactly.

    `epoch` is the epoch of the daemon's leadership (A11). It makes every LeaderId greater, as text, than all ids
    of earlier daemons; a counter makes it greater than all earlier ids of this daemon. So a follower can tell which of
    two tokens is later, and accepts no message of an earlier leader once it has seen a later one.
    """

    def __init__(self, rng: random.Random | None = None, *, epoch: int = 0) -> None:
        self._rng = rng or random.SystemRandom()
        self._epoch = epoch
        self._leaders = 0

    def hex(self, bits: int = 128) -> str:
        return f"{self._rng.getrandbits(bits):0{bits // 4}x}"

    def job(self) -> JobId:
        return JobId(self.hex())

    def resource(self) -> ResourceId:
        return ResourceId("tm-" + self.hex(48))

    def instance(self) -> InstanceId:
        return InstanceId(self.hex())

    def allocation(self) -> AllocationId:
        return AllocationId(self.hex())

    def attempt(self) -> AttemptId:
        return AttemptId(self.hex())

    def leader(self) -> LeaderId:
        self._leaders += 1
        return LeaderId(f"{self._epoch:08x}{self._leaders:08x}{self.hex(64)}")


def epoch_of(leader_id: LeaderId | None) -> int:
    """Return the epoch of the leadership in which the id was made (A11); 0 if the id has none."""
    return int(leader_id[:8], 16) if leader_id is not None and HEX32.fullmatch(leader_id) else 0


@dataclass(frozen=True)
class Chance:
    """The randomness that a job's decisions may use. It is injected, so that a seed repeats a run exactly."""

    ids: IdSource
    rng: random.Random


def _parse(kind: str, pattern: re.Pattern[str], text: str, want: str) -> str:
    if not pattern.fullmatch(text):
        raise InvalidId(f"{text[:80]!r} is not a {kind}", hint=want)
    return text


def parse_job_id(text: str) -> JobId:
    """Raises InvalidId."""
    return JobId(_parse("job id", HEX32, text, "32 hexadecimal digits, as `minflinkd list` prints"))


def parse_resource_id(text: str) -> ResourceId:
    """Raises InvalidId."""
    return ResourceId(_parse("TaskManager id", RESOURCE_ID, text, "as `minflinkd taskmanagers` prints"))


def parse_attempt_id(text: str) -> AttemptId:
    """Raises InvalidId."""
    return AttemptId(_parse("execution attempt id", HEX32, text, "32 hexadecimal digits"))


def parse_vertex_id(text: str) -> VertexId:
    """Raises InvalidId."""
    return VertexId(_parse("vertex id", VERTEX_ID, text, "a letter or _, then letters, digits and _, at most 64"))


def is_vertex_id(text: str) -> bool:
    return VERTEX_ID.fullmatch(text) is not None
