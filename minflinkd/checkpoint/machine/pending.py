"""One checkpoint, from its trigger until it is complete or has failed (C21)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from msgspec.structs import replace as copy

from minflinkd.checkpoint.causes import CheckpointKind, FailureCause
from minflinkd.checkpoint.machine.registry import Registry
from minflinkd.checkpoint.metadata import CompletedCheckpoint, HookState
from minflinkd.checkpoint.statistics import CheckpointRecord, CheckpointStatus, TaskRecord
from minflinkd.rpc.snapshot import TaskSnapshot
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import AttemptId, JobId, TaskId
from minflinkd.runtime.machine import move, table


class Phase(Enum):
    PENDING = "pending"  # waits for the tasks
    FINALIZING = "finalizing"  # acknowledged by all tasks; the metadata is being written
    COMPLETED = "completed"
    FAILED = "failed"


LEGAL = table(
    {
        Phase.PENDING: [Phase.FINALIZING, Phase.FAILED],
        # From here only a failed write may end it. Once the write has begun the metadata may exist, so nothing else
        # decides.
        Phase.FINALIZING: [Phase.COMPLETED, Phase.FAILED],
        Phase.COMPLETED: [],
        Phase.FAILED: [],
    }
)


@dataclass(frozen=True, kw_only=True)
class PendingCheckpoint:
    checkpoint_id: int
    request: int
    kind: CheckpointKind
    tasks: Mapping[TaskId, AttemptId]
    triggered_ms: int
    triggered_at: float  # monotonic seconds, like `now` everywhere
    deadline: float
    stop: bool = False
    full: bool = False
    phase: Phase = Phase.PENDING
    hooks: Mapping[str, bytes | None] = field(default_factory=dict)  # states; None: not answered yet
    finalizing_at: float = 0.0  # when the write of the metadata began
    triggered: frozenset[AttemptId] = frozenset()  # these have taken the trigger
    snapshots: Mapping[TaskId, TaskSnapshot] = field(default_factory=dict)
    acknowledged_ms: Mapping[TaskId, int] = field(default_factory=dict)

    def move(self, target: Phase) -> PendingCheckpoint:
        """Raises IllegalTransition."""
        return replace(self, phase=move(LEGAL, self.phase, target, what=f"checkpoint {self.checkpoint_id}"))

    def waits_for(self, snapshot: TaskSnapshot) -> bool:
        """Whether this is the first acknowledgement of an attempt that takes part."""
        return (
            self.phase is Phase.PENDING
            and not self.silent_hooks
            and self.tasks.get(snapshot.task_id) == snapshot.attempt_id
            and snapshot.task_id not in self.snapshots
        )

    def acknowledge(self, snapshot: TaskSnapshot, now: float) -> PendingCheckpoint:
        return replace(
            self,
            snapshots={**self.snapshots, snapshot.task_id: snapshot},
            acknowledged_ms={**self.acknowledged_ms, snapshot.task_id: self.time_of_day_ms(now)},
        )

    def registered(self, registry: Registry, sizes: Mapping[str, int]) -> PendingCheckpoint:
        """Return the checkpoint, acknowledged by all, with its segments registered.

        Segments that are known already are not stored a second time (F4). `sizes`: bytes of physical files.
        """
        snapshots = {task: registry.registered(taken) for task, taken in self.snapshots.items()}
        return replace(self, snapshots={task: _with_sizes(taken, sizes) for task, taken in snapshots.items()})

    def time_of_day_ms(self, now: float) -> int:
        return self.triggered_ms + round((now - self.triggered_at) * 1000)

    @property
    def silent_hooks(self) -> list[str]:
        """The hooks that have not answered. Until they do, no task is triggered."""
        return [name for name, state in self.hooks.items() if state is None]

    @property
    def silent_tasks(self) -> list[TaskId]:
        return sorted(self.tasks.keys() - self.snapshots.keys())

    @property
    def acknowledged_by_all(self) -> bool:
        return self.snapshots.keys() == self.tasks.keys()

    def written_files(self) -> frozenset[str]:
        """The physical files that tasks have handed over with their acknowledgements."""
        return frozenset(name for snapshot in self.snapshots.values() for name in snapshot.physical_files)

    def referenced_files(self) -> frozenset[str]:
        handles = {file.handle.file for snapshot in self.snapshots.values() for file in snapshot.files}
        return self.written_files() | handles

    def complete(self, job_id: JobId, epoch: int) -> CompletedCheckpoint:
        return CompletedCheckpoint(
            job_id=job_id,
            checkpoint_id=self.checkpoint_id,
            epoch=epoch,
            kind=self.kind,
            triggered_ms=self.triggered_ms,
            completed_ms=max(self.acknowledged_ms.values(), default=self.triggered_ms),
            tasks=tuple(_without_dropped(self.snapshots[task]) for task in sorted(self.snapshots)),
            hooks=tuple(HookState(name, state) for name, state in self.hooks.items() if state is not None),
        )

    def record(
        self,
        status: CheckpointStatus = CheckpointStatus.IN_PROGRESS,
        *,
        failed_ms: int = 0,
        cause: FailureCause | None = None,
        error: ErrorInfo | None = None,
        failed_task: TaskId | None = None,
        metadata_ms: float = 0.0,
    ) -> CheckpointRecord:
        return CheckpointRecord(
            checkpoint_id=self.checkpoint_id,
            kind=self.kind,
            status=status,
            triggered_ms=self.triggered_ms,
            num_tasks=len(self.tasks),
            tasks=tuple(
                TaskRecord.of(self.snapshots[task], self.acknowledged_ms[task]) for task in sorted(self.snapshots)
            ),
            missing=tuple(self.silent_tasks),
            failed_ms=failed_ms,
            cause=cause,
            error=error,
            failed_task=failed_task,
            metadata_ms=metadata_ms,
            files_created=len(self.written_files()),
        )


def _with_sizes(snapshot: TaskSnapshot, sizes: Mapping[str, int]) -> TaskSnapshot:
    """Record the sizes of the files that hold its segments now. The task may have named other files."""
    if not snapshot.file_sizes:
        return snapshot
    known = {**sizes, **snapshot.file_sizes}
    used = {file.handle.file for file in snapshot.files}
    return copy(snapshot, file_sizes={name: known[name] for name in sorted(used) if name in known})


def _without_dropped(snapshot: TaskSnapshot) -> TaskSnapshot:
    """Drop the files with no segment left in use, because every one of them was known already."""
    used = {file.handle.file for file in snapshot.files}
    return copy(snapshot, physical_files=tuple(name for name in snapshot.physical_files if name in used))
