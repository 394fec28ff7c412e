"""All sinks of a task: makes the sink of each vertex, writes micro-batches, and commits with checkpoints."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog
from pyspark.sql import DataFrame

from minflinkd.jobgraph.api import SinkContext
from minflinkd.jobgraph.bad_records import senders
from minflinkd.jobgraph.changes import change_columns
from minflinkd.jobgraph.delivery import delivery_of, key_of
from minflinkd.jobgraph.formats import FILE_FORMATS, TABLE_FORMATS
from minflinkd.jobgraph.model import Delivery, Vertex
from minflinkd.rpc.messages import Collected, SinkCompactions
from minflinkd.rpc.snapshot import RowCounts
from minflinkd.runtime.errors import Consequence, MinflinkError, RemoteError
from minflinkd.runtime.ids import VertexId
from minflinkd.storage.publication import SinkTransaction
from minflinkd.taskmanager.child.protocol import RunTask
from minflinkd.taskmanager.session.code.libraries import JobCode
from minflinkd.taskmanager.session.plan.plan import Plan
from minflinkd.taskmanager.session.plan.sink_checks import check_code
from minflinkd.taskmanager.session.sinks.bad_records import BadRecordSinks
from minflinkd.taskmanager.session.sinks.batch import BatchSink, CommittingSink
from minflinkd.taskmanager.session.sinks.collect import CollectSink
from minflinkd.taskmanager.session.sinks.compaction.compactor import Compactor
from minflinkd.taskmanager.session.sinks.databases.jdbc import StagedRows, Staging, UpsertSink
from minflinkd.taskmanager.session.sinks.files import FilesSink
from minflinkd.taskmanager.session.sinks.kafka import StagedRecords
from minflinkd.taskmanager.session.sinks.tables.targets import rows_of
from minflinkd.taskmanager.session.sinks.writer import ConsoleSink, PythonSink, WriterSink
from minflinkd.taskmanager.session.spark.failures import batch_failure, hidden
from minflinkd.taskmanager.session.spark.frames import ALL_PARTITIONS
from minflinkd.taskmanager.session.spark.session import Session

log = structlog.get_logger(__name__)


class SinkGone(MinflinkError):
    """A restored checkpoint has uncommitted rows for a sink that the job no longer has, or that is of another kind."""

    code = "sink-owes-rows"
    consequence = Consequence.FATAL


class NoSuchSink(MinflinkError):
    """The task has no collect sink of this name."""

    code = "no-collect-sink"
    consequence = Consequence.REFUSED


class TaskSinks:
    """Writes each micro-batch to all sinks of a task.

    Spark computes a frame again each time it is read. So the frame is persisted if there are several sinks, or one that
    may read it twice. A stateful query fails if a frame is not read in full. So what the sinks have not read is read
    after them.
    """

    def __init__(self, results: Mapping[VertexId, BatchSink], bad_records: BadRecordSinks | None = None) -> None:
        self._results = results
        self._bad_records = bad_records
        self._sinks = {**results, **(bad_records.sinks if bad_records is not None else {})}
        self._committing = threading.Lock()
        self.ledgers = [sink.ledger for sink in self._sinks.values() if sink.ledger is not None]

    def write(
        self, frame: DataFrame, epoch: int, *, began_ms: Callable[[], int], tasks: int | None = None
    ) -> RowCounts:
        """Write a micro-batch, computed by `tasks` Spark tasks if given. Returns the rows written and rejected.

        `began_ms`: returns when it began, as Spark has recorded; a repeated one began when the first try did.
        """
        if (bad := self._bad_records) is None:
            return RowCounts(written=_write(self._results, frame, epoch, tasks))
        try:
            written = _write(self._results, frame, epoch, tasks, at_once=True)
            found = bad.find(epoch)
            for name, sink in bad.sinks.items():
                if (rows := bad.rows(frame.sparkSession, name, found, began_ms())) is not None:
                    written |= _write({name: sink}, rows, epoch, None)
        finally:
            bad.remove(epoch)
        return RowCounts(written=written, rejected=found.counts)

    @property
    def compactions(self) -> dict[str, SinkCompactions]:
        """What compactions of tables have done, by sink."""
        told = {sink.vertex_id: sink.compactions for sink in self._own()}
        return {sink: found for sink, found in told.items() if found is not None}

    @property
    def bad_records(self) -> Path | None:
        """Where Spark's tasks put bad records; None if no vertex looks for them."""
        return self._bad_records.root if self._bad_records is not None else None

    def restore(self, owed: Iterable[SinkTransaction]) -> None:
        """Commit the rows that the restored checkpoint covers, and discard everything else that is staged.

        Called before the query starts. Raises SinkGone, and RemoteError for what user code or the database raises.
        """
        with self._committing, _as_failure():
            for transaction in owed:
                if not transaction.tokens:
                    continue
                sink = self._sinks.get(VertexId(transaction.sink))
                if not isinstance(sink, CommittingSink):
                    raise SinkGone(
                        f"checkpoint {transaction.checkpoint_id} contains rows that sink {transaction.sink} has yet to "
                        "commit, but the job no longer has this sink",
                        hint="start the job once with that sink, or from a checkpoint without uncommitted rows",
                    )
                sink.commit(transaction)
            for sink in self._own():
                sink.begin()

    def commit(self, checkpoint_id: int, batch_id: int) -> None:
        """Commit what the complete checkpoint at `batch_id` covers.

        Raises as `restore` does; the caller then repeats the call.
        """
        with self._committing, _as_failure():
            for sink in self._own():
                assert sink.ledger is not None
                sink.commit(sink.ledger.cover(checkpoint_id, batch_id))
                sink.ledger.confirm(batch_id)
        for ledger in self.ledgers:
            ledger.confirm(batch_id)

    def close(self, batch_id: int) -> None:
        """Close the sinks of an ended attempt.

        Checkpoints may cover what was staged up to `batch_id`. What was staged later is discarded.
        """
        for sink in self._own():
            _if_possible(sink.vertex_id, sink.interrupt)  # the next attempt repeats a commit that had no time to end
        with self._committing:
            for sink in self._own():
                _if_possible(sink.vertex_id, lambda sink=sink: sink.discard(batch_id))  # type: ignore[misc]
            for name, other in self._sinks.items():
                if callable(close := getattr(other, "close", None)):
                    _if_possible(name, close)

    def collected(self, vertex_id: VertexId) -> Collected:
        """Return the last rows of a collect sink. Raises NoSuchSink."""
        sink = self._sinks.get(vertex_id)
        if not isinstance(sink, CollectSink):
            known = [name for name, other in self._sinks.items() if isinstance(other, CollectSink)]
            raise NoSuchSink(
                f"{vertex_id} is not a collect sink of this task", hint=f"it has {', '.join(known) or 'none'}"
            )
        return sink.read()

    def _own(self) -> list[CommittingSink]:
        return [sink for sink in self._sinks.values() if isinstance(sink, CommittingSink)]


