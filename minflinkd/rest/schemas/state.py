"""The state of tasks in a checkpoint, as rows, totals, and growth (E19c). Flink has nothing like it.

Keys and values are JSON. Sizes are those of the rows that Spark keeps, in bytes.
"""

from __future__ import annotations

import msgspec

from minflinkd.rest.schemas.answer import Answer


class ReadCheckpoint(Answer, frozen=True, kw_only=True, rename="kebab"):
    job_id: str
    id: int
    path: str
    trigger_timestamp: int
    is_savepoint: bool


class StatefulOperator(Answer, frozen=True, kw_only=True, rename="kebab"):
    number: int
    kind: str
    vertex: str | None  # None: not recorded


class TaskState(Answer, frozen=True, kw_only=True, rename="kebab"):
    id: str  # of the vertex
    task_id: str
    batch: int | None  # the last micro-batch in it; None: there was none yet
    state_size: int  # bytes of the files with its state
    operators: tuple[StatefulOperator, ...]


class JobState(Answer, frozen=True, kw_only=True, rename="kebab"):
    checkpoint: ReadCheckpoint
    tasks: tuple[TaskState, ...]


class PartitionState(Answer, frozen=True, kw_only=True, rename="kebab"):
    partition: int
    rows: int
    bytes: int


class LargeKey(Answer, frozen=True, kw_only=True, rename="kebab"):
    key: msgspec.Raw
    rows: int
    bytes: int
    partition: int


class StateTotals(Answer, frozen=True, kw_only=True, rename="kebab"):
    """`skew`: the bytes of the largest partition, as a multiple of the mean; None: there is no state."""

    rows: int
    bytes: int
    keys: int
    skew: float | None
    partitions: tuple[PartitionState, ...]
    largest_keys: tuple[LargeKey, ...]


class StateStore(Answer, frozen=True, kw_only=True, rename="kebab"):
    """`name`: of the state variable, or the side of a join. `form`: `value`, `list`, `map`, `timers`."""

    id: str
    operator: int
    kind: str
    vertex: str | None
    name: str | None
    form: str | None
    key_type: str | None
    value_type: str | None
    unreadable: str | None  # why Spark cannot read it
    totals: StateTotals | None


class StateRow(Answer, frozen=True, kw_only=True, rename="kebab"):
    """`cut`: key or value is longer than a row may be, and null for that."""

    partition: int
    key: msgspec.Raw
    value: msgspec.Raw
    bytes: int
    cut: bool


class StateResult(Answer, frozen=True, kw_only=True, rename="kebab"):
    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: tuple[msgspec.Raw, ...]


class VertexState(Answer, frozen=True, kw_only=True, rename="kebab"):
    """`store`: that `rows` and `result` are of. `truncated`: there are more rows."""

    checkpoint: ReadCheckpoint
    id: str
    task_id: str
    batch: int | None
    stores: tuple[StateStore, ...]
    store: str | None
    rows: tuple[StateRow, ...]
    result: StateResult | None
    truncated: bool
    duration: float  # of the reading


class GrownKey(Answer, frozen=True, kw_only=True, rename="kebab"):
    key: msgspec.Raw
    rows_before: int
    rows_after: int
    bytes_before: int
    bytes_after: int


class StoreGrowth(Answer, frozen=True, kw_only=True, rename="kebab"):
    """`before`, `after`: None if the checkpoint has no such store, or it cannot be read."""

    store: StateStore
    before: StateTotals | None
    after: StateTotals | None
    keys_added: int | None
    keys_removed: int | None
    keys_changed: int | None
    grown_keys: tuple[GrownKey, ...]


class VertexStateGrowth(Answer, frozen=True, kw_only=True, rename="kebab"):
    before: ReadCheckpoint
    after: ReadCheckpoint
    id: str
    task_id: str
    stores: tuple[StoreGrowth, ...]
    duration: float
