"""The messages between a TaskManager's supervisor and its session child, over one socketpair.

This module does not use pyspark, so that the supervisor can import it. The child is started as

    COMMAND --fd <number of its end of the socketpair> --config <file>

and sends `SessionReady` once it is warm. Requests are idempotent by their attempt and checkpoint ids.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from minflinkd.jobgraph.model import Task
from minflinkd.rpc.messages import (
    Analysis,
    Collected,
    Done,
    JobContext,
    Message,
    Notice,
    Request,
    SampledStack,
    StateFound,
    StateGrowth,
    StateQuestion,
    TaskMetrics,
    TaskPartitions,
    ThreadText,
)
from minflinkd.rpc.network import Address
from minflinkd.rpc.snapshot import NO_ROWS, PlanNode, RowCounts
from minflinkd.runtime.errors import Consequence, ErrorInfo, Kind, MinflinkError
from minflinkd.runtime.ids import AttemptId, TaskId, VertexId
from minflinkd.runtime.spark_master import on_cluster
from minflinkd.storage.publication import SinkTransaction

COMMAND = (sys.executable, "-m", "minflinkd.taskmanager.session")
SUPERVISOR = Address("supervisor")
SESSION = Address("session")
LOG = "session.log"  # what the child, its JVM's launcher and user code print


class SessionLost(MinflinkError):
    """The session child or its JVM is gone, and with it every task that it ran."""

    code = "session-lost"
    kind = Kind.SESSION_LOST
    consequence = Consequence.RETRYABLE


class SessionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How the child builds its SparkSession. Written as JSON to the file that `--config` names."""

    name: str  # the Spark application's name: the TaskManager's resource id
    slots: int  # `local[slots]`, unless `master` says otherwise
    working_directory: str  # scratch space of this child only: warehouse, shuffle files, code, temporary files
    log_directory: str  # for session-jvm.log, which is rotated; empty: the JVM prints what it logs
    state_directory: str = ""  # for attempts, where executors write; empty: the working directory
    master: str = ""
    heap_bytes: int = 1024**3
    conf: dict[str, str] = {}  # Spark settings that override the tuned ones
    warm_up: bool = True
    resolve_order: str = "child-first"  # or parent-first: whether a job's module wins over an installed one
    class_archives: str = ""  # the directory of class archives; empty: none is used
    secrets_directory: str = ""  # of secrets that jobs name; empty: none
    run_as: str = ""  # the user that runs the child; empty: that of the supervisor
    printed: str = ""  # the file for what the child prints, which the supervisor opens; empty: in `log_directory`
    stepped: bool = False  # queries advance when they are told, for tests of jobs (`StepTask`)

    @property
    def output(self) -> Path:
        return Path(self.printed) if self.printed else Path(self.log_directory) / LOG

    @property
    def spark_master(self) -> str:
        return self.conf.get("spark.master") or self.master or f"local[{self.slots}]"

    @property
    def on_cluster(self) -> bool:
        """Whether executors are processes of a cluster manager. State stores are then outside the session's JVM."""
        return on_cluster(self.spark_master)


def write_config(config: SessionConfig, path: Path) -> None:
    """Write it for this user only: settings of Spark may hold secrets."""
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "wb") as out:
        out.write(msgspec.json.encode(config))


def read_config(path: Path) -> SessionConfig:
    return msgspec.json.decode(path.read_bytes(), type=SessionConfig)


class UnknownAttempt(MinflinkError):
    """The child does not run this attempt: it never did, or has stopped it."""

    code = "unknown-attempt"
    consequence = Consequence.REFUSED


class NotResizable(MinflinkError):
    """The query cannot have another number of slots while it runs. It can have them when it is started again."""

    code = "not-resizable"
    consequence = Consequence.REFUSED


class NotDrainable(MinflinkError):
    """The query cannot be run to the end of its input."""

    code = "not-drainable"
    consequence = Consequence.REFUSED


class SnapshotFailed(MinflinkError):
    """No consistent snapshot could be taken. The query itself is unharmed."""

    code = "snapshot-failed"
    consequence = Consequence.RETRYABLE


class StateReadExpired(MinflinkError):
    """The state could not be read in the time that was given. Nothing is known of it, not even in part."""

    code = "state-read-expired"
    consequence = Consequence.REFUSED


# --- to the child ------------------------------------------------------------------------------------------------


class Restored(Message, frozen=True):
    """The supervisor has laid out this snapshot's files in `<directory>/checkpoint`."""

    checkpoint_id: int
    batch_id: int
    input_ended: bool = False
    inputs: dict[VertexId, int] = {}  # as in TaskSnapshot; unread entries are in `<directory>/checkpoint/inputs`
    output: int = 0
    transactions: tuple[SinkTransaction, ...] = ()  # those with tokens are committed before the query starts
    operators: tuple[PlanNode, ...] = ()  # of the query that the snapshot was taken from (C25)
    offsets: dict[str, str] = {}  # where sources start, with empty state; only source logs are laid out then
    allow_non_restored: bool = False  # state that the task has no operator for may be dropped
    same_meaning: bool = False  # as in TaskRestore


