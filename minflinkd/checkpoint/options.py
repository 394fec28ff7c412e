"""The checkpoint settings of a job, after its own settings were merged with the daemon's options."""

from __future__ import annotations

from dataclasses import dataclass

from minflinkd.jobgraph.model import CheckpointMode, OnDamage


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """Times in seconds."""

    interval: float = 0.0
    """Between two periodic triggers; 0 turns them off."""
    timeout: float = 600.0
    """Until a checkpoint that is not acknowledged by all tasks expires."""
    min_pause: float = 0.0
    """Between the end of one checkpoint and the next trigger."""
    max_concurrent: int = 1
    """Checkpoints in flight at the same time."""
    num_retained: int = 1
    """Completed checkpoints that are kept."""
    tolerable_failed: int = 0
    """Failed checkpoints in a row that the job survives."""
    epoch: int = 1
    """Of the leader; part of every physical file's name."""
    mode: CheckpointMode = CheckpointMode.EXACTLY_ONCE
    alignment_timeout: float = 0.0
    """After so much alignment a checkpoint becomes unaligned; 0: never. Only shown here: the tasks see to it."""
    retain_on_cancellation: bool = False
    """Keep the checkpoints of a cancelled job."""
    orphan_grace: float = 3600.0
    """A physical file to which nothing refers is deleted before so much time has passed, and not before half of it."""
    on_damage: OnDamage = OnDamage.REFUSE
    """What the job does if it could only go on from an earlier checkpoint and would publish rows twice."""
    scrub_interval: float = 0.0
    """Between two rounds that verify the retained checkpoints; 0: none."""
    scrub_rate: float = 16 * 1024 * 1024
    """Bytes a second that such a round reads."""
    hooks: tuple[str, ...] = ()
    """Names of the master hooks that are called before the tasks (C27)."""
