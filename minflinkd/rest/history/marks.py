"""What happened to a job, of what the daemon knows of it at one moment. Pure: the same facts make the same marks."""

from __future__ import annotations

from collections.abc import Iterator

from minflinkd.checkpoint.causes import CheckpointKind
from minflinkd.checkpoint.statistics import CheckpointRecord, CheckpointStatistics, CheckpointStatus
from minflinkd.metrics.history.book import Mark, MarkKind
from minflinkd.rpc.jobs import FailureRecord, HotRestart, JobDetails, RecoveryRecord, RestartState
from minflinkd.runtime.errors import in_a_line

_UP = ("running", "deployed")  # phases of a recovery after which the job is up again, the best first
_RESCALE = "rescale: "  # how the cause of a restart begins by which the job grows


def marks_of(details: JobDetails, checkpoints: CheckpointStatistics | None) -> Iterator[Mark]:
    yield Mark(details.start_ms, MarkKind.SUBMITTED, f"{details.graph.name} was submitted")
    for failure in details.failures:
        yield _exception(failure)
    for recovery in details.recoveries:
        yield from _recovery(recovery)
    for restart in details.hot_restarts:
        yield _hot_restart(restart)
    if checkpoints is not None:
        yield from _checkpoints(checkpoints)
    if details.end_ms >= 0:
        yield Mark(details.end_ms, MarkKind.ENDED, str(details.status))


def _exception(failure: FailureRecord) -> Mark:
    where = f"{failure.task_name or failure.task_id}: " if failure.task_id else ""
    return Mark(failure.timestamp_ms, MarkKind.EXCEPTION, f"{where}{failure.error.code}: {_line(failure)}")


def _line(failure: FailureRecord) -> str:
    return in_a_line(failure.error.message)


def _recovery(recovery: RecoveryRecord) -> Iterator[Mark]:
    tasks = f" ({', '.join(recovery.tasks)})" if recovery.tasks else ""
    grows = recovery.cause.startswith(_RESCALE)
    kind = MarkKind.RESCALE if grows else MarkKind.RESTART
    yield Mark(recovery.failed_ms, kind, in_a_line(recovery.cause.removeprefix(_RESCALE)) + tasks)
    took = next((recovery.phases[phase] for phase in _UP if phase in recovery.phases), None)
    if took is not None:
        origin = "" if recovery.checkpoint_id is None else f" from checkpoint {recovery.checkpoint_id}"
        yield Mark(recovery.failed_ms + round(took * 1000), MarkKind.RECOVERED, f"after {took:.1f} s{origin}{tasks}")


def _hot_restart(restart: HotRestart) -> Mark:
    text = f"hot restart {restart.number}: {restart.state.value}"
    if restart.state is RestartState.COMPLETED and "running" in restart.phases:
        text += f", running after {restart.phases['running']:.1f} s"
    if restart.reason:
        text += f", for the autoscaler: {in_a_line(restart.reason)}"
    if restart.error is not None:
        text += f": {in_a_line(restart.error.message)}"
    return Mark(restart.requested_ms, MarkKind.HOT_RESTART, text)


def _checkpoints(statistics: CheckpointStatistics) -> Iterator[Mark]:
    latest = (statistics.latest_savepoint, statistics.latest_failed)
    for record in (*statistics.history, *(each for each in latest if each is not None)):
        if record.status is CheckpointStatus.FAILED:
            yield Mark(record.failed_ms, MarkKind.CHECKPOINT_FAILED, _failed(record))
        elif record.status is CheckpointStatus.COMPLETED and record.kind is CheckpointKind.SAVEPOINT:
            took = record.duration_ms / 1000
            yield Mark(record.triggered_ms, MarkKind.SAVEPOINT, f"savepoint {record.checkpoint_id}, {took:.1f} s")


def _failed(record: CheckpointRecord) -> str:
    why = in_a_line(record.error.message) if record.error is not None else record.cause or "failed"
    return f"checkpoint {record.checkpoint_id}: {why}"
