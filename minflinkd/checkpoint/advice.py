"""What to change if checkpoints take longer than the interval at which they are triggered (C42)."""

from __future__ import annotations

from minflinkd.checkpoint.statistics import CheckpointRecord, TaskRecord

_METADATA = "writing the metadata"


def advice(record: CheckpointRecord, interval_ms: float) -> str:
    """Return the advice for a completed checkpoint; empty if it was quick enough, or if there is no interval."""
    took = record.duration_ms + record.metadata_ms
    if interval_ms <= 0 or took <= interval_ms or not record.tasks:
        return ""
    # Not the one that acknowledged last: tasks that write into the same files acknowledge when the slowest one is done.
    slowest = max(record.tasks, key=lambda task: task.wait_ms + task.sync_ms + task.async_ms)
    phase, ms, change = _largest(record, slowest)
    where = "" if phase == _METADATA else f" of task {slowest.task_id}"
    return (
        f"it took {took / 1000:.1f} s, longer than the interval of {interval_ms / 1000:g} s; "
        f"{ms / 1000:.1f} s of it for {phase}{where}: {change}, or raise execution.checkpointing.interval"
    )


def _largest(record: CheckpointRecord, task: TaskRecord) -> tuple[str, float, str]:
    incremental = task.bytes_uploaded * 2 < task.bytes_full
    phases = [
        (
            "the micro-batch in progress",
            task.wait_ms - task.alignment_ms,
            "let the sources read less per micro-batch (maxFilesPerTrigger, maxOffsetsPerTrigger)",
        ),
        (
            "aligning the inputs",
            task.alignment_ms,
            "give the vertices after the slowest input more parallelism, set checkpointing.alignment-timeout",
        ),
        (
            "the links of the snapshot",
            task.sync_ms,
            "put the TaskManagers' directories on a local disk or into memory; local recovery gets faster, too",
        ),
        (
            "the upload",
            task.async_ms,
            "take a faster storage"
            if incremental
            else "keep checkpoints incremental (most of the state was uploaded anew: it changes that fast, or earlier "
            "checkpoints fail), take a faster storage",
        ),
        (_METADATA, record.metadata_ms, "use a faster storage"),
    ]
    return max(phases, key=lambda phase: phase[1])
