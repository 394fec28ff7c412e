"""The JobGraph: what a user submits, as immutable values (J1 - J3), and the tasks that it becomes (J5).

In kebab-case, the field names are those of the job file. A JobGraph in JSON *is* a job file.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from minflinkd.runtime.ids import TaskId, VertexId
from minflinkd.runtime.units import Duration, MemorySize, decode_unit, encode_unit


class RuntimeMode(StrEnum):
    STREAMING = "streaming"  # runs until it is cancelled
    BATCH = "batch"  # what exists at the start is processed, then the job is FINISHED


class CheckpointMode(StrEnum):
    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


class OutputMode(StrEnum):
    APPEND = "append"
    UPDATE = "update"
    COMPLETE = "complete"


class Delivery(StrEnum):
    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


class OnBadRecord(StrEnum):
    """What happens to a record that a source cannot parse, or that a vertex rejects."""

    FAIL = "fail"  # the job fails, and reads it again after its restart
    DROP = "drop"  # it is counted


class Isolation(StrEnum):
    SESSION = "session"  # many jobs share TaskManagers
    JOB = "job"  # TaskManagers of its own


class Recovery(StrEnum):
    """What is done in advance for the loss of a TaskManager."""

    RESTART = "restart"  # nothing: the tasks start elsewhere
    HOT_STANDBY = "hot-standby"  # a spare TaskManager has the state of the last checkpoint, and has rehearsed the tasks


class Execution(StrEnum):
    """How the queries of a job run."""

    MICRO_BATCH = "micro-batch"
    REAL_TIME = "real-time"  # each row is handed on at once (T1)
    AUTO = "auto"  # in real-time mode where that changes nothing but the time, otherwise in micro-batches


class Externalized(StrEnum):
    """What happens to the checkpoints of a job that is cancelled or fails."""

    DELETE = "delete"
    RETAIN = "retain"  # they belong to their user from then on


class RestoreMode(StrEnum):
    CLAIM = "claim"  # belongs to the job from now on: deleted once it has completed a checkpoint of its own
    NO_CLAIM = "no-claim"  # only read


class RestartKind(StrEnum):
    NONE = "none"
    FIXED_DELAY = "fixed-delay"
    FAILURE_RATE = "failure-rate"
    EXPONENTIAL_DELAY = "exponential-delay"


class OnDamage(StrEnum):
    """What a job does if its latest checkpoint is damaged and an earlier one would repeat exactly-once output."""

    REFUSE = "refuse"
    FALL_BACK_AND_REPEAT = "fall-back-and-repeat"


class Struct(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", omit_defaults=True, forbid_unknown_fields=True):
    """Base of every part of the model."""


class Watermark(Struct, frozen=True):
    """Event time: rows may come `delay` (a Spark interval, such as `2 hours`) late."""

    column: str
    delay: str


class BadRecordSink(Struct, frozen=True):
    """Bad records become rows of a sink of their own."""

    to: VertexId


class RecordFormat(Struct, frozen=True):
    """How the bytes of a key or a value in Kafka are written: with a schema of a registry (`jobgraph.records`).

    The job reads and writes with one schema, whatever others records were written with. It is the subject's latest one
    when the job is submitted, unless one is named. `schema` and `id` hold it from then on.
    """

    format: str = ""
    subject: str | None = None  # in the registry; None: TOPIC-key or TOPIC-value
    version: Annotated[int, msgspec.Meta(ge=1)] | None = None  # of the subject; None: the latest
    schema: str | None = None  # as JSON
    id: int | None = None  # of the schema, for a sink


class SchemaRegistry(Struct, frozen=True):
    """A server with the schemas of records, that speaks Confluent's HTTP API (K10)."""

    url: str  # or several, divided by commas
    user: str | None = None
    password: str | None = None  # the name of a secret: `${secret:registry}`
    token: str | None = None  # the name of a secret; sent in place of user and password
    ca: str | None = None  # a file with the certificates that are trusted, on the TaskManagers; None: those of Java
    timeout: Duration = Duration(60.0)  # how long a micro-batch waits for a schema that it needs


class Source(Struct, frozen=True):
    """Any format of Spark's readStream, or a Python function that returns a streaming DataFrame."""

    format: str = ""
    path: str | None = None
    schema: str | None = None  # DDL: `carrier STRING, time TIMESTAMP`
    options: dict[str, str] = {}
    python: str | None = None  # module:function(spark, params) -> DataFrame
    key: RecordFormat | None = None  # of Kafka: None leaves it as bytes
    value: RecordFormat | None = None
    schema_registry: SchemaRegistry | None = None


class Compaction(Struct, frozen=True):
    """Small files of an Iceberg table are joined from time to time (K5)."""

    target: MemorySize = MemorySize(128 * 1024**2)  # of a joined file, about
    every: Duration = Duration(600.0)
    expire: Duration | None = None  # drop snapshots that others replaced longer ago; None: keep all


