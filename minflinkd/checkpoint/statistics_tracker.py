"""Keeps a job's checkpoint statistics (C30). Measures what the machine cannot know, and logs how checkpoints end."""

from __future__ import annotations

import msgspec
import structlog

from minflinkd.checkpoint import statistics
from minflinkd.checkpoint.advice import advice
from minflinkd.checkpoint.causes import FailureCause, Refusal
from minflinkd.checkpoint.machine.state import State, file_figures
from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.checkpoint.statistics import (
    Calls,
    CheckpointCounts,
    CheckpointRecord,
    CheckpointStatistics,
    CheckpointStatus,
    FileFigures,
    RestoreRecord,
    TaskRecord,
)
from minflinkd.checkpoint.store import CheckpointStore
from minflinkd.rpc.jobs import CheckpointsInBrief
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.errors import in_a_line
from minflinkd.storage.recording import RequestStatistics, StorageStatistics

log = structlog.get_logger(__name__)


class StatisticsTracker:
    """`interval`: seconds between two periodic checkpoints. `past`: the statistics of the job's earlier coordinator."""

    def __init__(
        self, *, store: CheckpointStore, clock: Clock, interval: float, name: str, past: CheckpointStatistics | None
    ) -> None:
        self._store = store
        self._clock = clock
        self._interval_ms = interval * 1000
        self._name = name
        self._statistics = past or CheckpointStatistics()
        self._completed_at: dict[int, float] = {}  # monotonic seconds; kept until the checkpoint is published
        self._requests_before: StorageStatistics = {}  # as of the last completed checkpoint

    def statistics(self, state: State, *, files_deleted: int) -> CheckpointStatistics:
        return msgspec.structs.replace(
            self._statistics,
            consecutive_failures=state.failures,
            consecutive_trigger_failures=state.trigger_failures,
            interval_ms=round(self._interval_ms),
            files=file_figures(state),
            calls=_calls(self._store.requests(), {}),
            files_deleted=files_deleted,
        )

    def in_brief(self, state: State) -> CheckpointsInBrief:
        last, failed = self._statistics.latest_completed, self._statistics.latest_failed
        return CheckpointsInBrief(
            completed_ms=last.latest_ack_ms if last else -1,
            duration_ms=last.duration_ms if last else 0,
            interval_ms=round(self._interval_ms),
            failed_ms=failed.failed_ms if failed else -1,
            failure=in_a_line(failed.error.message) if failed and failed.error else "",
            consecutive_failures=state.failures,
        )

    def begins(self, completed: tuple[CompletedCheckpoint, ...]) -> None:
        """Begin with the checkpoints found in the storage, in the order of ids."""
        if not completed:
            return
        known = CheckpointCounts(completed=len(completed))
        for checkpoint in completed:
            known = known.at_least(checkpoint.counts or known)
        self.counted(known)
        if self._statistics.latest_completed is None:
            records = tuple(_record(c, self._store.path_of(c.checkpoint_id)) for c in reversed(completed))
            self._statistics = msgspec.structs.replace(
                self._statistics,
                latest_completed=records[0],
                history=records[: statistics.HISTORY],
            )

    def counted(self, known: CheckpointCounts) -> None:
        """Add the counts of earlier coordinators of the job."""
        self._statistics = statistics.counted(self._statistics, known)

    def counts(self) -> CheckpointCounts:
        return statistics.counts(self._statistics)

    def counts_with_one_more(self) -> CheckpointCounts:
        """Return the counts as they will be when the checkpoint being written is complete."""
        now = self.counts()
        return msgspec.structs.replace(now, completed=now.completed + 1)

    def restored(self, checkpoint_id: int, path: str) -> None:
        record = RestoreRecord(checkpoint_id=checkpoint_id, restored_ms=self._clock.epoch_ms(), path=path)
        self._statistics = statistics.restored(self._statistics, record)

    def refused(self, reason: Refusal) -> None:
        self._statistics = statistics.refused(self._statistics, reason)

    def set_up_failed(self, cause: FailureCause) -> None:
        self._statistics = statistics.set_up_failed(self._statistics, cause)

    def published(self, number: int) -> None:
        if (since := self._completed_at.pop(number, None)) is not None:
            ms = (self._clock.monotonic() - since) * 1000
            self._statistics = statistics.published(self._statistics, number, ms)

    def copied(self, number: int, savepoint: str) -> None:
        self._statistics = statistics.copied(self._statistics, number, savepoint)

    def report(self, record: CheckpointRecord, state: State) -> None:
        if record.status is CheckpointStatus.COMPLETED:
            record = self._completed(record, file_figures(state))
        elif record.status is CheckpointStatus.FAILED:
            log.warning(
                "checkpoint failed",
                component=self._name,
                checkpoint=record.checkpoint_id,
                cause=record.cause,
                error=str(record.error) if record.error else "",
            )
        self._statistics = statistics.recorded(self._statistics, record)

    def _completed(self, record: CheckpointRecord, files: FileFigures) -> CheckpointRecord:
        number, warning = record.checkpoint_id, advice(record, self._interval_ms)
        self._completed_at[number] = self._clock.monotonic()
        log.info("checkpoint complete", component=self._name, checkpoint=number, ms=record.duration_ms)
        last = self._statistics.latest_completed
        if warning and not (last is not None and last.warning):  # once, not again for every checkpoint that follows
            log.warning(
                "checkpoints take longer than their interval", component=self._name, checkpoint=number, why=warning
            )
        requests, before = self._store.requests(), self._requests_before
        self._requests_before = requests
        return msgspec.structs.replace(
            record, path=self._store.path_of(number), warning=warning, files=files, calls=_calls(requests, before)
        )


def _record(checkpoint: CompletedCheckpoint, path: str) -> CheckpointRecord:
    """Build a record from the metadata. Each task gets the time of the last acknowledgement."""
    return CheckpointRecord(
        checkpoint_id=checkpoint.checkpoint_id,
        kind=checkpoint.kind,
        status=CheckpointStatus.COMPLETED,
        triggered_ms=checkpoint.triggered_ms,
        num_tasks=len(checkpoint.tasks),
        tasks=tuple(TaskRecord.of(snapshot, checkpoint.completed_ms) for snapshot in checkpoint.tasks),
        path=path,
        files_created=len({name for snapshot in checkpoint.tasks for name in snapshot.physical_files}),
    )


def _calls(requests: StorageStatistics, before: StorageStatistics) -> dict[str, Calls]:
    """Count calls by kind. Metadata writes are kept apart from physical file writes, which TaskManagers make."""
    nothing = RequestStatistics()
    made = {}
    for kind, now in requests.items():
        earlier = before.get(kind, nothing)
        calls = Calls(count=now.requests - earlier.requests, ms=(now.seconds - earlier.seconds) * 1000)
        made["metadata" if kind == "create" else kind] = calls
    return made
