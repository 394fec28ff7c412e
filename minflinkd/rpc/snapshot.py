"""A task's part of a checkpoint, as the TaskManager sends it and as the checkpoint's metadata stores it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import msgspec

from minflinkd.runtime.ids import AttemptId, ResourceId, TaskId, VertexId
from minflinkd.storage.publication import SinkTransaction


class StateHandle(msgspec.Struct, frozen=True):
    """Where a piece of a snapshot is stored: a segment of a physical file (F1)."""

    file: str  # name of the physical file, relative to the job's checkpoint directory
    offset: int
    length: int
    checksum: str  # xxh3-128 of the segment's bytes, hex


class StateFile(msgspec.Struct, frozen=True):
    """One file of Spark's checkpoint directory; `path` is relative to it."""

    path: str
    handle: StateHandle


class RowCounts(msgspec.Struct, frozen=True):
    """Rows that a task has read, written and rejected, by vertex."""

    read: dict[str, int] = {}  # by source, or by the vertex of another task that it reads through an exchange
    written: dict[str, int] = {}  # by sink; rows written to the task's exchange, by the task's last vertex
    rejected: dict[str, int] = {}  # bad records, by the vertex that found them

    def __add__(self, other: RowCounts) -> RowCounts:
        return RowCounts(
            _sums(self.read, other.read), _sums(self.written, other.written), _sums(self.rejected, other.rejected)
        )


NO_ROWS = RowCounts()


def _sums(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in {**one, **other}}


class Role(Enum):
    KEY = "key"  # what the state is keyed by
    AGGREGATE = "aggregate"  # what is computed in the state


class Meant(msgspec.Struct, frozen=True, kw_only=True):
    """One expression that an operator's state is made of, in three notations. Two of them are compared."""

    role: Role
    text: str  # as the user wrote it, nearly
    exact: str  # in terms of the sources' columns, whatever they are renamed to in between
    form: str  # like `exact`, without what a new version may change


class PlanNode(msgspec.Struct, frozen=True, kw_only=True):
    """A source or a stateful operator of a task's query (C25). Spark itself knows it only by its number."""

    number: int  # Spark's, from 0; stateful operators and sources are counted separately
    stateful: bool  # False: a source
    vertex: str  # "": it belongs to none
    kind: str  # Spark's name for the operator, or for the source's format
    fingerprint: str = ""  # of the types in its state; "" for a source: its offset does not depend on types
    sides: str = ""  # for a join: its type, and the vertices on its left and right
    route: str = ""  # the vertices between it and the sink, innermost first; tells two reads of a vertex apart
    lines: tuple[int, ...] = ()  # a source's lines in Spark's offset log; empty: the line of its number
    meaning: tuple[Meant, ...] = ()  # of its state; empty: unknown, or recorded by an earlier version of minflinkd

    @property
    def offset_lines(self) -> tuple[int, ...]:
        """A source that one plan reads in several places has one number, but a line for each place."""
        return self.lines or (self.number,)


def without_meaning(nodes: Sequence[PlanNode]) -> tuple[PlanNode, ...]:
    """Return the nodes with what identifies each state and its types only. A changed literal makes no difference."""
    return tuple(msgspec.structs.replace(node, meaning=()) if node.meaning else node for node in nodes)


class MergingFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What the physical files of a snapshot cost its TaskManager (F10). Milliseconds are sums over all calls."""

    creates: int = 0
    create_ms: float = 0.0
    closes: int = 0
    close_ms: float = 0.0
    compactions: int = 0  # old files rewritten since the task's last snapshot (F6)
    bytes_rewritten: int = 0  # by these compactions


class TaskSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What one task has acknowledged (C11, C12)."""

    task_id: TaskId
    attempt_id: AttemptId
    resource_id: ResourceId
    checkpoint_id: int
    batch_id: int  # the last committed micro-batch in the snapshot; -1: none yet
    files: tuple[StateFile, ...] = ()
    transactions: tuple[SinkTransaction, ...] = ()
    physical_files: tuple[str, ...] = ()  # written for this snapshot
    rewritten: tuple[str, ...] = ()  # those of them that copy segments of older files on purpose (F6)
    source_offsets: dict[str, str] = {}  # vertex id -> Spark's offset as JSON, plain (C26)
    operators: tuple[PlanNode, ...] = msgspec.field(name="nodes", default=())  # (): written before this was recorded
    bytes_full: int = 0
    bytes_uploaded: int = 0
    sync_ms: float = 0.0
    async_ms: float = 0.0  # without the wait for other tasks that write the same files
    parallelism: int = 0  # of the attempt; 0: written before this was recorded
    state_partitions: int = msgspec.field(name="partitions", default=0)  # 0: it keeps none, or not recorded
    file_sizes: dict[str, int] = {}  # bytes, of the physical files that hold `files`; {}: not recorded
    input_ended: bool = False  # the task's input was exhausted: a final snapshot (C4)
    inputs: dict[VertexId, int] = {}  # exchanges, by vertex: the sequence number at which the next attempt continues
    output: int = 0  # the same for the task's own exchange
    unaligned: bool = False  # `files` hold entries of its inputs that the task has not read
    alignment_ms: float = 0.0  # from the first barrier that arrived to the cut
    alignment_bytes: int = 0  # bytes that waited behind barriers meanwhile; if unaligned: bytes that were overtaken
    wait_ms: float = 0.0  # from the trigger's arrival until the cut was possible, alignment included
    files_uploaded: int = 0  # those of `files` that are in no earlier confirmed checkpoint
    merging: MergingFigures | None = None  # None: not measured
    rows: RowCounts = NO_ROWS  # up to the cut: of the attempt; in checkpoint metadata, since the job's submission

    @property
    def partitions(self) -> int:
        """The number of partitions of its state. Without state, or if it was not recorded, its parallelism."""
        return self.state_partitions or self.parallelism