class Sink(Struct, frozen=True):
    format: str = ""
    path: str | None = None
    partition_by: tuple[str, ...] = ()
    delivery: Delivery | None = None  # None: the default that `jobgraph.delivery` has for such a sink
    options: dict[str, str] = {}
    python: str | None = None  # module:function(batch, epoch), or a class with stage, commit and abort
    compaction: Compaction | None = None  # of an Iceberg table
    key: RecordFormat | None = None  # of Kafka: None takes texts or bytes
    value: RecordFormat | None = None
    schema_registry: SchemaRegistry | None = None


class Input(Struct, frozen=True):
    """An edge into a vertex. A bare id in a job file stands for `{id: ...}`."""

    id: VertexId
    exchange: bool = False  # a durable channel: the vertex begins a new task
    output_mode: OutputMode | None = None  # of what goes through an exchange; None: what fits the operator
    idle_timeout: Duration | None = None  # of an exchange: after this long without data, it holds back no watermark


class Vertex(Struct, frozen=True):
    """Exactly one of source, sql, python and sink is set."""

    id: VertexId
    inputs: tuple[Input, ...] = ()
    parallelism: int | None = None
    source: Source | None = None
    sql: str | None = None  # every input is a view named by its id
    python: str | None = None  # module:function(inputs: dict[str, DataFrame], params) -> DataFrame
    sink: Sink | None = None
    watermark: Watermark | None = None
    output_mode: OutputMode | None = None  # of a sink: what it writes of the result; None: what fits the operator
    on_bad_record: BadRecordSink | OnBadRecord | None = None  # None: the vertex has no notion of them
    slot_sharing_group: str = "default"

    @property
    def kind(self) -> str:
        for kind in ("source", "sql", "python", "sink"):
            if getattr(self, kind) is not None:
                return kind
        return "nothing"


class Checkpointing(Struct, frozen=True):
    """None means that the daemon's `execution.checkpointing.*` option decides."""

    interval: Duration | None = None  # 0 turns periodic checkpoints off
    mode: CheckpointMode = CheckpointMode.EXACTLY_ONCE
    timeout: Duration | None = None
    min_pause: Duration | None = None
    max_concurrent_checkpoints: Annotated[int, msgspec.Meta(ge=1)] | None = None
    num_retained: Annotated[int, msgspec.Meta(ge=1)] | None = None
    tolerable_failed_checkpoints: Annotated[int, msgspec.Meta(ge=0)] | None = None
    alignment_timeout: Duration | None = None  # a checkpoint becomes unaligned after this time; 0: never
    master_hooks: tuple[str, ...] = ()  # in addition to the daemon's (C27)
    externalized: Externalized | None = None
    on_damage: OnDamage | None = None


class RestartStrategy(Struct, frozen=True):
    """R16. Each kind ignores the fields that it does not use."""

    kind: RestartKind = RestartKind.EXPONENTIAL_DELAY
    attempts: Annotated[int, msgspec.Meta(ge=0)] | None = None  # fixed-delay; exponential-delay: None means no limit
    delay: Duration = Duration(1.0)
    max_failures_per_interval: int = 3  # failure-rate
    failure_rate_interval: Duration = Duration(60.0)
    initial_backoff: Duration = Duration(1.0)  # exponential-delay
    max_backoff: Duration = Duration(60.0)
    backoff_multiplier: float = 1.5
    jitter_factor: float = 0.1
    reset_backoff_threshold: Duration = Duration(3600.0)


class Restore(Struct, frozen=True):
    """Where a new job starts. Later it is recovered from its own checkpoints."""

    path: str | None = None  # URI of a savepoint, or of a checkpoint; with offsets: latest also a job's directory
    mode: RestoreMode = RestoreMode.NO_CLAIM
    allow_non_restored_state: bool = False
    allow_changed_state: bool = False  # state may continue with another meaning
    offsets: dict[str, Any] | str | None = None  # with empty state: `latest`, or source -> Spark's offset


class InputRange(Struct, frozen=True):
    """The time whose rows a batch job reads: `since` and later, but before `until` (`jobgraph.input_range`).

    Both are as `parse_time` reads them. `allow_other_times`: its rows may take the place of rows of another time.
    """

    since: str = msgspec.field(name="from")
    until: str = msgspec.field(name="to")
    allow_other_times: bool = False


class Artifact(Struct, frozen=True):
    """A file of user code. `key` is set once it is uploaded; until then, `path` says where the client finds it."""

    name: str  # file name, `flights.py`
    path: str | None = None
    key: str | None = None  # BlobKey
    size: int = 0
    units: tuple[str, ...] = ()  # what it claims of a session (`libraries`); set by the daemon when it accepts the job


