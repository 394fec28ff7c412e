"""A task's part of a checkpoint, as it travels from TaskManager to coordinator and lies in a checkpoint's metadata."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import msgspec

from minflinkd.runtime.ids import AttemptId, ResourceId, TaskId, VertexId
from minflinkd.storage.publication import SinkTransaction


class StateHandle(msgspec.Struct, frozen=True):
    """Where a piece of a snapshot lies: a segment of a physical file (file-merging.md F1)."""

    file: str  # name of the physical file, relative to the job's checkpoint directory
    offset: int
    length: int
    checksum: str  # xxh3-128 of the segment's bytes, hex


class StateFile(msgspec.Struct, frozen=True):
    """One file of Spark's checkpoint directory, by its path there."""

    path: str
    handle: StateHandle


class RowCounts(msgspec.Struct, frozen=True):
    """Rows that a task has read and written, by vertex."""

    read: dict[str, int] = {}  # by source, or by the vertex of another task that is read through an exchange
    written: dict[str, int] = {}  # by sink; by the vertex at the task's end what went into its exchange

    def __add__(self, other: RowCounts) -> RowCounts:
        return RowCounts(_sums(self.read, other.read), _sums(self.written, other.written))


NO_ROWS = RowCounts()


def _sums(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in {**one, **other}}


class Role(Enum):
    KEY = "key"  # by which state is kept
    AGGREGATE = "aggregate"  # what is computed in it


class Meant(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the state of an operator is of. Written in three ways, of which two are compared."""

    role: Role
    text: str  # close to what the user wrote
    exact: str  # with the columns of sources, whatever they are called on the way
    form: str  # likewise, without what a new version may change


class PlanNode(msgspec.Struct, frozen=True, kw_only=True):
    """A source or a stateful operator of a task's query (C25): what Spark knows by its number alone."""

    number: int  # as Spark counts: stateful operators, and apart from them sources, from 0
    stateful: bool  # False: a source
    vertex: str  # "" where it is in none
    kind: str  # Spark's name of the operator, or of the source's format
    fingerprint: str = ""  # of the types that its state holds; "" of a source, whose offset does not depend on them
    sides: str = ""  # of a join: its type, and the vertices on its left and on its right
    route: str = ""  # the vertices between it and the sink, innermost first: a vertex read twice is in the plan twice
    lines: tuple[int, ...] = ()  # of a source, in Spark's offset log; empty: the one of its number
    meaning: tuple[Meant, ...] = ()  # of state; empty: not known, or recorded by an earlier version of minflinkd

    @property
    def offset_lines(self) -> tuple[int, ...]:
        """A source that one plan reads in several places has a line for each, and one number."""
        return self.lines or (self.number,)


def without_meaning(nodes: Sequence[PlanNode]) -> tuple[PlanNode, ...]:
    """What says where state lies, and of which types it is. A literal that changes is none of it."""
    return tuple(msgspec.structs.replace(node, meaning=()) if node.meaning else node for node in nodes)


class MergingFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What the physical files of a snapshot cost its TaskManager (F10). Milliseconds are sums over all calls."""

    creates: int = 0
    create_ms: float = 0.0
    closes: int = 0
    close_ms: float = 0.0
    compactions: int = 0  # old files that were rewritten since the task's last snapshot (F6)
    bytes_rewritten: int = 0  # by these


class TaskSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What one task acknowledged (C11, C12)."""

    task_id: TaskId
    attempt_id: AttemptId
    resource_id: ResourceId
    checkpoint_id: int
    batch_id: int  # the last committed micro-batch in it; -1 before the first
    files: tuple[StateFile, ...] = ()
    transactions: tuple[SinkTransaction, ...] = ()
    physical_files: tuple[str, ...] = ()  # written for this snapshot
    rewritten: tuple[str, ...] = ()  # of these: with copies made on purpose, of what lies in older files (F6)
    source_offsets: dict[str, str] = {}  # vertex id -> Spark's offset as JSON, plain (C26)
    operators: tuple[PlanNode, ...] = msgspec.field(name="nodes", default=())  # (); before this was recorded
    bytes_full: int = 0
    bytes_uploaded: int = 0
    sync_ms: float = 0.0
    async_ms: float = 0.0  # without the time for which it waited for other tasks that write the same files
    parallelism: int = 0  # of the attempt: how many partitions its state has; 0: written before this was recorded
    file_sizes: dict[str, int] = {}  # bytes of the physical files in which `files` lie; {}: before this was recorded
    input_ended: bool = False  # the task's input was exhausted: a final snapshot (C4)
    inputs: dict[VertexId, int] = {}  # exchanges: the sequence number with which the next attempt of each goes on
    output: int = 0  # likewise of the task's own exchange
    unaligned: bool = False  # `files` hold entries of its inputs that the task had not read
    alignment_ms: float = 0.0  # from the first barrier that arrived to the cut
    alignment_bytes: int = 0  # that waited behind barriers meanwhile; of an unaligned one: that were overtaken
    wait_ms: float = 0.0  # from the trigger's arrival until the cut could be made, alignment included
    files_uploaded: int = 0  # those of `files` that no earlier confirmed checkpoint had
    merging: MergingFigures | None = None  # None: was not measured
    rows: RowCounts = NO_ROWS  # up to the cut: by the attempt; in metadata, since the job's submission
