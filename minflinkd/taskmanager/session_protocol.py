"""What a TaskManager's supervisor and its session child say to each other, over one socketpair.

Knows nothing of pyspark, so that the supervisor can import it. The child is started as

    COMMAND --fd <number of its end of the socketpair> --config <file>

and says `SessionReady` once it is warm. Requests are idempotent by their attempt and checkpoint ids.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from minflinkd.jobgraph.model import Task
from minflinkd.rpc.messages import Analysis, Collected, Done, JobContext, Message, Notice, Request, TaskMetrics
from minflinkd.rpc.network import Address
from minflinkd.rpc.snapshot import NO_ROWS, PlanNode, RowCounts
from minflinkd.runtime.errors import Consequence, ErrorInfo, MinflinkError
from minflinkd.runtime.ids import AttemptId, TaskId, VertexId
from minflinkd.runtime.spark_master import on_cluster
from minflinkd.storage.publication import SinkTransaction

COMMAND = (sys.executable, "-m", "minflinkd.taskmanager.session")
SUPERVISOR = Address("supervisor")
SESSION = Address("session")


class SessionLost(MinflinkError):
    """The session child is gone, or its JVM, and with it every task that it ran."""

    code = "session-lost"
    consequence = Consequence.RETRYABLE


class SessionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How the child builds its SparkSession. Written as JSON to the file that `--config` names."""

    name: str  # shown as the Spark application's name: the TaskManager's resource id
    slots: int  # `local[slots]`, unless `master` says otherwise
    working_directory: str  # scratch space of this child alone: warehouse, shuffle files, code, temporary files
    log_directory: str  # gets session-jvm.log, rotated
    state_directory: str = ""  # where attempts lie: what executors write into; empty: the working directory
    master: str = ""
    heap_bytes: int = 1024**3
    conf: dict[str, str] = {}  # Spark settings that win over the tuned ones
    warm_up: bool = True
    resolve_order: str = "child-first"  # or parent-first: whether a job's module wins over an installed one

    @property
    def spark_master(self) -> str:
        return self.conf.get("spark.master") or self.master or f"local[{self.slots}]"

    @property
    def on_cluster(self) -> bool:
        """Whether executors are processes of a cluster manager: state stores are then not in the session's JVM."""
        return on_cluster(self.spark_master)


def write_config(config: SessionConfig, path: Path) -> None:
    path.write_bytes(msgspec.json.encode(config))


def read_config(path: Path) -> SessionConfig:
    return msgspec.json.decode(path.read_bytes(), type=SessionConfig)


class UnknownAttempt(MinflinkError):
    """The child runs no such attempt: it never did, or has stopped it."""

    code = "unknown-attempt"
    consequence = Consequence.REFUSED


class SnapshotFailed(MinflinkError):
    """No consistent snapshot could be taken; the query itself is unharmed."""

    code = "snapshot-failed"
    consequence = Consequence.RETRYABLE


# --- to the child ------------------------------------------------------------------------------------------------


class Restored(Message, frozen=True):
    """The supervisor has laid out this snapshot's files in `<directory>/checkpoint`."""

    checkpoint_id: int
    batch_id: int
    input_ended: bool = False
    inputs: dict[VertexId, int] = {}  # as in TaskSnapshot; unread entries lie in `<directory>/checkpoint/inputs`
    output: int = 0
    transactions: tuple[SinkTransaction, ...] = ()  # owed: those with tokens are committed before the query starts
    operators: tuple[PlanNode, ...] = ()  # of the query that it was taken from (C25)
    offsets: dict[str, str] = {}  # where sources are to start, with empty state; then only source logs are laid out
    allow_non_restored: bool = False  # what the task has no place for may be left behind
    same_meaning: bool = False  # as in TaskRestore


class InputChannel(msgspec.Struct, frozen=True, kw_only=True):
    """An exchange that the attempt reads; its log is in `directory`, or will be."""

    vertex_id: VertexId
    directory: str
    idle_timeout: float = 0.0  # seconds; 0: an idle input holds watermarks back for ever


