"""Messages that read the state of a task from a checkpoint, for people (E19c): the Dispatcher asks a TaskManager.

Nothing of the running task takes part: its files are laid out once more, and Spark reads that copy.
"""

from __future__ import annotations

from minflinkd.rpc.messages.base import Message, Request
from minflinkd.rpc.snapshot import TaskSnapshot
from minflinkd.runtime.ids import JobId, TaskId


class StateQuestion(Message, frozen=True):
    """What somebody wants to know. Without `store`: totals of all stores, and rows of the first that can be read."""

    store: str = ""
    key: str = ""  # a key's text, or a JSON object of its fields
    sql: str = ""
    limit: int = 100  # rows
    largest: int = 10  # keys
    totals: bool = True


class StateFiles(Message, frozen=True):
    """One task's part of a checkpoint. `root`: URI that its physical files are relative to."""

    snapshot: TaskSnapshot
    root: str
    own: bool = False  # a checkpoint of the job itself: the TaskManager may have a copy


class PartitionTotals(Message, frozen=True):
    partition: int
    rows: int
    bytes: int


class LargeKey(Message, frozen=True):
    """A key with the most bytes. A key has several rows in a list, a map, or a join."""

    key: str  # JSON
    rows: int
    bytes: int
    partition: int


class StoreTotals(Message, frozen=True):
    rows: int
    bytes: int
    keys: int
    partitions: tuple[PartitionTotals, ...]
    largest: tuple[LargeKey, ...] = ()


class StateStore(Message, frozen=True):
    """One store of a stateful operator: what a query keeps under one name."""

    id: str  # `0`, `0:left`, `1:total`: the operator's number, and what tells its stores apart
    operator: int
    kind: str  # Spark's name for the operator
    vertex: str  # "": not recorded
    name: str = ""  # of the state variable, or the side of a join
    form: str = ""  # value, list, map, timers; "" for operators without state variables
    key_type: str = ""  # DDL
    value_type: str = ""
    unreadable: str = ""  # why Spark cannot read it
    totals: StoreTotals | None = None  # None: not asked for, or not readable


class StateRow(Message, frozen=True):
    """One row of a store. `key` and `value` are JSON; "" if they are longer than a row may be, and `cut` is set."""

    partition: int
    key: str
    value: str
    bytes: int
    cut: bool = False


class StateResult(Message, frozen=True):
    """What a SELECT returned. Each row is a JSON array."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: tuple[str, ...]


class StateFound(Message, frozen=True):
    stores: tuple[StateStore, ...] = ()
    store: str = ""  # that `rows` or `result` are of
    rows: tuple[StateRow, ...] = ()
    result: StateResult | None = None
    truncated: bool = False  # there are more rows than were asked for, or than fit
    milliseconds: float = 0.0  # that reading took


class ReadState(Request[StateFound], frozen=True):
    """Idempotent by `read_id`: a repetition joins the reading that is under way. Reads for at most `timeout` seconds.

    Refused with `state-not-readable`, `state-query-refused`, `state-too-large`, `state-read-expired`.
    """

    read_id: str
    job_id: JobId
    task_id: TaskId
    files: StateFiles
    question: StateQuestion
    timeout: float
    exclusive: bool = False  # as in AnalyzeJob


class GrownKey(Message, frozen=True):
    """A key whose bytes changed. 0 rows: it was not there."""

    key: str  # JSON
    rows_before: int
    rows_after: int
    bytes_before: int
    bytes_after: int


class StoreGrowth(Message, frozen=True):
    """One store in two checkpoints. None: it is not in that one."""

    store: StateStore
    before: StoreTotals | None
    after: StoreTotals | None
    keys_added: int = 0
    keys_removed: int = 0
    keys_changed: int = 0  # their rows or bytes did
    grown: tuple[GrownKey, ...] = ()  # those that grew the most


class StateGrowth(Message, frozen=True):
    stores: tuple[StoreGrowth, ...] = ()
    milliseconds: float = 0.0


class CompareState(Request[StateGrowth], frozen=True):
    """What grew between two checkpoints. Idempotent by `read_id`, and refused, as ReadState is."""

    read_id: str
    job_id: JobId
    task_id: TaskId
    before: StateFiles
    after: StateFiles
    store: str
    largest: int
    timeout: float
    exclusive: bool = False