def _write(
    sinks: Mapping[VertexId, BatchSink], frame: DataFrame, epoch: int, tasks: int | None, *, at_once: bool = False
) -> dict[str, int]:
    """Write the same rows to some sinks. Returns the rows written, by vertex.

    `at_once`: if the frame is persisted, all of it is computed before a sink reads it. A sink that reads only a part,
    or by other Spark tasks, would have bad records divided among tasks in another way than the next one.
    """
    persist = len(sinks) != 1 or not all(sink.reads_all for sink in sinks.values())
    if tasks is not None or persist:
        frame = frame.coalesce(tasks or ALL_PARTITIONS)  # once: of two, Spark drops the first
    if not persist:
        return _written(_each(sinks, frame, epoch), 0)  # 0 is not used: a sink that reads all rows also counts them
    frame = frame.persist()
    try:
        if at_once:
            _rows(frame)
        written = _each(sinks, frame, epoch)
        return _written(written, _rows(frame))  # also computes what the sinks have not read
    finally:
        frame.unpersist()


def _each(sinks: Mapping[VertexId, BatchSink], frame: DataFrame, epoch: int) -> dict[VertexId, int | None]:
    return {vertex: sink.write(frame, epoch) for vertex, sink in sinks.items()}


def _written(counted: Mapping[VertexId, int | None], given: int) -> dict[str, int]:
    """Return the rows written by vertex. `given`: the rows of the frame, for sinks that have not counted."""
    return {vertex: given if rows is None else rows for vertex, rows in counted.items()}