class OutputChannel(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt's own exchange: a log that it writes into `directory`."""

    directory: str
    readers: tuple[TaskId, ...]
    max_backlog: int = 256 * 1024**2  # bytes that the slowest reader may be behind


class TaskRunning(Message, frozen=True):
    """The query is active. `phases`: seconds spent in code, build, prepare (the restored state), start."""

    phases: dict[str, float]
    operators: tuple[PlanNode, ...] = ()
    moved: bool = False  # the restored state was renumbered: its files have other paths than in the snapshot


class RunTask(Request[TaskRunning], frozen=True):
    """Start one attempt. A repeated request of a running attempt is answered as the first was.

    Refused, for good, with `task-not-built` (and the traceback of user code) or `unusable-artifact`;
    `library-conflict` where another session can run it.
    """

    job: JobContext
    task: Task
    attempt_id: AttemptId
    directory: str  # of this attempt, on a path never used before; Spark's checkpoint is `checkpoint` in it
    restored: Restored | None = None
    artifacts: dict[str, str] = {}  # name -> local path
    inputs: tuple[InputChannel, ...] = ()
    output: OutputChannel | None = None


class TaskStopped(Message, frozen=True):
    """`ended`: the query's thread is gone, and no Spark task of it runs. Else user code blocks: the supervisor replaces

    the child.
    """

    ended: bool


class StopTask(Request[TaskStopped], frozen=True):
    """An unknown attempt is stopped already. Its state stores stay open until it is unloaded."""

    attempt_id: AttemptId
    timeout: float = 10.0  # seconds that user code gets to come back


class TaskUnloaded(Message, frozen=True):
    """`unloaded`: no state store of the attempt is open any more, so its directory may be deleted.

    `heir`: another attempt goes on in the directory, which is to be deleted with that one's own.
    """

    unloaded: bool
    heir: AttemptId | None = None


class UnloadTask(Request[TaskUnloaded], frozen=True):
    """Close the state stores of an attempt that is stopped. An unknown one has none.

    Behind the cut of a checkpoint to stop with it is answered when another attempt goes on, or seems not to come.
    """

    attempt_id: AttemptId


class SnapshotFile(msgspec.Struct, frozen=True):
    path: str  # relative to the target directory, as in Spark's checkpoint directory
    size: int


class SnapshotTaken(Message, frozen=True):
    """C11. The files are hard links below `target_directory`; nothing of them changes any more."""

    batch_id: int  # the last committed micro-batch in it; -1 before the first, with no files
    files: tuple[SnapshotFile, ...] = ()
    transactions: tuple[SinkTransaction, ...] = ()  # staged and not covered by a confirmed checkpoint
    source_offsets: dict[str, str] = {}
    operators: tuple[PlanNode, ...] = ()
    wait_ms: float = 0.0  # for the micro-batch in progress
    sync_ms: float = 0.0  # linking, verifying, and making staged files durable
    input_ended: bool = False
    rows: RowCounts = NO_ROWS  # by the attempt, up to the cut
    inputs: dict[VertexId, int] = {}  # from here on as in TaskSnapshot
    output: int = 0
    unaligned: bool = False
    alignment_ms: float = 0.0
    alignment_bytes: int = 0


class TakeSnapshot(Request[SnapshotTaken], frozen=True):
    """Link the files of the attempt at a micro-batch boundary into `target_directory`, which must not exist.

    The boundary is the last one that was published; with inputs, the one at which their barriers align. With `stop` no
    later micro-batch is published until the snapshot is aborted.
    """

    attempt_id: AttemptId
    checkpoint_id: int
    target_directory: str
    timeout: float = 600.0  # seconds to wait for the barriers, and for the micro-batch to be committed
    oldest: int = 0  # checkpoint that is pending; the barriers of older ones hold nothing up
    stop: bool = False  # no further micro-batch of the attempt is published, until the snapshot is aborted


class DrainAttempt(Request[Done], frozen=True):
    """Let a running query read what its sources see now, then end time; InputEnded follows. May be repeated."""

    attempt_id: AttemptId


class ConfirmCheckpoint(Request[Done], frozen=True):
    """The checkpoint is complete and its files are published; the sinks that commit by themselves do it now.

    Later snapshots no longer carry its transactions. Fails with what a sink's commit raises, and is then repeated.
    """

    attempt_id: AttemptId
    checkpoint_id: int


class AbortSnapshot(Request[Done], frozen=True):
    """C13: a snapshot still waiting for its boundary gives up, its links are removed."""

    attempt_id: AttemptId
    checkpoint_id: int


class TellCollected(Request[Collected], frozen=True):
    """The last rows of a collect sink of a running attempt."""

    attempt_id: AttemptId
    vertex_id: VertexId


class DescribedState(Message, frozen=True):
    """State that a task is to go on with. `directory`: with Spark's descriptions of its types, and nothing else."""

    operators: tuple[PlanNode, ...]
    directory: str


class AnalyzeTasks(Request[Analysis], frozen=True):
    """Let Spark analyse the tasks without starting anything. Faults are answers, not errors."""

    job: JobContext
    tasks: tuple[Task, ...]
    artifacts: dict[str, str] = {}
    held: dict[TaskId, DescribedState] = {}


class Pong(Message, frozen=True):
    attempts: tuple[AttemptId, ...]
    threads: int  # of the Python driver
    state_stores: int = 0  # open RocksDB instances


class Ping(Request[Pong], frozen=True):
    """Answered by the child's loop and its JVM; no answer means that one of them hangs."""


# --- to the supervisor -------------------------------------------------------------------------------------------


class SessionReady(Notice, frozen=True):
    jvm_pid: int
    phases: dict[str, float]  # seconds: import, session, first_job, warm


class SessionFailed(Notice, frozen=True):
    """The session could not be built; the child ends itself behind this."""

    error: ErrorInfo


class TaskFailed(Notice, frozen=True):
    """The attempt's query ended without having been told to. FATAL where no repetition helps."""

    attempt_id: AttemptId
    error: ErrorInfo


class BatchFinished(Notice, frozen=True):
    attempt_id: AttemptId
    metrics: TaskMetrics


class InputEnded(Notice, frozen=True):
    """Bounded input is exhausted and the last windows have fired: what remains is the final checkpoint."""

    attempt_id: AttemptId
    metrics: TaskMetrics


class JvmLost(Notice, frozen=True):
    """The JVM is gone; the child ends itself behind this."""

    reason: str
