"""What the advice says about a checkpoint that took longer than the interval (C42)."""

from __future__ import annotations

import pytest
from msgspec import structs

from minflinkd.checkpoint.advice import advice
from minflinkd.checkpoint.causes import CheckpointKind
from minflinkd.checkpoint.statistics import CheckpointRecord, CheckpointStatus, TaskRecord
from tests.unit.checkpoint.builders import A1, B1, NOON, A, B, snapshot


def record(ms: int = 3000, metadata_ms: float = 0.0, **of_the_last: float) -> CheckpointRecord:
    quick = TaskRecord.of(snapshot(1, A, A1), NOON + 100)
    last = TaskRecord.of(snapshot(1, B, B1), NOON + ms)
    fields = {"wait_ms": 0.0, "sync_ms": 1.0, "async_ms": 2.0} | of_the_last
    return CheckpointRecord(
        checkpoint_id=1,
        kind=CheckpointKind.PERIODIC,
        status=CheckpointStatus.COMPLETED,
        triggered_ms=NOON,
        num_tasks=2,
        tasks=(quick, structs.replace(last, **fields)),
        metadata_ms=metadata_ms,
    )


@pytest.mark.parametrize(
    ("slow", "said"),
    [
        ({"wait_ms": 2900.0, "alignment_ms": 0.0}, ["the micro-batch in progress of task b", "maxFilesPerTrigger"]),
        ({"wait_ms": 2900.0, "alignment_ms": 2800.0}, ["aligning the inputs of task b", "parallelism"]),
        ({"sync_ms": 2900.0}, ["the links of the snapshot of task b", "local recovery"]),
        ({"async_ms": 2900.0, "bytes_full": 100, "bytes_uploaded": 90}, ["the upload of task b", "incremental"]),
        ({"async_ms": 2900.0, "bytes_full": 100, "bytes_uploaded": 5}, ["the upload of task b", "faster storage"]),
    ],
)
def test_the_largest_part_is_named_with_what_to_change(slow: dict[str, float], said: list[str]) -> None:
    """The advice concerns the interval, incremental checkpoints or local recovery (C42)."""
    text = advice(record(**slow), 1000)
    assert "it took 3.0 s, longer than the interval of 1 s" in text
    assert "2.9 s of it" in text or "2.8 s of it" in text
    assert text.endswith("or raise execution.checkpointing.interval")
    assert all(part in text for part in said)


def test_a_task_that_only_waited_to_finish_the_files_it_shares_is_not_blamed() -> None:
    """It acknowledges after the slow one, which wrote into the same files (F1)."""
    waited = record(ms=3000, async_ms=100.0)
    quick, last = waited.tasks
    slow = structs.replace(quick, acknowledged_ms=last.acknowledged_ms - 1, wait_ms=2900.0, alignment_ms=2900.0)
    text = advice(structs.replace(waited, tasks=(slow, last)), 1000)
    assert "2.9 s of it for aligning the inputs of task a" in text


def test_metadata_that_takes_long_is_no_tasks_fault() -> None:
    text = advice(record(ms=100, metadata_ms=2000.0), 1000)
    assert "it took 2.1 s" in text
    assert "2.0 s of it for writing the metadata: use a faster storage" in text


@pytest.mark.parametrize(("ms", "interval"), [(1000, 1000), (999, 1000), (3000, 0)])
def test_a_checkpoint_within_the_interval_or_without_one_says_nothing(ms: int, interval: int) -> None:
    assert advice(record(ms), interval) == ""
