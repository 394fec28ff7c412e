"""Records of checkpoints of two tasks, and statistics made of them."""

from __future__ import annotations

from msgspec import structs

from minflinkd.checkpoint import statistics as s
from minflinkd.checkpoint.causes import CheckpointKind, FailureCause
from tests.unit.checkpoint.builders import A1, B1, ERROR, NOON, A, B, snapshot


def record(number: int, status: s.CheckpointStatus = s.CheckpointStatus.COMPLETED, ms: int = 100) -> s.CheckpointRecord:
    ended = status is s.CheckpointStatus.COMPLETED
    aligned = {"wait_ms": 30.0, "alignment_ms": 20.0, "alignment_bytes": 4096, "files_uploaded": 1}
    a = structs.replace(snapshot(number, A, A1, full=1000, uploaded=200), **aligned)
    b = structs.replace(snapshot(number, B, B1, full=500, uploaded=50), **aligned)
    tasks = (s.TaskRecord.of(a, NOON + ms // 2), s.TaskRecord.of(b, NOON + ms))
    failed = status is s.CheckpointStatus.FAILED
    return s.CheckpointRecord(
        checkpoint_id=number,
        kind=CheckpointKind.PERIODIC,
        status=status,
        triggered_ms=NOON,
        num_tasks=2,
        tasks=tasks if ended else tasks[:1],
        failed_ms=NOON + 900 if failed else 0,
        cause=FailureCause.DECLINED if failed else None,
        error=ERROR if failed else None,
        failed_task=B if failed else None,
        missing=() if ended else (B,),
        path=f"file:///c/chk-{number}/_metadata" if ended else "",
        files_created=2 if ended else 1,
    )


def after(*records: s.CheckpointRecord) -> s.CheckpointStatistics:
    statistics = s.CheckpointStatistics()
    for one in records:
        statistics = s.recorded(statistics, one)
    return statistics
