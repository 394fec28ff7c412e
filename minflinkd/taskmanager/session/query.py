"""One running attempt of a task: its query from start to end, its snapshots, and why it ended.

Everything here blocks and runs on threads. What happens by itself is told through `Events`, from those threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from minflinkd.rpc.messages import Collected, TaskMetrics
from minflinkd.rpc.snapshot import RowCounts
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.exchange.channels import no_channels
from minflinkd.taskmanager.exchange.log import ExchangeDamaged
from minflinkd.taskmanager.session import bounded, plan, snapshot, steady_plans
from minflinkd.taskmanager.session.backpressure import Backpressure
from minflinkd.taskmanager.session.batch_input import failed_input
from minflinkd.taskmanager.session.batches import MicroBatches
from minflinkd.taskmanager.session.callback import ATTEMPT_KEY, BatchCallback
from minflinkd.taskmanager.session.code import NO_CODE, CodeCache
from minflinkd.taskmanager.session.continuation import Standing
from minflinkd.taskmanager.session.exchange_sink import ExchangeSink
from minflinkd.taskmanager.session.failures import QueryEnded, query_failure
from minflinkd.taskmanager.session.opening import Opening
from minflinkd.taskmanager.session.prepared import Prepared
from minflinkd.taskmanager.session.progress import Progress
from minflinkd.taskmanager.session.restoring import Restoring, Start
from minflinkd.taskmanager.session.scheduling import pool
from minflinkd.taskmanager.session.sinks import TaskSinks, make_sinks
from minflinkd.taskmanager.session.snapshotter import Snapshotter
from minflinkd.taskmanager.session.spark import Session
from minflinkd.taskmanager.session.stores import StateStores
from minflinkd.taskmanager.session.watermarks import Watermarks, finds_input
from minflinkd.taskmanager.session_protocol import (
    RunTask,
    SnapshotTaken,
    TakeSnapshot,
    TaskRunning,
    TaskStopped,
)

log = structlog.get_logger(__name__)

_HANDED_OVER = 30.0  # seconds, many times what it takes
_REOPENED = 0.02  # seconds between two looks at a checkpoint to stop with
_WATCH = 0.1  # seconds between two looks at a running query's progress; its end is seen at once
_REPORT = 1.0  # seconds that a snapshot waits for Spark's report of its micro-batch, many times what that takes
_LOOK = 1.0  # seconds between two looks whether a query without input so far has some now
_LAST_WORD = 10.0  # seconds, many times what it takes to see that the query has failed, or that the JVM is gone


@dataclass(frozen=True)
class Events:
    """Called from threads, in order, at most one of failed and input_ended last."""

    batch_finished: Callable[[TaskMetrics], None]
    input_ended: Callable[[TaskMetrics], None]
    failed: Callable[[ErrorInfo], None]


@dataclass(frozen=True)
class Engine:
    """What all tasks of a child share."""

    session: Session
    callback: BatchCallback
    code: CodeCache
    stores: StateStores
    prepared: Prepared = field(default_factory=Prepared)


class RunningTask:
    """`start` once, then `watch` on a thread of its own until it returns; `stop` at any time.

    `before`: what an attempt has left that this one may go on from.
    """

    def __init__(self, engine: Engine, request: RunTask, events: Events, before: Standing | None = None) -> None:
        self._engine = engine
        self._request = request
        self._events = events
        self.directory = request.directory
        self._checkpoint = Path(request.directory) / "checkpoint"
        self._query: StreamingQuery | None = None
        self._code = NO_CODE
        self._plan: plan.Plan | None = None
        self._before = before
        self._began = Start(self._checkpoint)
        self._parked: str | None = None  # for which run of a query the stores stay open behind this one's end
        self._let_end = False  # the query ends behind the micro-batch that it commits
        self._bounded = False  # runs to the end of its input
        self._stores_here = threading.Event()  # the query has the stores that are handed over to it, if any are
        self._stores_here.set()
        self._sinks: TaskSinks | None = None
        self._stopping = threading.Event()
        self._watched = threading.Event()
        self._lock = threading.Lock()
        self._snapshots: Snapshotter | None = None
        self._channels = no_channels()
        self._batches: MicroBatches | None = None
        self._backpressure = Backpressure()
        self._progress = Progress(events.batch_finished, self._backpressure)
        self._look_at = 0.0  # monotonic

    # --- start and end -------------------------------------------------------------------------------------------

    def start(self) -> TaskRunning:
        """Raises TaskNotBuilt, UnusableArtifact, LibraryConflict, and what Spark raises at a query's start."""
        try:
            return self._start()
        except BaseException:
            self._release()
            raise

    def _start(self) -> TaskRunning:
        request, engine = self._request, self._engine
        began = time.monotonic()
        opening = Opening(request, self._checkpoint)
        inputs = opening.await_inputs(self._stopping)
        prepared = engine.prepared.take(request.job, request.task, inputs)
        code = self._code = prepared.code if prepared else engine.code.load(request.job.job_id, request.artifacts)
        if prepared is not None:
            self._plan = prepared.plan
            plan.activate(engine.session, self._plan.spark)  # it was built on another thread
        loaded = time.monotonic()
        if self._plan is None:
            self._plan = plan.build(engine.session, request.job, request.task, code, inputs)
        frame = self._plan.require()
        exchange = None
        if (output := opening.output(self._plan.schema)) is not None:
            exchange = ExchangeSink(output.directory)
        with code.in_session(self._plan.spark):
            self._sinks = make_sinks(engine.session, self._plan, request, code, exchange)
        built = time.monotonic()
        with code.in_session(self._plan.spark):
            self._sinks.restore(request.restored.transactions if request.restored is not None else ())
        restoring = Restoring(engine.session, request, self._checkpoint, self._before, self._stopping)
        self._began = restoring.prepare(self._plan)
        self._checkpoint = self._began.checkpoint
        if self.continues:
            self._stores_here.clear()
        self._channels = opening.channels(output, self._checkpoint, self._plan.exchanges)
        self._batches = batches = self._micro_batches(self._plan, self._sinks, exchange)
        self._snapshots = Snapshotter(
            self._checkpoint, self._plan.operators, self._channels, self._sinks.ledgers, self._has_ended
        )
        restored = time.monotonic()
        engine.callback.register(request.attempt_id, batches.process)
        for source in self._plan.inputs:
            source.bind(self._channels, lambda: engine.callback.called_by(request.attempt_id), batches.input_failed)
        try:
            with code.in_session(self._plan.spark):
                self._query = self._start_query(frame)
            if self.continues and self._before is not None:
                stores = engine.stores.hand_over(self._before.run_id, self._run_id)
                engine.stores.forget(self._before.run_id)
                log.info("an attempt goes on in open state stores", attempt=request.attempt_id, stores=stores)
        except BaseException:
            self._stopping.set()
            self._stores_here.set()
            if self._query is not None:
                with suppress(PySparkException, Py4JError):
                    self._query.stop()
                    engine.stores.close(self._run_id)  # nobody unloads an attempt that did not start
            engine.callback.release(request.attempt_id)
            raise
        self._stores_here.set()
        ended = time.monotonic()
        phases = {
            "code": loaded - began,
            "build": built - loaded,
            "prepare": restored - built,
            "start": ended - restored,
        }
        return TaskRunning(phases=phases, operators=self._plan.operators, moved=self._began.moved)

    def _micro_batches(self, built: plan.Plan, sinks: TaskSinks, exchange: ExchangeSink | None) -> MicroBatches:
        stateful = any(node.stateful for node in built.operators)
        output = self._request.output
        return MicroBatches(
            plan=built,
            sinks=sinks,
            channels=self._channels,
            exchange=exchange,
            max_backlog=output.max_backlog if output is not None else 0,
            watermarks=Watermarks(self._engine.session, built.watermarks, stateful=stateful),
            checkpoint=self._checkpoint,
            progress=self._progress,
            backpressure=self._backpressure,
            stopping=self._stopping,
            stores_here=self._stores_here,
            execution=lambda: self._execution,
            published=self._published,
        )

    def _start_query(self, frame: DataFrame) -> StreamingQuery:
        assert self._plan is not None
        job = self._request.job
        self._plan.spark.conf.set(ATTEMPT_KEY, self._request.attempt_id)
        steady_plans.hold(self._plan.spark)  # classes of sinks are made after the plan was built
        writer = (
            frame.writeStream.outputMode(self._plan.output_mode.value)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(processingTime=f"{round(job.trigger_interval * 1000)} milliseconds")
        )
        self._engine.callback.attach(writer)
        with pool(self._engine.session.spark.sparkContext, job.job_id):
            return writer.start()

    def watch(self) -> None:
        """Report progress until the query ends; then, unless it was stopped, why."""
        if self.continues:  # what was laid out for it would lie there as long as it lives
            snapshot.remove(Path(self.directory) / "checkpoint")
        try:
            while True:
                java_query = self._follow()
                if not self._let_end or not self._goes_on():
                    break
            if not self._stopping.is_set():
                self._failed(self._with_input(self._batch_error or query_failure(java_query)))
        except ExchangeDamaged as error:
            self._failed(error.info())
        except Exception as error:
            self._unforeseen(error)
        finally:
            self._watched.set()

    def _follow(self) -> Any:
        """Spark's query, when it has ended."""
        assert self._query is not None
        java_query: Any = self._query._jsq
        while True:
            with suppress(PySparkException, Py4JError):
                if java_query.awaitTermination(round(_WATCH * 1000)):
                    return java_query
            if not java_query.isActive():
                return java_query
            self._report(java_query)
            if self._batches is not None:
                self._batches.look_at_exchanges()

    def _published(self) -> None:
        if self._channels.closed_after is not None and not self._bounded:
            self._let_query_end()

    def _let_query_end(self) -> None:
        """Behind the cut of a checkpoint to stop with: to plan one more micro-batch would only delay the end."""
        self._park_stores()  # before Spark tells its maintenance that the run has ended
        self._let_end = True
        self._execution.state().set(bounded.terminated(self._engine.session))

    def _goes_on(self) -> bool:
        """After the query has ended for such a cut, or for a micro-batch without rows: let it go on where it stands.

        After a cut only if the checkpoint came to nothing.
        """
        while self._channels.closed_after is not None:
            if self._stopping.wait(_REOPENED):
                return False
        with self._lock:
            if self._stopping.is_set() or self._batch_error is not None:
                return False
            assert self._plan is not None
            log.info("a query goes on", attempt=self._request.attempt_id, drained=self._bounded)
            self._stores_here.clear()
            self._let_end = False
            plan.activate(self._engine.session, self._plan.spark)
            try:
                with self._code.in_session(self._plan.spark):
                    self._query = self._start_query(self._plan.require())
                if self._parked is not None:
                    self._engine.stores.hand_over(self._parked, self._run_id)
                    self._engine.stores.forget(self._parked)
                    self._parked = None
            finally:
                self._stores_here.set()
        return True

    def run_to_end(self) -> None:
        """For a bounded task, beside `watch`. The query's own failure is `watch`'s to report."""
        self._bounded = True
        try:
            self._await_first_batch()
            assert self._query is not None
            java_query: Any = self._query._jsq
            exchanges = frozenset(self._plan.exchanges if self._plan is not None else ())
            ended = bounded.run_to_end(self._engine.session, java_query, exchanges, self._channels.all_ended)
            if ended and not self._stopping.is_set():
                self._channels.put_end()
                self._report(java_query)
                self._events.input_ended(self._progress.metrics)
        except Exception as error:
            self._unforeseen(error)

    def _await_first_batch(self) -> None:
        """Let a restored query that has had no input since run a micro-batch without rows: then its windows can fire.

        A task that reads an exchange has one anyway, with the end of that.
        """
        assert self._plan is not None
        assert self._query is not None
        before: Any = self._query
        restored = self._request.restored
        if restored is None or restored.batch_id < 0 or restored.input_ended:
            return
        if self._plan.exchanges or not any(node.stateful for node in self._plan.operators):
            return
        self._let_end = True  # before it ends: to `watch` it would have failed
        park = self._park if self.continues else lambda: None  # else no store is open before a first micro-batch
        if not bounded.end_for_empty_batch(self._engine.session, self._execution, self._checkpoint, park):
            self._let_end = False
            return
        before._jsq.stop()
        while self._query is before and not self._watched.wait(_REOPENED):
            pass

    def _failed(self, error: ErrorInfo) -> None:
        """Told once, and never of a query that was to stop."""
        with self._lock:
            stopping = self._stopping.is_set()
            self._stopping.set()
        if not stopping:
            self._events.failed(error)

    def _with_input(self, error: ErrorInfo) -> ErrorInfo:
        """With the files and offsets among which the record is, where it was a record that failed."""
        if error.hint or error.code not in ("user-code", "spark-query") or self._plan is None:
            return error
        return msgspec.structs.replace(error, hint=failed_input(self._checkpoint, self._plan.operators))

    def _unforeseen(self, error: Exception) -> None:
        """Nobody would look after the query any more. Not told at once: of a query that has failed `watch` says why,
        and a lost JVM, of which the child tells, ends this process.
        """
        if not self._stopping.wait(_LAST_WORD):
            log.error("a running query cannot be followed", attempt=self._request.attempt_id, exc_info=error)
            why = f"the query cannot be followed any more: {type(error).__name__}: {error}"
            self._failed(QueryEnded(why).info())

    @property
    def continues(self) -> bool:
        """In the directory, and the state stores, of the attempt before it."""
        return self._began.continues

    @property
    def _batch_error(self) -> ErrorInfo | None:
        return self._batches.error if self._batches is not None else None

    def request_stop(self) -> None:
        """From here on the query's end is no failure, and a snapshot that waits gives up."""
        self._stopping.set()

    def interrupt_start(self) -> None:
        """End Spark jobs that prepare the state, which may take long. Blocks shortly."""
        with suppress(PySparkException, Py4JError):
            self._engine.session.spark.sparkContext.cancelJobsWithTag(self._request.attempt_id)

    def stop(self) -> TaskStopped:
        """Blocks until the query's thread is gone, for ever if user code does not come back."""
        with self._lock:
            self._stopping.set()
        if self._query is not None:
            java_query: Any = self._query._jsq
            try:
                if not self._let_end:
                    self._park_stores()
                java_query.stop()
            except (PySparkException, Py4JError) as error:
                log.warning("a query does not stop in order", attempt=self._request.attempt_id, error=str(error))
            if java_query.streamingQuery().queryExecutionThread().isAlive():
                return TaskStopped(ended=False)
            self._watched.wait()
            self._engine.stores.await_tasks(self._run_id)
        self._close_sinks()
        self._engine.callback.release(self._request.attempt_id)
        self._release()
        return TaskStopped(ended=True)

    def _park_stores(self) -> None:
        """Behind the cut of a checkpoint to stop with no micro-batch begins, and another attempt may want them."""
        closed = self._channels.closed_after is not None
        if closed and self._parked is None and not self._engine.session.config.on_cluster:
            self._park()

    def _park(self) -> None:
        self._parked = str(uuid4())
        self._engine.stores.hand_over(self._run_id, self._parked)

    def standing(self) -> Standing | None:
        """After `stop`: where another attempt may go on."""
        cut = self._channels.closed_after
        if cut is None or self._plan is None or self._parked is None:
            return None
        job, task = self._request.job, self._request.task
        return Standing(
            job_id=job.job_id,
            task_id=task.id,
            parallelism=task.parallelism,
            spark=job.spark,
            operators=self._plan.operators,
            checkpoint_id=cut,
            batch_id=self._channels.published,
            run_id=self._parked,
            checkpoint=self._checkpoint,
        )

    def unload(self) -> bool:
        """After `stop`: close the state stores. Blocks; whether all are closed. Nobody waits for it who goes on with a

        copy of the state: the attempt's directory is its own.
        """
        if self._query is None:
            return True
        closed = [self._engine.stores.close(run) for run in (self._run_id, self._parked) if run is not None]
        return all(closed)

    @property
    def _run_id(self) -> str:
        assert self._query is not None
        java_query: Any = self._query._jsq
        return str(java_query.runId().toString())

    def _release(self) -> None:
        if self._plan is not None:
            self._plan.release()
        self._code.release()

    def _has_ended(self) -> bool:
        return self._stopping.is_set() or self._watched.is_set()

    def _close_sinks(self) -> None:
        if self._sinks is not None and self._plan is not None:
            covered = self._snapshots.covered() if self._snapshots is not None else -1
            with self._code.in_session(self._plan.spark):
                self._sinks.close(covered)

    @property
    def _execution(self) -> Any:
        assert self._query is not None
        java_query: Any = self._query._jsq
        return java_query.streamingQuery()

    def _report(self, java_query: Any) -> None:
        names = self._plan.source_names if self._plan is not None else {}
        exchanges = set(self._plan.exchanges.values()) if self._plan is not None else ()
        scans = self._plan.scans if self._plan is not None else {}
        backlog = self._channels.backlog()
        self._progress.report(java_query, names, backlog, exchanges=exchanges, scans=scans)
        if self._progress.is_awaited and time.monotonic() >= self._look_at:
            with suppress(PySparkException, Py4JError):
                self._look_for_input()

    def _look_for_input(self) -> None:
        """Tell whether the query waits for input: those who wait for its first micro-batch then wait no longer."""
        found = finds_input(self._execution)
        if found is not None:
            self._progress.waits(not found)
        if found is False:  # perhaps for days
            self._look_at = time.monotonic() + _LOOK

    # --- snapshots -----------------------------------------------------------------------------------------------

    def take_snapshot(self, request: TakeSnapshot) -> SnapshotTaken:
        """Raises SnapshotFailed, with nothing left in the target directory."""
        assert self._snapshots is not None
        taken = self._snapshots.take(request)
        return msgspec.structs.replace(taken, rows=self._rows_at(taken.batch_id))

    def _rows_at(self, batch_id: int) -> RowCounts:
        """Spark reports what a micro-batch has read right after its commit.

        A checkpoint does not fail if the report is late: its counts then lack the rows of that micro-batch.
        """
        assert self._query is not None
        deadline = time.monotonic() + _REPORT
        while not self._progress.has_reported(batch_id) and time.monotonic() < deadline:
            with suppress(PySparkException, Py4JError):
                self._report(self._query._jsq)
            if self._stopping.wait(_REOPENED / 4):
                break
        return self._progress.rows_at(batch_id)

    def abort_snapshot(self, checkpoint_id: int) -> None:
        if self._snapshots is not None:
            self._snapshots.abort(checkpoint_id)

    def confirm(self, checkpoint_id: int) -> None:
        """Blocks while sinks commit, and raises what they raise. Idempotent; a checkpoint that is not known here

        covers nothing.
        """
        if self._snapshots is None or (batch_id := self._snapshots.micro_batch(checkpoint_id)) is None:
            return
        assert self._plan is not None
        assert self._sinks is not None
        with self._code.in_session(self._plan.spark):
            self._sinks.commit(checkpoint_id, batch_id)
        self._snapshots.confirm(checkpoint_id)

    def collected(self, vertex_id: VertexId) -> Collected:
        """Raises NoSuchSink."""
        assert self._sinks is not None
        return self._sinks.collected(vertex_id)
