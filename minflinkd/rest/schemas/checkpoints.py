"""Checkpoints as far as they are read here; the whole of Flink's JSON is made by `checkpoint.statistics`."""

from __future__ import annotations

import msgspec

from minflinkd.rest.schemas.answer import Answer


class CheckpointCounts(Answer, frozen=True, kw_only=True):
    restored: int = 0
    total: int = 0
    in_progress: int = 0
    completed: int = 0
    failed: int = 0


class Checkpoint(Answer, frozen=True, kw_only=True):
    id: int
    status: str
    is_savepoint: bool = False
    trigger_timestamp: int = -1
    end_to_end_duration: int = 0
    state_size: int = 0
    checkpointed_size: int = 0
    num_subtasks: int = 0
    num_acknowledged_subtasks: int = 0
    external_path: str | None = None
    failure_message: str | None = None


class RestoredCheckpoint(Answer, frozen=True, kw_only=True):
    id: int
    restore_timestamp: int = -1


class LatestCheckpoints(Answer, frozen=True, kw_only=True):
    completed: Checkpoint | None = None
    failed: Checkpoint | None = None
    restored: RestoredCheckpoint | None = None


class Checkpoints(Answer, frozen=True, kw_only=True):
    counts: CheckpointCounts = CheckpointCounts()
    latest: LatestCheckpoints = LatestCheckpoints()
    history: tuple[Checkpoint, ...] = ()
    failed_by_cause: dict[str, int] = msgspec.field(default_factory=dict)
