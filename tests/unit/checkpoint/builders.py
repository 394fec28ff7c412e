"""Small values for the tests of checkpoints."""

from __future__ import annotations

from minflinkd.checkpoint.causes import CheckpointKind
from minflinkd.checkpoint.machine import events as e
from minflinkd.checkpoint.machine import transitions as coordinator
from minflinkd.checkpoint.machine.state import State, check_invariants
from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.filemerging.segments import checksum, physical_file_name
from minflinkd.rpc.snapshot import StateFile, StateHandle, TaskSnapshot
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import AttemptId, JobId, ResourceId, TaskId
from minflinkd.storage.publication import SinkTransaction

JOB = JobId("0" * 31 + "1")
TM = ResourceId("tm-000000000001")
A, B = TaskId("a"), TaskId("b")
A1, B1 = AttemptId("a" * 31 + "1"), AttemptId("b" * 31 + "1")
A2, B2 = AttemptId("a" * 31 + "2"), AttemptId("b" * 31 + "2")
TASKS = {A: A1, B: B1}
ERROR = ErrorInfo(code="user-code", message="it broke")
REPORTS = e.Report | e.ReportSetUpFailure | e.ReportPublished
NOON = 1_700_000_000_000  # in ms


def name(checkpoint_id: int, attempt: AttemptId, number: int = 0, *, epoch: int = 1) -> str:
    return physical_file_name(epoch, checkpoint_id, attempt, TM, number)


def snapshot(
    checkpoint_id: int,
    task: TaskId,
    attempt: AttemptId,
    *,
    reuses: tuple[str, ...] = (),
    writes: tuple[str, ...] | None = None,
    transactions: tuple[SinkTransaction, ...] = (),
    full: int = 100,
    uploaded: int = 10,
    digest: str | None = None,
) -> TaskSnapshot:
    """Return a snapshot that refers to all of `reuses` and, unless told otherwise, writes one physical file of its own.

    Each file has one segment. Segments differ in content unless `digest` is given.
    """
    written = (name(checkpoint_id, attempt),) if writes is None else writes
    files = tuple(
        StateFile(f"state/{i}", StateHandle(file, 0, 1, digest or checksum(file.encode())))
        for i, file in enumerate((*reuses, *written))
    )
    return TaskSnapshot(
        task_id=task,
        attempt_id=attempt,
        resource_id=TM,
        checkpoint_id=checkpoint_id,
        batch_id=checkpoint_id,
        files=files,
        physical_files=written,
        transactions=transactions,
        bytes_full=full,
        bytes_uploaded=uploaded,
        sync_ms=1.0,
        async_ms=20.0,
    )


def completed(checkpoint_id: int, *tasks: TaskSnapshot, epoch: int = 1) -> CompletedCheckpoint:
    return CompletedCheckpoint(
        job_id=JOB,
        checkpoint_id=checkpoint_id,
        epoch=epoch,
        kind=CheckpointKind.PERIODIC,
        triggered_ms=NOON,
        completed_ms=NOON + 500,
        tasks=tasks or (snapshot(checkpoint_id, A, A1), snapshot(checkpoint_id, B, B1)),
    )


class Story:
    """A coordinator's machine that receives one event after the other. Its invariants are checked after each."""

    def __init__(self, store: tuple[CompletedCheckpoint, ...] = (), **options: object) -> None:
        self.state: State = coordinator.initial(JOB, CheckpointOptions(**options), store)  # type: ignore[arg-type]
        self.now = 0.0

    def tell(self, *events: e.Event) -> list[e.Command]:
        """Feed the events. Return the commands, without those for the statistics."""
        wanted: list[e.Command] = []
        for event in events:
            self.state, commands = coordinator.step(self.state, event, self.now)
            check_invariants(self.state)
            wanted += [command for command in commands if not isinstance(command, REPORTS)]
        return wanted

    def at(self, now: float, *events: e.Event) -> list[e.Command]:
        self.now = now
        return self.tell(*(events or (e.Tick(),)))

    def running(self) -> Story:
        self.tell(e.TasksRunning(TASKS))
        return self

    def acknowledged(self, checkpoint_id: int) -> list[e.Command]:
        """Let all tasks acknowledge."""
        return self.tell(*(e.Acknowledged(snapshot(checkpoint_id, task, a)) for task, a in TASKS.items()))

    def pending(self, checkpoint_id: int, request: int | None = None) -> Story:
        """Trigger a checkpoint, up to the triggers to the tasks."""
        number = checkpoint_id if request is None else request
        self.tell(e.TriggerRequested(number), e.SetUpDone(number, checkpoint_id, NOON))
        return self

    def completed(self, checkpoint_id: int) -> Story:
        """Complete a checkpoint, up to the confirmation by all tasks."""
        self.pending(checkpoint_id)
        for task, attempt in TASKS.items():
            self.tell(e.Acknowledged(snapshot(checkpoint_id, task, attempt)))
        self.tell(e.MetadataWritten(checkpoint_id))
        self.tell(*(e.TaskNotified(checkpoint_id, attempt) for attempt in TASKS.values()))
        return self
