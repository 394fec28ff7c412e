"""One execution attempt on this TaskManager: what it is, where its files lie, and in which state it is."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace as copy

from minflinkd.rpc.messages import DeployTask, TaskMetrics, TaskState, TaskStatus
from minflinkd.rpc.snapshot import StateHandle
from minflinkd.runtime.errors import ErrorInfo
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
    """Mutable: the one place where a task executor keeps what it knows of an attempt."""

    deployment: DeployTask
    directory: Path  # a path that was never used before (C10a)
    generation: int  # of the session child that runs it
    status: TaskStatus
    known: dict[str, StateHandle] = field(default_factory=dict)  # files that the last confirmed checkpoint holds
    transactions: dict[int, tuple[SinkTransaction, ...]] = field(default_factory=dict)  # acknowledged, not confirmed
    staged: dict[str, set[str]] = field(default_factory=dict)  # by sink on an object store: files that are there
    handles: dict[int, dict[str, StateHandle]] = field(default_factory=dict)  # of acknowledged checkpoints
    aborted: set[int] = field(default_factory=set)  # checkpoints, of which a late trigger may still come
    published: set[int] = field(default_factory=set)  # likewise
    confirmed: int = 0  # the highest checkpoint that was published
    input_ended: bool = False  # said by the child, perhaps before it was known to run
    holds_artifacts: bool = False  # references in the blob cache, to be given back once
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # the status has news for the JobMaster

    @classmethod
    def of(cls, deployment: DeployTask, directory: Path, generation: int) -> Attempt:
        status = TaskStatus(attempt_id=deployment.attempt_id, task_id=deployment.task.id, state=S.DEPLOYING)
        return cls(deployment, directory, generation, status)

    @property
    def ended(self) -> bool:
        return self.status.state in ENDED

    @property
    def runs(self) -> bool:
        return self.status.state in (S.RUNNING, S.INPUT_ENDED)

    def to(self, state: TaskState, *, error: ErrorInfo | None = None, phases: dict[str, float] | None = None) -> bool:
        """Move, and say whether that changed anything. An ended attempt stays as it ended."""
        if self.ended or state is self.status.state:
            return False
        moved = move(LEGAL, self.status.state, state, what=f"attempt {self.deployment.attempt_id}")
        more = self.status.phases | (phases or {})
        self.status = copy(self.status, state=moved, error=error, phases=more)
        self.changed.set()
        return True

    def progressed(self, metrics: TaskMetrics) -> None:
        self.status = copy(self.status, metrics=metrics)
