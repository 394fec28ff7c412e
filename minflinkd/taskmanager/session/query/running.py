"""One running attempt of a task: its query from start to end, its snapshots, and why it ended.

Everything here blocks and runs on threads. Unrequested events are reported through `Events`, from those threads.
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
from minflinkd.runtime.errors import ErrorInfo, Kind
from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.child.protocol import (
    RunTask,
    SnapshotTaken,
    TakeSnapshot,
    TaskRunning,
    TaskStopped,
)
from minflinkd.taskmanager.exchange.channels import no_channels
from minflinkd.taskmanager.exchange.log import ExchangeDamaged
from minflinkd.taskmanager.session.code.libraries import NO_CODE, CodeCache
from minflinkd.taskmanager.session.exchange.backpressure import Backpressure
from minflinkd.taskmanager.session.exchange.opening import Opening
from minflinkd.taskmanager.session.exchange.writing import ExchangeSink
from minflinkd.taskmanager.session.plan import bounded
from minflinkd.taskmanager.session.plan.building import build
from minflinkd.taskmanager.session.plan.plan import Plan
from minflinkd.taskmanager.session.plan.prepared import Prepared
from minflinkd.taskmanager.session.plan.watermarks import Watermarks, finds_input
from minflinkd.taskmanager.session.query.batch_input import failed_input
from minflinkd.taskmanager.session.query.batches import MicroBatches
from minflinkd.taskmanager.session.query.progress import Progress
from minflinkd.taskmanager.session.query.snapshotter import Snapshotter
from minflinkd.taskmanager.session.restore.continuation import Standing
from minflinkd.taskmanager.session.restore.directory import Restoring, Start
from minflinkd.taskmanager.session.sinks import TaskSinks, make_sinks
from minflinkd.taskmanager.session.spark import steady_plans
from minflinkd.taskmanager.session.spark.callback import ATTEMPT_KEY, BatchCallback
from minflinkd.taskmanager.session.spark.failures import QueryEnded, query_failure
from minflinkd.taskmanager.session.spark.scheduling import pool
from minflinkd.taskmanager.session.spark.session import Session, activate
from minflinkd.taskmanager.session.state import snapshot
from minflinkd.taskmanager.session.state.stores import StateStores

log = structlog.get_logger(__name__)

_HANDED_OVER = 30.0  # seconds; a handover takes a small fraction of this
_REOPENED = 0.02  # seconds between two polls of a stop checkpoint
_WATCH = 0.1  # seconds between two polls of a running query's progress; its end is noticed at once
_REPORT = 1.0  # seconds that a snapshot waits for Spark's report of its micro-batch, which comes much sooner
_LOOK = 1.0  # seconds between two checks whether a query that has had no input has some now
_LAST_WORD = 10.0  # seconds; it takes much less to see that the query has failed, or that the JVM is gone


@dataclass(frozen=True)
class Events:
    """Callbacks, called from threads and in order. At most one of `failed` and `input_ended` is called, and last."""

    batch_finished: Callable[[TaskMetrics], None]
    input_ended: Callable[[TaskMetrics], None]
    failed: Callable[[ErrorInfo], None]


@dataclass(frozen=True)
class Engine:
    """What all tasks of a session child share."""

    session: Session
    callback: BatchCallback
    code: CodeCache
    stores: StateStores
    prepared: Prepared = field(default_factory=Prepared)


class RunningTask:
    """Runs one attempt. Call `start` once, then `watch` on its own thread until it returns; `stop` at any time.

    `before`: what a stopped attempt has left, from which this one may continue.
    """

    def __init__(self, engine: Engine, request: RunTask, events: Events, before: Standing | None = None) -> None:
        self._engine = engine
        self._request = request
        self._events = events
        self.directory = request.directory
        self._checkpoint = Path(request.directory) / "checkpoint"
        self._query: StreamingQuery | None = None
        self._code = NO_CODE
        self._plan: Plan | None = None
        self._before = before
        self._began = Start(self._checkpoint)
        self._parked: str | None = None  # made-up run id under which the stores stay open after this query ends
        self._let_end = False  # the query ends, as requested, after the micro-batch that it commits
        self._bounded = False  # runs to the end of its input
        self._stores_here = threading.Event()  # set unless the query still waits for stores to be handed over to it
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
        """Start the query. Raises TaskNotBuilt, UnusableArtifact, LibraryConflict, and what Spark raises at a start."""
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
            activate(engine.session, self._plan.spark)  # the plan was built on another thread
        loaded = time.monotonic()
        if self._plan is None:
            self._plan = build(engine.session, request.job, request.task, code, inputs)
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
            # The new run's id exists only after Spark has started the query. Until the stores are under that id, its
            # first micro-batch must wait: otherwise Spark would open stores of its own.
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
                    engine.stores.close(self._run_id)  # the supervisor does not unload an attempt that did not start
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

    def _micro_batches(self, built: Plan, sinks: TaskSinks, exchange: ExchangeSink | None) -> MicroBatches:
        output = self._request.output
        return MicroBatches(
            plan=built,
            sinks=sinks,
            channels=self._channels,
            exchange=exchange,
            max_backlog=output.max_backlog if output is not None else 0,
            watermarks=Watermarks(self._engine.session, built.watermarks, stateful=built.keeps_state),
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
        # User code of sinks has run since the plan was built.
        steady_plans.hold(self._plan.spark, stateful=self._plan.keeps_state)
        writer = (
            frame.writeStream.outputMode(self._plan.output_mode.value)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(processingTime=f"{round(job.trigger_interval * 1000)} milliseconds")
        )
        self._engine.callback.attach(writer)
        with pool(self._engine.session.spark.sparkContext, job.job_id):
            return writer.start()

    def watch(self) -> None:
        """Report progress until the query ends. Then report why it ended, unless it was stopped."""
        if self.continues:  # the restored files are not used, and would take up space as long as the attempt lives
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
        """Report progress until the query has ended. Returns Spark's object of the query."""
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
        """End the query after the cut of a stop checkpoint: planning another micro-batch would only delay the end."""
        self._park_stores()  # first: when the run has ended, Spark's maintenance may close its stores
        self._let_end = True
        self._execution.state().set(bounded.terminated(self._engine.session))

    def _goes_on(self) -> bool:
        """Restart a query that ended on purpose: for a stop checkpoint that was aborted, or for an empty micro-batch.

        While a stop checkpoint is in force, waits until it is aborted or the attempt stops. Returns whether the query
        runs again.
        """
        while self._channels.closed_after is not None:
            if self._stopping.wait(_REOPENED):
                return False
        with self._lock:  # so that `stop` either comes first or finds the new query
            if self._stopping.is_set() or self._batch_error is not None:
                return False
            assert self._plan is not None
            log.info("a query goes on", attempt=self._request.attempt_id, drained=self._bounded)
            self._stores_here.clear()
            self._let_end = False
            activate(self._engine.session, self._plan.spark)
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
        """Run a bounded task to the end of its input. If the query fails, `watch` reports it, on its own thread."""
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
        """Make a restored query without new input run an empty micro-batch, so that its windows can fire.

        A task that reads an exchange runs one anyway, when the exchange ends.
        """
        assert self._plan is not None
        assert self._query is not None
        before: Any = self._query
        restored = self._request.restored
        if restored is None or restored.batch_id < 0 or restored.input_ended:
            return
        if self._plan.exchanges or not self._plan.keeps_state:
            return
        self._let_end = True  # before the query ends: otherwise `watch` would take its end for a failure
        park = self._park if self.continues else lambda: None  # otherwise no store is open before a first micro-batch
        if not bounded.end_for_empty_batch(self._engine.session, self._execution, self._checkpoint, park):
            self._let_end = False
            return
        before._jsq.stop()
        while self._query is before and not self._watched.wait(_REOPENED):  # until `watch` has started the next query
            pass

    def _failed(self, error: ErrorInfo) -> None:
        """Report the failure once, and never if the query was told to stop."""
        with self._lock:
            stopping = self._stopping.is_set()
            self._stopping.set()
        if not stopping:
            self._events.failed(error)

    def _with_input(self, error: ErrorInfo) -> ErrorInfo:
        """Add a hint that names the files and offsets of the micro-batch, if a record may have caused the error."""
        if error.hint or error.kind is not Kind.JOB or self._plan is None:
            return error
        return msgspec.structs.replace(error, hint=failed_input(self._checkpoint, self._plan.operators))

    def _unforeseen(self, error: Exception) -> None:
        """Report that the query can no longer be followed, unless a better explanation comes first.

        Waits before it reports. If the query itself has failed, `watch` reports the reason; if the JVM is lost, the
        session child reports that and ends this process.
        """
        if not self._stopping.wait(_LAST_WORD):
            log.error("a running query cannot be followed", attempt=self._request.attempt_id, exc_info=error)
            why = f"the query cannot be followed any more: {type(error).__name__}: {error}"
            self._failed(QueryEnded(why).info())

    @property
    def continues(self) -> bool:
        """Whether it runs in the directory and the open state stores of the attempt before it."""
        return self._began.continues

    @property
    def _batch_error(self) -> ErrorInfo | None:
        return self._batches.error if self._batches is not None else None

    def request_stop(self) -> None:
        """Announce the stop: from here on the query's end is no failure, and a snapshot that waits gives up."""
        self._stopping.set()

    def interrupt_start(self) -> None:
        """Cancel the Spark jobs that prepare the state, as they may take long. Blocks for a short time."""
        with suppress(PySparkException, Py4JError):
            self._engine.session.spark.sparkContext.cancelJobsWithTag(self._request.attempt_id)

    def stop(self) -> TaskStopped:
        """Stop the query. Blocks until its thread is gone: forever, if user code does not return."""
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
        """Keep the state stores open for the next attempt, if this one stops with a stop checkpoint.

        No micro-batch begins after the cut of such a checkpoint, so the stores stand exactly at it.
        """
        closed = self._channels.closed_after is not None
        if closed and self._parked is None and not self._engine.session.config.on_cluster:
            self._park()

    def _park(self) -> None:
        # Maintenance closes the stores of a run that has ended, so they are moved to a run id that Spark does not know.
        self._parked = str(uuid4())
        self._engine.stores.hand_over(self._run_id, self._parked)

    def standing(self) -> Standing | None:
        """Return what another attempt may continue from, after `stop`; None if there is nothing."""
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
        """Close the state stores, after `stop`. Blocks. Returns whether all are closed.

        An attempt that starts from a copy of the state need not wait for this: it has a directory of its own.
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
        """Report whether the query waits for input: then nobody needs to wait for its first micro-batch."""
        found = finds_input(self._execution)
        if found is not None:
            self._progress.waits(not found)
        if found is False:  # there may be none for days: look less often
            self._look_at = time.monotonic() + _LOOK

    # --- snapshots -----------------------------------------------------------------------------------------------

    def take_snapshot(self, request: TakeSnapshot) -> SnapshotTaken:
        """Take a snapshot. Raises SnapshotFailed, with nothing left in the target directory."""
        assert self._snapshots is not None
        taken = self._snapshots.take(request)
        return msgspec.structs.replace(taken, rows=self._rows_at(taken.batch_id))

    def _rows_at(self, batch_id: int) -> RowCounts:
        """Return the attempt's row counts up to and including a micro-batch.

        Spark reports what a micro-batch has read right after its commit. If the report is late the checkpoint does not
        fail: its counts then lack the rows of that micro-batch.
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
        """Let the sinks commit what the checkpoint covers. Blocks meanwhile, and raises what they raise.

        Idempotent. A checkpoint that is not known here covers nothing.
        """
        if self._snapshots is None or (batch_id := self._snapshots.micro_batch(checkpoint_id)) is None:
            return
        assert self._plan is not None
        assert self._sinks is not None
        with self._code.in_session(self._plan.spark):
            self._sinks.commit(checkpoint_id, batch_id)
        self._snapshots.confirm(checkpoint_id)

    def collected(self, vertex_id: VertexId) -> Collected:
        """Return the last rows of a collect sink. Raises NoSuchSink."""
        assert self._sinks is not None
        return self._sinks.collected(vertex_id)