class InputChannel(msgspec.Struct, frozen=True, kw_only=True):
    """An exchange that the attempt reads. Its log is in `directory`, perhaps only later."""

    vertex_id: VertexId
    directory: str
    idle_timeout: float = 0.0  # seconds; 0: an idle input holds back watermarks forever


class OutputChannel(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt's own exchange: a log that it writes into `directory`."""

    directory: str
    readers: tuple[TaskId, ...]
    max_backlog: int = 256 * 1024**2  # bytes by which the slowest reader may lag
    replay: int = 0  # bytes that are kept of what the readers have consumed, for readers that restart


class TaskRunning(Message, frozen=True):
    """The query is active. `phases` are seconds spent in code, build, prepare (the restored state), start."""

    phases: dict[str, float]
    operators: tuple[PlanNode, ...] = ()
    moved: bool = False  # the restored state was renumbered: its files have other paths than in the snapshot
    partitions: int = 0  # that its state has: Spark cannot rewrite every state; 0: it keeps none


class RunTask(Request[TaskRunning], frozen=True):
    """Start one attempt. A repeated request for a running attempt gets the same answer.

    Refused for good with `task-not-built` (and the traceback of user code) or `unusable-artifact`. Refused with
    `library-conflict` if another session can run it.
    """

    job: JobContext
    task: Task
    attempt_id: AttemptId
    directory: str  # of this attempt only, on a path never used before; Spark's checkpoint is in `checkpoint`
    restored: Restored | None = None
    artifacts: dict[str, str] = {}  # name -> local path
    inputs: tuple[InputChannel, ...] = ()
    output: OutputChannel | None = None
    partitions: int = 0  # as in DeployTask
    min_free: int = 0  # bytes that must be free on the disks it writes to before a micro-batch begins
    oldest: int = 0  # as in DeployTask

    @property
    def state_partitions(self) -> int:
        return self.partitions or self.task.parallelism


class TaskStopped(Message, frozen=True):
    """Whether the query's thread is gone and no Spark task of it runs (`ended`).

    If not, user code blocks, and the supervisor replaces the child.
    """

    ended: bool


class StopTask(Request[TaskStopped], frozen=True):
    """Stop an attempt. An unknown one is stopped already. Its state stores stay open until it is unloaded."""

    attempt_id: AttemptId
    timeout: float = 10.0  # seconds for user code to return


class TaskUnloaded(Message, frozen=True):
    """If `unloaded`, no state store of the attempt is open any more, so its directory may be deleted.

    `heir` is another attempt that goes on in the directory. The directory must then be deleted with the heir's own.
    """

    unloaded: bool
    heir: AttemptId | None = None


class UnloadTask(Request[TaskUnloaded], frozen=True):
    """Close the state stores of a stopped attempt. An unknown one has none.

    After the cut of a stop checkpoint, the answer waits until another attempt goes on, or seems not to come.
    """

    attempt_id: AttemptId


class SnapshotFile(msgspec.Struct, frozen=True):
    path: str  # relative to the target directory, as in Spark's checkpoint directory
    size: int


class SnapshotTaken(Message, frozen=True):
    """C11: The files are hard links below `target_directory`. They never change any more."""

    batch_id: int  # the last committed micro-batch in it; -1 before the first, with no files
    files: tuple[SnapshotFile, ...] = ()
    transactions: tuple[SinkTransaction, ...] = ()  # those staged and not covered by a confirmed checkpoint
    source_offsets: dict[str, str] = {}
    operators: tuple[PlanNode, ...] = ()
    wait_ms: float = 0.0  # spent waiting for the micro-batch in progress
    sync_ms: float = 0.0  # spent linking, verifying, and making staged files durable
    input_ended: bool = False
    rows: RowCounts = NO_ROWS  # of the attempt, up to the cut
    inputs: dict[VertexId, int] = {}  # this and the following fields as in TaskSnapshot
    output: int = 0
    unaligned: bool = False
    alignment_ms: float = 0.0
    alignment_bytes: int = 0


class TakeSnapshot(Request[SnapshotTaken], frozen=True):
    """Link the files of the attempt at a micro-batch boundary into `target_directory`, which must not exist.

    The boundary is the last published micro-batch. With inputs, it is the one at which their barriers align. With
    `stop`, no later micro-batch is published until the snapshot is aborted.
    """

    attempt_id: AttemptId
    checkpoint_id: int
    target_directory: str
    timeout: float = 600.0  # seconds to wait for the barriers, and for the micro-batch to be committed
    oldest: int = 0  # the oldest pending checkpoint; barriers of older ones hold up nothing
    stop: bool = False  # publish no further micro-batch of the attempt until the snapshot is aborted


class DrainAttempt(Request[Done], frozen=True):
    """Let a running query read what its sources see now, then end event time. InputEnded follows. May be repeated."""

    attempt_id: AttemptId


class ResizeAttempt(Request[Done], frozen=True):
    """Let a running query have this many slots from its next micro-batch on, as ResizeTask asks. May be repeated."""

    attempt_id: AttemptId
    slots: int


class ConfirmCheckpoint(Request[Done], frozen=True):
    """The checkpoint is complete and its files are published. Sinks that commit themselves must do so now.

    Later snapshots no longer contain its transactions. Fails with what a sink's commit raises, and is then repeated.
    """

    attempt_id: AttemptId
    checkpoint_id: int


class AbortSnapshot(Request[Done], frozen=True):
    """C13: Give up a snapshot that still waits for its boundary, and remove its links."""

    attempt_id: AttemptId
    checkpoint_id: int


class TellCollected(Request[Collected], frozen=True):
    """Ask for the last rows of a collect sink of a running attempt."""

    attempt_id: AttemptId
    vertex_id: VertexId


class DescribedState(Message, frozen=True):
    """State that a task will go on with. `directory` contains only Spark's descriptions of its types."""

    operators: tuple[PlanNode, ...]
    directory: str


class AnalyzeTasks(Request[Analysis], frozen=True):
    """Let Spark analyse the tasks without starting anything. Faults are answers, not errors."""

    job: JobContext
    tasks: tuple[Task, ...]
    artifacts: dict[str, str] = {}
    held: dict[TaskId, DescribedState] = {}
    explain: bool = False  # answer `plans`, too
    script: str = ""  # as in AnalyzeJob


class PrepareTasks(Request[Done], frozen=True):
    """Build the plans of the tasks, and keep them for a while for a deployment of exactly these tasks.

    Nothing is started, and no sink is asked anything. If one of the tasks has faults, no plan is kept.
    """

    job: JobContext
    tasks: tuple[Task, ...]
    artifacts: dict[str, str] = {}


class LaidOut(Message, frozen=True):
    """A task's part of a checkpoint, in a directory that nothing else uses. It is deleted when the answer is there."""

    directory: str
    batch_id: int  # the last committed micro-batch in it
    operators: tuple[PlanNode, ...] = ()


class ReadStates(Request[StateFound], frozen=True):
    """Read what is laid out, for people. Touches no attempt. Ends after `timeout` seconds, as ReadState does."""

    read_id: str
    state: LaidOut
    question: StateQuestion
    timeout: float


class CompareStates(Request[StateGrowth], frozen=True):
    """Compare two laid-out checkpoints of a task, as CompareState asks."""

    read_id: str
    before: LaidOut
    after: LaidOut
    store: str
    largest: int
    timeout: float


class Pong(Message, frozen=True):
    attempts: tuple[AttemptId, ...]
    threads: int  # of the Python driver
    state_stores: int = 0  # open RocksDB instances
    jvm: dict[str, float] = {}  # what the JVM uses


class Ping(Request[Pong], frozen=True):
    """Ask whether the child's loop and its JVM respond. Without an answer, one of them hangs."""


class TaskStepped(Message, frozen=True):
    """The query has nothing more to do. `watermark_ms`: its event time; 0: it has none yet."""

    watermark_ms: int = 0


class StepTask(Request[TaskStepped], frozen=True):
    """Let a query of a session for tests (`minflinkd.testing`) advance, until it has nothing more to do.

    Everything in here becomes visible to the query at once, between two micro-batches. Not idempotent: files are moved.
    """

    attempt_id: AttemptId
    files: tuple[tuple[str, str], ...] = ()  # input: from where to where it is moved
    watermark_ms: int | None = None  # event time is at least this from now on
    clock_ms: int | None = None  # the time of day, for this step and all after it until another is set


class ThreadsTold(Message, frozen=True):
    threads: tuple[ThreadText, ...]


class TellThreads(Request[ThreadsTold], frozen=True):
    """Ask for the stacks of the child's threads and of the JVM's."""


class StacksTold(Message, frozen=True):
    jvm: tuple[SampledStack, ...]
    python: tuple[SampledStack, ...]


class TellStacks(Request[StacksTold], frozen=True):
    """Sample, for some seconds, the JVM's threads that work for an attempt, and all Python threads of the child."""

    attempt_id: AttemptId
    seconds: float


class TellPartitions(Request[TaskPartitions], frozen=True):
    """Ask for what the partitions of a running attempt have done."""

    attempt_id: AttemptId


# --- to the supervisor -------------------------------------------------------------------------------------------


class SessionReady(Notice, frozen=True):
    jvm_pid: int
    phases: dict[str, float]  # seconds: import, session, first_job, warm


class SessionFailed(Notice, frozen=True):
    """The session could not be built. The child ends itself after this."""

    error: ErrorInfo


class TaskFailed(Notice, frozen=True):
    """The attempt's query ended without being told to. The error is FATAL if no retry helps."""

    attempt_id: AttemptId
    error: ErrorInfo


class BatchFinished(Notice, frozen=True):
    attempt_id: AttemptId
    metrics: TaskMetrics


class InputEnded(Notice, frozen=True):
    """Bounded input is exhausted and the last windows have fired. Only the final checkpoint remains."""

    attempt_id: AttemptId
    metrics: TaskMetrics


class JvmLost(Notice, frozen=True):
    """The JVM is gone. The child ends itself after this."""

    reason: str
