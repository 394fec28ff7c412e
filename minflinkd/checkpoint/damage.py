"""What is known of a damaged checkpoint, and the record that the job went on from an earlier one.

The record is `chk-<n>/_damaged`. It is written before anything follows from the decision: once the job has gone on from
an earlier checkpoint, nobody may restore the damaged one, even if somebody mends it later. Its staged output is gone.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from minflinkd.runtime.errors import MALFORMED, Consequence, Kind, MinflinkError

SHOWN = 3  # damaged files that a message names


class CheckpointDamaged(MinflinkError):
    """A restore found that files of the checkpoint are missing or are not what was written.

    A restart may help: the JobMaster looks for itself, and may go on from an earlier checkpoint.
    """

    code = "checkpoint-damaged"
    consequence = Consequence.RETRYABLE
    kind = Kind.DAMAGED


class Damage(msgspec.Struct, frozen=True):
    """One damaged file. `file` is relative to the directory of the job's checkpoints."""

    file: str
    why: str

    def __str__(self) -> str:
        return f"{self.file}: {self.why}"


class DamageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A damaged checkpoint. `restored`: the earlier one that the job went on from; None: none so far."""

    checkpoint_id: int
    found_ms: int = 0
    damage: tuple[Damage, ...] = ()
    restored: int | None = None


def encode(record: DamageRecord) -> bytes:
    return msgspec.json.format(msgspec.json.encode(record), indent=1)


def decode(data: bytes, checkpoint_id: int) -> DamageRecord:
    """Decode a record. One that cannot be read still says that the checkpoint must not be restored."""
    try:
        return msgspec.json.decode(data, type=DamageRecord)
    except MALFORMED as error:
        return DamageRecord(checkpoint_id=checkpoint_id, damage=(Damage("?", f"its record cannot be read: {error}"),))


def listed(damage: Iterable[Damage]) -> str:
    """Return the damage as a part of a sentence."""
    found = list(damage)
    more = f", and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return "; ".join(map(str, found[:SHOWN])) + more
