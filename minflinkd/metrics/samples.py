"""Measurements of the cluster at one moment, as plain values, in seconds and bytes."""

from __future__ import annotations

import msgspec


class CheckpointSample(msgspec.Struct, frozen=True, kw_only=True):
    completed: int = 0
    failed: int = 0
    restored: int = 0
    in_progress: int = 0
    failed_by_cause: dict[str, int] = {}
    refused: dict[str, int] = {}  # requests, by reason
    consecutive_failures: int = 0
    consecutive_trigger_failures: int = 0
    interval: float = 0.0  # 0: no periodic checkpoints
    durations: dict[str, float] = {}  # by quantile
    last_completed: float | None = None  # seconds since 1970; None: there is none
    last_duration: float = 0.0
    last_alignment: float = 0.0
    last_bytes_aligned: int = 0
    last_bytes_full: int = 0
    last_bytes_uploaded: int = 0
    physical_files: int = 0  # that retained checkpoints refer to
    logical_files: int = 0  # live segments in them
    bytes_stored: int = 0
    bytes_referenced: int = 0
    amplification: float = 1.0
    files_deleting: int = 0
    files_created: int = 0
    files_deleted: int = 0
    compactions: int = 0
    bytes_rewritten: int = 0
    damaged: int = 0  # retained ones
    verified: float | None = None  # seconds since 1970; None: not yet
    calls: dict[str, tuple[int, float]] = {}  # to the storage, by kind: number and seconds


class TaskSample(msgspec.Struct, frozen=True, kw_only=True):
    task_id: str
    rows_in: int
    rows_out: int
    batch_duration: float
    state_rows: int
    state_bytes: int
    watermark: float | None  # seconds since 1970
    offsets: dict[tuple[str, str], float] = {}  # (source, part of its offset) -> its number
    pending: dict[tuple[str, str], int] = {}  # (source, partition) -> records of Kafka that wait
    pending_records: dict[str, int] = {}  # of all partitions of a source
    bad_records: dict[str, int] = {}  # by the vertex that found them
    compacted_files: dict[str, int] = {}  # by the sink
    failed_compactions: dict[str, int] = {}
    latencies: dict[str, float] = {}  # in real-time mode: by quantile, in seconds
    latency_buckets: tuple[tuple[str, int], ...] = ()  # rows below each bound in seconds, and `+Inf`: all
    latency_sum: float = 0.0  # seconds
    cut_pause: float | None = None  # in real-time mode: seconds
    output_backlog: int = 0  # bytes
    backpressured: bool = False
    backpressured_time: float = 0.0


class RepeatedSample(msgspec.Struct, frozen=True, kw_only=True):
    """A job that restarts repeatedly: its failures in a row, and the place of the last one; "": no place."""

    failures: int
    task: str
    task_manager: str


class AutoscalerSample(msgspec.Struct, frozen=True, kw_only=True):
    """By slot sharing group, but for `changes`: how many there were since the daemon leads, by direction."""

    slots: dict[str, int]
    wanted: dict[str, float]
    utilization: dict[str, float]
    changes: dict[str, int]
    limited: bool


class JobSample(msgspec.Struct, frozen=True, kw_only=True):
    job_id: str
    restarts: int
    running_since: float | None = None  # seconds since 1970; None: it does not run
    on_trial: bool = False
    repeated: RepeatedSample | None = None
    hot_restarts: dict[str, int] = {}  # by outcome
    hot_restart_phases: dict[str, float] = {}  # of the last finished one: seconds since its request
    tasks: tuple[TaskSample, ...] = ()
    checkpoints: CheckpointSample | None = None
    autoscaler: AutoscalerSample | None = None  # None: the job has none, or it is off


class BlobSample(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of the BlobServer."""

    stored: dict[str, int]  # blobs by state
    stored_bytes: dict[str, int]  # by state
    received_bytes: int
    sent_bytes: int
    transfers_running: int
    transfers_waiting: int
    deleted: int  # by the cleanup
    corrupt: int


class LeadershipSample(msgspec.Struct, frozen=True, kw_only=True):
    since_ms: int = 0
    epoch: int = 0
    standbys: int = 0
    without_leader: float = 0.0  # seconds
    adopted_tasks: int = 0  # since this daemon began to lead


class JvmSample(msgspec.Struct, frozen=True, kw_only=True):
    """The JVM of a TaskManager's session."""

    heap_used: float
    heap_max: float
    non_heap_used: float
    collections: dict[str, tuple[float, float]]  # by collector: number and seconds
    gc_share: float | None = None  # of the last minute, from 0 to 1; None: not known yet


class ClusterSample(msgspec.Struct, frozen=True, kw_only=True):
    """None: the party did not answer. Its metrics are then left out rather than shown as 0."""

    jobs_by_status: dict[str, int] | None = None
    jobs: tuple[JobSample, ...] = ()
    jobs_left_out: int = 0  # running jobs over the limit on labels
    task_managers: int | None = None
    task_managers_ready: int = 0  # with a session
    task_managers_starting: int = 0
    task_managers_lost: int = 0
    slots_total: int = 0
    slots_free: int = 0
    pending_needs: int = 0
    heartbeat_ages: dict[str, float] = {}  # seconds, by TaskManager
    disks: dict[str, tuple[float, float]] = {}  # free and all bytes of the disk with the tasks' state, by TaskManager
    jvms: dict[str, JvmSample] = {}  # by TaskManager
    memory: dict[str, dict[str, float]] = {}  # bytes that are resident, by TaskManager and kind of process
    blobs: BlobSample | None = None
