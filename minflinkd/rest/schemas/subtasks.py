"""What Flink says of the subtasks of a vertex, beside the vertex itself."""

from __future__ import annotations

from typing import Any

import msgspec

from minflinkd.rest.schemas.answer import Answer
from minflinkd.rest.schemas.jobs import IOMetrics


class SubtaskStateTimes(Answer, frozen=True, kw_only=True):
    subtask: int
    endpoint: str
    duration: int
    timestamps: dict[str, int]  # when it entered each state; 0: never


class SubtasksTimes(Answer, frozen=True, kw_only=True):
    id: str
    name: str
    now: int
    subtasks: tuple[SubtaskStateTimes, ...]


class VertexOnTaskManager(Answer, frozen=True, kw_only=True, rename="kebab"):
    endpoint: str
    status: str
    start_time: int
    end_time: int
    duration: int
    metrics: IOMetrics
    status_counts: dict[str, int]
    taskmanager_id: str
    aggregated: dict[str, dict[str, dict[str, int]]]


class VertexTaskManagers(Answer, frozen=True, kw_only=True):
    id: str
    name: str
    now: int
    taskmanagers: tuple[VertexOnTaskManager, ...]


class SubtaskBackPressure(Answer, frozen=True, kw_only=True):
    """Shares of the time, lately."""

    subtask: int
    attempt_number: int = msgspec.field(name="attempt-number")
    level: str = msgspec.field(name="backpressureLevel")
    old_level: str = msgspec.field(name="backpressure-level")  # Flink sends both names
    ratio: float
    idle_ratio: float = msgspec.field(name="idleRatio")
    busy_ratio: float = msgspec.field(name="busyRatio")
    others: tuple[Any, ...] = msgspec.field(name="other-concurrent-attempts", default=())


class BackPressure(Answer, frozen=True, kw_only=True):
    """`status` is ok, or deprecated as long as nothing is known of the task."""

    status: str
    level: str | None = msgspec.field(name="backpressureLevel")
    old_level: str | None = msgspec.field(name="backpressure-level")
    end_timestamp: int | None = msgspec.field(name="end-timestamp")
    subtasks: tuple[SubtaskBackPressure, ...] | None


class UserAccumulator(Answer, frozen=True, kw_only=True):
    name: str
    type: str
    value: str


class JobAccumulators(Answer, frozen=True, kw_only=True):
    """Empty: Spark's accumulators belong to its jobs, and a task has one for each micro-batch."""

    job: tuple[UserAccumulator, ...] = msgspec.field(name="job-accumulators", default=())
    user: tuple[UserAccumulator, ...] = msgspec.field(name="user-task-accumulators", default=())
    serialized: dict[str, str] = msgspec.field(name="serialized-user-task-accumulators", default={})


class VertexAccumulators(Answer, frozen=True, kw_only=True):
    id: str
    user: tuple[UserAccumulator, ...] = msgspec.field(name="user-accumulators", default=())


class SubtaskAccumulators(Answer, frozen=True, kw_only=True):
    subtask: int
    attempt: int
    endpoint: str
    user: tuple[UserAccumulator, ...] = msgspec.field(name="user-accumulators", default=())


class SubtasksAccumulators(Answer, frozen=True, kw_only=True):
    id: str
    parallelism: int
    subtasks: tuple[SubtaskAccumulators, ...]


class AttemptAccumulators(Answer, frozen=True, kw_only=True):
    subtask: int
    attempt: int
    id: str
    user: tuple[UserAccumulator, ...] = msgspec.field(name="user-accumulators", default=())
