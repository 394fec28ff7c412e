"""One execution attempt on this TaskManager: what it is, where its files are, and its state."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace as copy

from minflinkd.filemerging.compaction import FileUse, file_uses
from minflinkd.rpc.messages import DeployTask, OfferedTask, TaskMetrics, TaskState, TaskStatus
from minflinkd.rpc.snapshot import StateHandle, TaskSnapshot
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import LeaderId
from minflinkd.runtime.machine import move, table
from minflinkd.storage.publication import SinkTransaction

S = TaskState

LEGAL = table(
    {
        S.DEPLOYING: {S.INITIALIZING, S.CANCELING, S.CANCELED, S.FAILED},
        S.INITIALIZING: {S.RUNNING, S.CANCELING, S.FAILED},
        S.RUNNING: {S.INPUT_ENDED, S.CANCELING, S.FAILED},
        S.INPUT_ENDED: {S.CANCELING, S.FAILED},
        S.CANCELING: {S.CANCELED, S.FAILED},
        S.CANCELED: set(),
        S.FAILED: set(),
    }
)
ENDED = frozenset({S.CANCELED, S.FAILED})


@dataclass
class Attempt:
    """What a task executor knows about an attempt. Mutable; this is the only place for it."""

    deployment: DeployTask
    directory: Path  # a path that was never used before (C10a)
    generation: int  # of the session child that runs it
    status: TaskStatus
    known: dict[str, StateHandle] = field(default_factory=dict)  # files that the last confirmed checkpoint holds
    sizes: dict[str, int] = field(default_factory=dict)  # bytes of the physical files that hold `known` and `handles`
    uses: dict[str, FileUse] = field(default_factory=dict)  # of the physical files that hold `known`
    transactions: dict[int, tuple[SinkTransaction, ...]] = field(default_factory=dict)  # acknowledged, not confirmed
    staged: dict[str, set[str]] = field(default_factory=dict)  # by sink on an object store: files already staged
    handles: dict[int, dict[str, StateHandle]] = field(default_factory=dict)  # of acknowledged checkpoints
    aborted: set[int] = field(default_factory=set)  # checkpoints; a late trigger of one may still come
    published: set[int] = field(default_factory=set)  # checkpoints, likewise
    confirmed: int = 0  # the highest published checkpoint
    stops_at: int = 0  # the checkpoint after which it was told to process nothing more, unless it was aborted
    draining: bool = False  # its sources stop at what they saw when they were told
    input_ended: bool = False  # reported by the child, perhaps before the attempt was RUNNING
    holds_artifacts: bool = False  # references in the blob cache, to release once
    inherited: list[Path] = field(default_factory=list)  # directories of earlier attempts; it goes on in one of them
    failure_unreported: bool = False  # it has failed, but no JobMaster knows this
    removed: bool = False  # its directories are removed, or left to somebody who removes them
    parallelism: int = field(init=False)  # how many slots it has: as it was deployed, or resized since
    partitions: int = field(init=False)  # of its state: as asked for, then as its query has; 0: it keeps none
    leader: LeaderId = field(init=False)  # its JobMaster: the one that deployed it, or the last that has adopted it
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # the status has news for the JobMaster

    def __post_init__(self) -> None:
        self.leader = self.deployment.job_leader_id
        self.parallelism = self.deployment.task.parallelism
        self.partitions = self.deployment.partitions

    @classmethod
    def of(cls, deployment: DeployTask, directory: Path, generation: int) -> Attempt:
        status = TaskStatus(attempt_id=deployment.attempt_id, task_id=deployment.task.id, state=S.DEPLOYING)
        return cls(deployment, directory, generation, status)

    def offered(self, taking: Collection[int]) -> OfferedTask:
        """Return what a JobMaster must know to adopt it (A14a). `taking`: checkpoints whose snapshot is being taken."""
        deployed = self.deployment
        restore = deployed.restore
        return OfferedTask(
            status=self.status,
            allocation_id=deployed.allocation_id,
            attempt_number=deployed.attempt_number,
            parallelism=self.parallelism,
            partitions=self.partitions,
            version=deployed.job.version,
            restored=restore.checkpoint_id if restore is not None and not restore.root else 0,
            inputs=deployed.inputs,
            base=deployed.base,
            pending=tuple(sorted({*taking, *self.handles})),
            stops_at=self.stops_at,
            draining=self.draining,
            deployed_by=deployed.job_leader_id,
        )

    @property
    def directories(self) -> list[Path]:
        return [self.directory, *self.inherited]

    @property
    def ended(self) -> bool:
        return self.status.state in ENDED

    @property
    def runs(self) -> bool:
        return self.status.state in (S.RUNNING, S.INPUT_ENDED)

    def to(self, state: TaskState, *, error: ErrorInfo | None = None, phases: dict[str, float] | None = None) -> bool:
        """Move to `state`, and return whether that changed anything. An ended attempt stays as it ended."""
        if self.ended or state is self.status.state:
            return False
        moved = move(LEGAL, self.status.state, state, what=f"attempt {self.deployment.attempt_id}")
        more = self.status.phases | (phases or {})
        self.status = copy(self.status, state=moved, error=error, phases=more)
        self.changed.set()
        return True

    def acknowledges(self, snapshot: TaskSnapshot) -> None:
        """Record the snapshot, from the moment when the coordinator may know it."""
        handles = {file.path: file.handle for file in snapshot.files}
        self.handles[snapshot.checkpoint_id] = handles
        self.transactions[snapshot.checkpoint_id] = snapshot.transactions
        self.sizes |= snapshot.file_sizes

    def discards(self, checkpoint_id: int) -> None:
        """Forget an acknowledged checkpoint. Idempotent."""
        self.handles.pop(checkpoint_id, None)
        self.transactions.pop(checkpoint_id, None)

    def confirms(self, checkpoint_id: int) -> None:
        """Note that the checkpoint is complete and published: later ones need not upload what it holds (C12)."""
        if checkpoint_id in self.handles:
            self._knows(self.handles[checkpoint_id])
        self.confirmed = max(self.confirmed, checkpoint_id)
        for older in [number for number in self.handles if number <= checkpoint_id]:
            self.discards(older)
        self.aborted = {later for later in self.aborted if later > checkpoint_id}
        used = {handle.file for held in (self.known, *self.handles.values()) for handle in held.values()}
        self.sizes = {name: size for name, size in self.sizes.items() if name in used}

    def begins_from(self, snapshot: TaskSnapshot, checkpoint_id: int) -> None:
        """Note that the attempt was restored from a checkpoint of its own job."""
        self.sizes = dict(snapshot.file_sizes)
        self._knows({file.path: file.handle for file in snapshot.files})
        # A lower bound if the sizes were not recorded.
        self.sizes = {name: use.stored for name, use in self.uses.items()}
        self.confirmed = checkpoint_id

    def forgets_known(self) -> None:
        """Forget what the last checkpoint holds: the restored state has other files than that checkpoint."""
        self._knows({})

    def _knows(self, handles: dict[str, StateHandle]) -> None:
        self.known = handles
        self.uses = file_uses(handles.values(), self.sizes)

    def progressed(self, metrics: TaskMetrics) -> None:
        self.status = copy(self.status, metrics=metrics)