class Autoscaler(Struct, frozen=True):
    """The daemon gives the job as many slots as the rows that come in need (R62). `max`: None is max-parallelism."""

    enabled: bool = True
    target_utilization: float = 0.7  # how much of its slots the job is to use
    min: Annotated[int, msgspec.Meta(ge=1)] = 1
    max: Annotated[int, msgspec.Meta(ge=1)] | None = None
    cool_down: Duration = Duration(60.0)  # least time between two changes
    scale_down_delay: Duration = Duration(300.0)  # for which fewer slots must have been enough
    catch_up: Duration = Duration(300.0)  # in which records that wait are to be processed


class SlotSharingGroup(Struct, frozen=True):
    """Settings of the vertices that share slots (J6)."""

    resources: dict[str, str] = {}  # as in JobGraph; replaces it for this group


class JobGraph(Struct, frozen=True):
    name: str
    vertices: tuple[Vertex, ...]
    params: dict[str, Any] = {}
    parallelism: Annotated[int, msgspec.Meta(ge=1)] = 1
    max_parallelism: Annotated[int, msgspec.Meta(ge=1)] | None = None
    min_parallelism: Annotated[int, msgspec.Meta(ge=1)] = 1  # with fewer slots no task starts (R20)
    mode: RuntimeMode = RuntimeMode.STREAMING
    input_range: InputRange | None = None  # of a batch job; None: all that its sources hold
    checkpointing: Checkpointing = Checkpointing()
    restart_strategy: RestartStrategy | None = None  # None: the daemon's default
    restore: Restore | None = None
    isolation: Isolation = Isolation.SESSION
    recovery: Recovery = Recovery.RESTART
    artifacts: tuple[Artifact, ...] = ()
    spark: dict[str, str] = {}  # Spark SQL settings of this job's sessions
    execution: Execution = Execution.MICRO_BATCH
    trigger_interval: Duration = Duration(0.0)  # least time between two micro-batches
    resources: dict[str, str] = {}  # that each slot must have: cpu, memory, off-heap, disk, and extras (R40)
    slot_sharing_groups: dict[str, SlotSharingGroup] = {}
    script: str | None = None  # module:function that returns the vertices of a PySpark script; `vertices` is then empty
    autoscaler: Autoscaler | None = None  # None: the job keeps the parallelism that it is given

    def vertex(self, vertex_id: str) -> Vertex:
        return next(v for v in self.vertices if v.id == vertex_id)


class Task(Struct, frozen=True):
    """Vertices chained into one Spark query (J5), in topological order. Holds `parallelism` slots of one TM (J6)."""

    id: TaskId
    vertices: tuple[Vertex, ...]
    parallelism: int
    slot_sharing_group: str = "default"
    readers: tuple[TaskId, ...] = ()  # tasks that read this one's output through its exchange
    exchange_mode: OutputMode | None = None  # the mode that they ask for

    @property
    def name(self) -> str:
        return " -> ".join(v.id for v in self.vertices)

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Edges from vertices of other tasks, one per vertex."""
        own = {v.id for v in self.vertices}
        edges = {edge.id: edge for v in self.vertices for edge in v.inputs if edge.id not in own}
        return tuple(edges[vertex] for vertex in sorted(edges))

    @property
    def end(self) -> VertexId:
        """The vertex that everything at the end of the task reads."""
        if results := self.result_sinks:
            return results[0].inputs[0].id
        return next(v.id for v in reversed(self.vertices) if v.sink is None)

    @property
    def sinks(self) -> tuple[Vertex, ...]:
        return tuple(v for v in self.vertices if v.sink is not None)

    @property
    def result_sinks(self) -> tuple[Vertex, ...]:
        """Those that write what the task computes; the others write its bad records."""
        return tuple(v for v in self.sinks if v.inputs)


_encoder = msgspec.json.Encoder(enc_hook=encode_unit)
_decoder = msgspec.json.Decoder(JobGraph, dec_hook=decode_unit)


def encode(graph: JobGraph) -> bytes:
    return _encoder.encode(graph)


def version_of(graph: JobGraph) -> str:
    """Return what tells the versions of a job apart: tasks of equal versions do the same (A14a).

    How parallel they are makes no difference, since a task can be given other slots while it runs (R20). Nor does the
    autoscaler, which only does so (R62).
    """
    vertices = tuple(replace(vertex, parallelism=None) for vertex in graph.vertices)
    plain = replace(graph, vertices=vertices, parallelism=1, min_parallelism=1, autoscaler=None)
    return hashlib.sha256(encode(plain)).hexdigest()[:16]


def decode(data: bytes) -> JobGraph:
    """Decode a JobGraph that `encode` wrote. Users' documents go through `jobgraph.validation`."""
    return _decoder.decode(data)
