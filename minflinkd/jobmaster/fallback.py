"""What a job does if its latest checkpoint is damaged: whether it may go on from an earlier one (C28). Pure.

Going on from an earlier checkpoint repeats all input since then. What that means differs by sink:

- at-least-once: rows may come again after any restart, so they may come again now;
- rows with a key: a row replaces the same row, so a repetition changes nothing in the end;
- exactly-once: what later checkpoints have published would be published a second time. Only if these have published
  nothing, the output of the job is the same as without the damage.

So a job goes on by itself, unless an exactly-once sink has published, or may have published, what it would repeat.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from minflinkd.checkpoint.damage import CheckpointDamaged, Damage, listed
from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.jobgraph.delivery import delivery_in, key_of
from minflinkd.jobgraph.model import Delivery, JobGraph, OnDamage, Sink
from minflinkd.runtime.errors import Consequence, ErrorInfo, Kind, MinflinkError
from minflinkd.runtime.ids import VertexId
from minflinkd.storage.publication import SinkTransaction

Damaged = Mapping[int, tuple[Damage, ...]]  # by checkpoint


class NoWholeCheckpoint(MinflinkError):
    """All checkpoints of the job are damaged. A start without state would lose it without a word."""

    code = "no-whole-checkpoint"
    consequence = Consequence.REFUSED
    kind = Kind.DAMAGED


class RestoreWouldRepeat(MinflinkError):
    """The job could only go on from a checkpoint after which an exactly-once sink has published more."""

    code = "restore-would-repeat"
    consequence = Consequence.REFUSED
    kind = Kind.DAMAGED


class Repeats(Enum):
    NOTHING = "nothing"  # no output since the earlier checkpoint can be seen
    ALLOWED = "allowed"  # the sink's guarantee allows the repetition
    TWICE = "twice"  # rows that can be seen, or may be, would come a second time


@dataclass(frozen=True)
class SinkFinding:
    """What a sink would repeat. `why`: part of a sentence about the sink."""

    sink: VertexId
    repeats: Repeats
    why: str


@dataclass(frozen=True)
class FallBack:
    """The job goes on from checkpoint `to`, since the later ones are `damaged`."""

    to: CompletedCheckpoint
    damaged: Damaged
    sinks: tuple[SinkFinding, ...]

    def warning(self, now_ms: int) -> ErrorInfo:
        """Return what users must know: what is skipped, and what is repeated."""
        seconds = max(0, now_ms - self.to.triggered_ms) / 1000
        told = "; ".join(f"sink {one.sink}: {one.why}" for one in self.sinks) or "the job has no sinks"
        return ErrorInfo(
            code=CheckpointDamaged.code,
            message=(
                f"{named(self.damaged)}. The job goes on from checkpoint {self.to.checkpoint_id}, and processes the "
                f"input of the {seconds:.0f} s since then again; {told}"
            ),
            consequence=Consequence.RETRYABLE,
            kind=Kind.DAMAGED,
            hint="the damaged files are kept until later checkpoints take their place: find out what damaged them",
        )


def named(damaged: Damaged) -> str:
    """Name damaged checkpoints and their files, the latest first."""
    return "; ".join(
        f"checkpoint {number} is damaged ({listed(damage)})" for number, damage in sorted(damaged.items(), reverse=True)
    )


def finding_by_guarantee(graph: JobGraph, sink_id: VertexId, sink: Sink) -> SinkFinding | None:
    """Return the finding if the sink's guarantee is enough to decide; None if it depends on what was published."""
    if key_of(sink):
        return SinkFinding(sink_id, Repeats.ALLOWED, "a row replaces the row with the same key")
    if delivery_in(graph, sink) is Delivery.AT_LEAST_ONCE:
        return SinkFinding(sink_id, Repeats.ALLOWED, "it is at-least-once, and gets rows again")
    return None


def transactions_of(checkpoints: Iterable[CompletedCheckpoint], sink: str) -> list[SinkTransaction]:
    return [t for c in checkpoints for task in c.tasks for t in task.transactions if t.sink == sink]


def finding_by_tokens(
    sink_id: VertexId,
    point: CompletedCheckpoint,
    later: Sequence[CompletedCheckpoint],
    unreadable: Iterable[int],
) -> SinkFinding:
    """Decide for a sink that commits by itself. Only the later checkpoints say whether there was anything to commit.

    `point`: the earlier checkpoint, with all that is owed up to it. `later`: those after it, in the order of ids.
    """
    if lost := sorted(unreadable):
        why = f"the metadata of checkpoint {lost[0]} would say what it has committed, and cannot be read"
        return SinkFinding(sink_id, Repeats.TWICE, why)
    if not follow_one_another(point, later):
        why = "checkpoints in between were deleted, and may have committed rows"
        return SinkFinding(sink_id, Repeats.TWICE, why)
    covered = {token for t in transactions_of([point], sink_id) for token in t.tokens}
    for transaction in transactions_of(later, sink_id):
        if not covered.issuperset(transaction.tokens):
            why = f"checkpoint {transaction.checkpoint_id} may have committed rows"
            return SinkFinding(sink_id, Repeats.TWICE, why)
    return SinkFinding(sink_id, Repeats.NOTHING, "nothing was committed since then")


def follow_one_another(point: CompletedCheckpoint, later: Sequence[CompletedCheckpoint]) -> bool:
    """Whether no completed checkpoint between these is missing: each counts all before it."""
    if point.counts is None:
        return False
    expected = point.counts.completed
    for checkpoint in later:
        expected += 1
        if checkpoint.counts is None or checkpoint.counts.completed != expected:
            return False
    return True


def decide(fall_back: FallBack, on_damage: OnDamage, *, directory: str) -> None:
    """Raise RestoreWouldRepeat if the job must not go on from the earlier checkpoint.

    `directory`: the URI of the directory of the job's checkpoints.
    """
    repeated = [one for one in fall_back.sinks if one.repeats is Repeats.TWICE]
    if not repeated or on_damage is OnDamage.FALL_BACK_AND_REPEAT:
        return
    told = "; ".join(f"exactly-once sink {one.sink}: {one.why}" for one in repeated)
    latest, to = max(fall_back.damaged), fall_back.to.checkpoint_id
    raise RestoreWouldRepeat(
        f"{named(fall_back.damaged)}. Checkpoint {to} is whole, but would publish rows a second time: {told}",
        hint=(
            f"put the files back from a copy and start the job from {directory}/chk-{latest}; or start it from "
            f"{directory}/chk-{to}, if rows may come twice or you remove them first. With checkpointing.on-damage: "
            "fall-back-and-repeat in the job file, a job does so by itself"
        ),
    )


def none_whole(damaged: Damaged, *, directory: str) -> NoWholeCheckpoint:
    latest = max(damaged)
    return NoWholeCheckpoint(
        f"the job has no whole checkpoint: {named(damaged)}",
        hint=(
            f"put the files back from a copy and start the job from {directory}/chk-{latest}; or start it from a "
            "savepoint, or at offsets (docs/savepoints.md)"
        ),
    )