def _rows(frame: DataFrame) -> int:
    """Count the rows of a persisted frame, and compute what is not computed yet.

    Spark counts the rows of a partition when it stores it, once, however often the partition is read or its task is
    tried. So the count needs no Spark job if the sinks have read all rows.
    """
    java: Any = frame._jdf
    cached = java.sparkSession().sharedState().cacheManager().lookupCachedData(java)
    if cached.isDefined():
        kept = cached.get().cachedRepresentation().cacheBuilder()
        if kept.isCachedColumnBuffersLoaded():
            return int(kept.materializedRowCount())
    return frame.count()


def _if_possible(sink: VertexId, action: Callable[[], None]) -> None:
    try:
        action()
    except BaseException as error:  # user code, or a database that cannot be reached
        log.warning("a sink could not clean up", sink=sink, error=hidden(str(error)))


@contextmanager
def _as_failure() -> Iterator[None]:
    """Turn whatever user code or a database raises into a RemoteError: the next try may succeed."""
    try:
        yield
    except MinflinkError:
        raise
    except BaseException as error:
        raise RemoteError(batch_failure(error)) from error


def make_sinks(
    session: Session, plan: Plan, request: RunTask, code: JobCode, exchange: BatchSink | None = None
) -> TaskSinks:
    """Make the sinks of a task. `exchange`: the sink that feeds other tasks.

    Raises UnfitSink, and what importing a python sink raises.
    """
    made = {vertex.id: _make(session, vertex, plan, request, code) for vertex in plan.sinks}
    results = {vertex.id: made[vertex.id] for vertex in plan.sinks if vertex.inputs}
    if exchange is not None:
        results[request.task.end] = exchange
    if all(vertex.on_bad_record is None for vertex in request.task.vertices):
        return TaskSinks(results)
    specified = {vertex.id: vertex.sink for vertex in plan.sinks if not vertex.inputs and vertex.sink is not None}
    return TaskSinks(
        results,
        BadRecordSinks(
            root=Path(request.directory) / "bad-records",
            senders=senders(request.task.vertices),
            sinks={name: made[name] for name in specified},
            specified=specified,
        ),
    )


def _make(session: Session, vertex: Vertex, plan: Plan, request: RunTask, code: JobCode) -> BatchSink:
    assert vertex.sink is not None
    sink, job_id, attempt_id = vertex.sink, request.job.job_id, request.attempt_id
    if sink.python is not None:
        found = check_code(sink, code)
        if delivery_of(sink) is not Delivery.EXACTLY_ONCE:
            return PythonSink(found)
        context = SinkContext(job_id=job_id, sink=vertex.id, attempt_id=attempt_id, params=dict(request.job.params))
        return CommittingSink(vertex.id, job_id, attempt_id, found(context))
    if sink.format in FILE_FORMATS:
        return FilesSink(session, vertex, job_id, attempt_id, request.directory)
    if sink.format == "jdbc" and (key_of(sink) or delivery_of(sink) is Delivery.EXACTLY_ONCE):
        staging = Staging(session, sink, job_id, vertex.id, attempt_id)
        if (columns := change_columns(sink)) is not None:
            return UpsertSink(staging, columns)
        return CommittingSink(vertex.id, job_id, attempt_id, StagedRows(staging))
    if sink.format == "kafka" and delivery_of(sink) is Delivery.EXACTLY_ONCE:
        records = StagedRecords(
            session, sink, job_id, vertex.id, attempt_id, request.directory, plan.encoder(vertex.id)
        )
        return CommittingSink(vertex.id, job_id, attempt_id, records)
    if sink.format in TABLE_FORMATS:
        rows = rows_of(sink, job_id, vertex.id, request.directory)
        compactor = Compactor(sink, job_id, vertex.id) if sink.compaction is not None else None
        return CommittingSink(vertex.id, job_id, attempt_id, rows, compactor=compactor)
    if sink.format == "collect":
        return CollectSink(sink, plan.output_mode)
    if sink.format == "console":
        return ConsoleSink(vertex.id, sink)
    return WriterSink(sink, plan.encoder(vertex.id))
