"""Rescales in Flink's form: hot restarts that changed how parallel a job is."""

from __future__ import annotations

import msgspec

from minflinkd.rest.schemas.answer import Answer
from minflinkd.rest.schemas.taskmanagers import ResourceProfile


class RescaledVertex(Answer, frozen=True, kw_only=True, rename="camel"):
    job_vertex_id: str
    job_vertex_name: str
    slot_sharing_group_id: str
    slot_sharing_group_name: str
    desired_parallelism: int
    sufficient_parallelism: int
    pre_rescale_parallelism: int
    post_rescale_parallelism: int | None  # None: it did not come to that


class RescaledGroup(Answer, frozen=True, kw_only=True, rename="camel"):
    slot_sharing_group_id: str
    slot_sharing_group_name: str
    request_resource_profile: ResourceProfile
    desired_slots: int
    minimal_required_slots: int
    pre_rescale_slots: int
    post_rescale_slots: int | None
    acquired_resource_profile: ResourceProfile | None


class SchedulerState(Answer, frozen=True, kw_only=True):
    state: str
    entered: int = msgspec.field(name="enterTimestampInMillis")
    left: int | None = msgspec.field(name="leaveTimestampInMillis")
    duration: int | None = msgspec.field(name="durationInMillis")
    exception: str | None = msgspec.field(name="stringifiedException")


class Rescale(Answer, frozen=True, kw_only=True, rename="camel"):
    rescale_uuid: str
    resource_requirements_uuid: str
    rescale_attempt_id: int
    vertices: dict[str, RescaledVertex]
    slots: dict[str, RescaledGroup]
    scheduler_states: tuple[SchedulerState, ...]
    start: int = msgspec.field(name="startTimestampInMillis")
    end: int | None = msgspec.field(name="endTimestampInMillis")
    terminal_state: str | None  # COMPLETED, FAILED or IGNORED; None: under way
    trigger_cause: str
    terminated_reason: str | None


class RescaleCounts(Answer, frozen=True, kw_only=True, rename="camel"):
    ignored: int
    in_progress: int
    completed: int
    failed: int


class LatestRescales(Answer, frozen=True, kw_only=True):
    completed: Rescale | None
    failed: Rescale | None
    ignored: Rescale | None


class RescalesOverview(Answer, frozen=True, kw_only=True, rename="camel"):
    rescales_counts: RescaleCounts
    latest: LatestRescales


class DurationStats(Answer, frozen=True, kw_only=True):
    """Milliseconds."""

    min: int
    max: int
    avg: int
    p50: float
    p90: float
    p95: float
    p99: float
    p999: float


class RescalesSummary(Answer, frozen=True, kw_only=True):
    counts: RescaleCounts = msgspec.field(name="rescalesCounts")
    all: DurationStats = msgspec.field(name="rescalesDurationStatsInMillis")
    completed: DurationStats = msgspec.field(name="completedRescalesDurationStatsInMillis")
    ignored: DurationStats = msgspec.field(name="ignoredRescalesDurationStatsInMillis")
    failed: DurationStats = msgspec.field(name="failedRescalesDurationStatsInMillis")


class RescaleConfig(Answer, frozen=True, kw_only=True):
    """None: minflinkd has no such setting. It rescales when it is asked to, and at once."""

    history: int = msgspec.field(name="rescaleHistoryMax")
    mode: str | None = msgspec.field(name="schedulerExecutionMode", default=None)
    resource_wait: int | None = msgspec.field(name="submissionResourceWaitTimeoutInMillis", default=None)
    stabilization: int | None = msgspec.field(name="submissionResourceStabilizationTimeoutInMillis", default=None)
    slot_idle: int | None = msgspec.field(name="slotIdleTimeoutInMillis", default=None)
    cooldown: int | None = msgspec.field(name="executingCooldownTimeoutInMillis", default=None)
    executing: int | None = msgspec.field(name="executingResourceStabilizationTimeoutInMillis", default=None)
    delay: int | None = msgspec.field(name="maximumDelayForTriggeringRescaleInMillis", default=None)
    failed_checkpoints: int | None = msgspec.field(name="rescaleOnFailedCheckpointCount", default=None)
