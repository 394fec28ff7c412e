"""The running query of an attempt: its runs in Spark, its snapshots, and why it ended.

Everything here blocks and runs on threads. Unrequested events are reported through `Events`, from those threads.
"""

from __future__ import annotations

import shutil
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from minflinkd.rpc.messages import Collected, TaskMetrics, TaskPartitions
from minflinkd.rpc.snapshot import RowCounts
from minflinkd.runtime.errors import ErrorInfo, Kind
from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.child.protocol import NotResizable, SnapshotTaken, TakeSnapshot
from minflinkd.taskmanager.exchange.log import ExchangeDamaged
from minflinkd.taskmanager.session.exchange.backpressure import Backpressure
from minflinkd.taskmanager.session.plan import bounded
from minflinkd.taskmanager.session.plan.watermarks import Watermarks
from minflinkd.taskmanager.session.query.admission import Admission
from minflinkd.taskmanager.session.query.batch_input import failed_input
from minflinkd.taskmanager.session.query.batches import MicroBatches, shuffles, spark_tasks
from minflinkd.taskmanager.session.query.building import BuiltTask
from minflinkd.taskmanager.session.query.disk_space import DiskSpace, written_to
from minflinkd.taskmanager.session.query.ending import Ending
from minflinkd.taskmanager.session.query.pending import PendingRecordsMonitor
from minflinkd.taskmanager.session.query.progress import OtherFigures, Progress
from minflinkd.taskmanager.session.query.real_time import RealTimeBatches
from minflinkd.taskmanager.session.query.run import Gate, SparkRun
from minflinkd.taskmanager.session.query.snapshotter import Snapshotter
from minflinkd.taskmanager.session.query.stopped import StoppedQuery
from minflinkd.taskmanager.session.query.work import Workload, partitions
from minflinkd.taskmanager.session.restore.continuation import Standing
from minflinkd.taskmanager.session.spark import real_time_source, steady_plans
from minflinkd.taskmanager.session.spark.callback import ATTEMPT_KEY
from minflinkd.taskmanager.session.spark.failures import QueryEnded, hidden, query_failure
from minflinkd.taskmanager.session.spark.scheduling import bad_records, pool
from minflinkd.taskmanager.session.spark.session import activate
from minflinkd.taskmanager.session.state import snapshot, source_log

log = structlog.get_logger(__name__)

_PAUSE = 0.02  # seconds between two polls of a stop checkpoint
_WATCH = 0.1  # seconds between two polls of a running query's progress; its end is noticed at once
_REPORT = 1.0  # seconds that a snapshot waits for Spark's report of its micro-batch, which comes much sooner
_LOOK = 1.0  # seconds between two checks whether a query that has had no input has some now
_LAST_WORD = 10.0  # seconds; it takes much less to see that the query has failed, or that the JVM is gone
_TAKEN_OFF = 60.0  # seconds that Spark may need to take an ended query off its list, on a machine that is very busy


@dataclass(frozen=True)
class Events:
    """Callbacks, called from threads and in order. At most one of `failed` and `input_ended` is called, and last."""

    batch_finished: Callable[[TaskMetrics], None]
    input_ended: Callable[[TaskMetrics], None]
    failed: Callable[[ErrorInfo], None]


class RunningQuery:
    """The query of one attempt. `starting.start` makes it; then call `watch` on a thread of its own until it returns.

    `stop` may be called at any time.
    """

    def __init__(self, built: BuiltTask, events: Events, ending: Ending) -> None:
        self._built = built
        self._engine = built.engine
        self._request = built.request
        self._plan = built.plan
        self._channels = built.channels
        self.checkpoint = built.start.checkpoint
        self._events = events
        self._ending = ending
        self._gate = Gate(built.engine.stores)
        self._parked: str | None = None  # made-up run id under which the stores stay open after this query ends
        self._bounded = False  # runs to the end of its input
        self._parking = threading.Lock()
        self._watched = threading.Event()
        self._backpressure = Backpressure()
        in_batches = built.plan.real_time is None
        self._progress = Progress(events.batch_finished, self._backpressure, batches_are_work=in_batches)
        self._workload = Workload(built.engine.partitions)
        # In real-time mode a batch is committed with the checkpoint, long after its rows were written.
        asked = built.plan.kafka_sources if in_batches else {}
        self._pending = PendingRecordsMonitor(
            built.engine.session, asked, built.plan.operators, self.checkpoint, self._watched
        )
        self._look_at = 0.0  # monotonic
        self.resting: Future[None] | None = None  # in tests of jobs, see `stepping`
        output = built.request.output
        admission = Admission(
            channels=built.channels,
            space=DiskSpace(written_to(built.request.directory, built.plan.sinks), built.request.min_free),
            max_backlog=output.max_backlog if output is not None else None,
            backpressure=self._backpressure,
            stopping=ending.over,
        )
        self.batches: MicroBatches | RealTimeBatches
        if (key := built.plan.real_time) is not None:
            self.batches = RealTimeBatches(
                plan=built.plan,
                control=real_time_source.control(built.engine.session, key),
                channels=built.channels,
                checkpoint=self.checkpoint,
                progress=self._progress,
                admission=admission,
                other_tasks=sum(max(shuffle, built.start.partitions) for shuffle in built.plan.shuffled),
                stopping=ending.over,
                gate=self._gate,
            )
        else:
            self.batches = MicroBatches(
                plan=built.plan,
                sinks=built.sinks,
                channels=built.channels,
                exchange=built.exchange,
                admission=admission,
                watermarks=Watermarks(built.engine.session, built.plan.watermarks, stateful=built.plan.keeps_state),
                checkpoint=self.checkpoint,
                progress=self._progress,
                tasks=spark_tasks(built.plan, built.request.task.parallelism, built.start.partitions),
                stopping=ending.over,
                gate=self._gate,
                callback=built.engine.callback,
                trigger_interval=built.request.job.trigger_interval,
                published=self._published,
            )
        self._snapshots = Snapshotter(
            self.checkpoint,
            built.plan.operators,
            built.channels,
            built.sinks.ledgers,
            ending.over.is_set,
            Path(built.request.directory),
            self.batches if isinstance(self.batches, RealTimeBatches) else None,
        )

    def open(self, stores_of: str | None) -> None:
        """Start a run of the query in Spark, with the state stores that are open under another run id, if any."""
        with self._built.code.in_session(self._plan.spark):
            self._gate.start(self._start, stores_of)

    def _start(self) -> SparkRun:
        job = self._request.job
        self._plan.spark.conf.set(ATTEMPT_KEY, self._request.attempt_id)
        # User code of sinks has run since the plan was built.
        steady_plans.hold(self._plan.spark, stateful=self._plan.keeps_state)
        writer = self._built.frame.writeStream.outputMode(self._plan.output_mode.value)
        writer.option("checkpointLocation", str(self.checkpoint))
        self.batches.prepare(writer)
        interval = self._plan.spark.conf.get("spark.sql.streaming.fileSource.log.compactInterval", "10")
        source_log.keep_intervals(self.checkpoint, int(interval or 10))
        context, bad = self._engine.session.spark.sparkContext, self._built.sinks.bad_records
        if bad is not None:  # left by a micro-batch of a run before, which this run repeats
            shutil.rmtree(bad, ignore_errors=True)
        with pool(context, job.job_id), bad_records(context, bad):
            return SparkRun(writer.start())

    @property
    def run_id(self) -> str:
        """Return Spark's id of its present run."""
        return self._gate.run().id

    @property
    def continues(self) -> bool:
        """Whether it runs in the directory and the open state stores of the attempt before it."""
        return self._built.start.continues

    @property
    def in_real_time(self) -> bool:
        return isinstance(self.batches, RealTimeBatches)

    @property
    def execution(self) -> Any:
        """Spark's MicroBatchExecution of the present run. Raises QueryEnded if there is none."""
        return self._gate.run().execution

    # --- until the query ends ------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Report progress until the query ends. Then report why it ended, unless it was stopped."""
        if self.continues:  # the restored files are not used, and would take up space as long as the attempt lives
            snapshot.remove(Path(self._request.directory) / "checkpoint")
        try:
            self._pending.start(f"pending records of {self._request.attempt_id}")
            run = self._follow()
            while self._ending.closed() and self._reopens():
                run = self._follow()
            if not self._ending.over.is_set():
                self._failed(self._with_input(self.batches.error or query_failure(run.java)))
        except ExchangeDamaged as error:
            self._failed(error.info())
        except Exception as error:
            self._unforeseen(error)
        finally:
            self._watched.set()

    def _follow(self) -> SparkRun:
        """Report progress until the present run has ended. Returns it."""
        run = self._gate.run()
        with self.batches.followed(run):
            return self._report_until_ended(run)

    def _report_until_ended(self, run: SparkRun) -> SparkRun:
        while True:
            with suppress(PySparkException, Py4JError):
                run.java.awaitTermination(round(_WATCH * 1000))
            if not run.java.isActive():
                # Its state says so before Spark has taken it off its list, and until then it cannot be opened again. So
                # does awaitTermination if its time is over. It returns sooner once the query is off the list.
                with suppress(PySparkException, Py4JError):
                    run.java.awaitTermination(round(_TAKEN_OFF * 1000))
                return run
            self._report(run)
            self._look_at_work(run)
            self.batches.look_at_exchanges()

    def _published(self, batch_id: int, took: float) -> None:
        """A micro-batch was published. If it is the last one of a stop checkpoint, end the query.

        To plan another micro-batch would only delay the end.
        """
        self._workload.finished(self._gate.run(), batch_id, took * 1000)
        if self._channels.closed_after is None or self._bounded or not self._ending.close():
            return
        self._park_at_cut()  # first: when the run has ended, Spark's maintenance may close its stores
        self._gate.run().execution.state().set(bounded.terminated(self._engine.session))

    def _reopens(self) -> bool:
        """Run a query again that ended on purpose: as a stop checkpoint was aborted, or for an empty micro-batch.

        While a stop checkpoint is in force, waits until it is aborted or the attempt stops. Returns whether it runs.
        """
        while self._channels.closed_after is not None:
            if self._ending.over.wait(_PAUSE):
                return False
        return self.batches.error is None and self._ending.reopen(self._open_again)

    def _open_again(self) -> None:
        log.info("a query goes on", attempt=self._request.attempt_id, drained=self._bounded)
        activate(self._engine.session, self._plan.spark)
        self.open(self._parked)
        self._parked = None

    def run_to_end(self) -> None:
        """Run a bounded task to the end of its input. If the query fails, `watch` reports it, on its own thread."""
        self._bounded = True
        try:
            self.run_empty_batch()
            run = self._gate.run()
            exchanges = frozenset(self._plan.exchanges)
            ended = bounded.run_to_end(self._engine.session, run.java, exchanges, self._channels.all_ended)
            if ended and not self._ending.over.is_set():
                self._channels.put_end()
                self._report(run)
                self._events.input_ended(self._progress.metrics)
        except Exception as error:
            self._unforeseen(error)

    def run_empty_batch(self) -> None:
        """Make a restored query without new input run an empty micro-batch, so that its windows can fire.

        A task that reads an exchange runs one anyway, when the exchange ends.
        """
        restored = self._request.restored
        if restored is None or restored.batch_id < 0 or restored.input_ended:
            return
        if self._plan.exchanges or not self._plan.keeps_state:
            return
        run = self._gate.run()
        if not self._ending.close():  # before the query ends: otherwise `watch` would take its end for a failure
            return
        park = self._park if self.continues else lambda: None  # otherwise no store is open before a first micro-batch
        if bounded.end_for_empty_batch(self._engine.session, run.execution, self.checkpoint, park):
            run.java.stop()
            self._ending.await_reopened()
        else:
            self._ending.keep_open()

    def resize(self, slots: int) -> None:
        """Have this many slots from the next micro-batch on. Raises NotResizable.

        State keeps its partitions, and more or fewer of them are computed at a time. A query without state is planned
        for its slots: if it shuffles, its plan has as many partitions as it had slots when it started.
        """
        if not self._plan.keeps_state and shuffles(self.execution):
            raise NotResizable(
                f"a query without state that shuffles has {self._built.start.partitions} partitions as long as it runs"
            )
        self.batches.tasks = spark_tasks(self._plan, slots, self._built.start.partitions)

    def _failed(self, error: ErrorInfo) -> None:
        """Report the failure once, and never if the query was told to stop."""
        if self._ending.fail():
            self._events.failed(error)

    def _with_input(self, error: ErrorInfo) -> ErrorInfo:
        """Add a hint that names the files and offsets of the micro-batch, if a record may have caused the error."""
        if error.hint or error.kind is not Kind.JOB:
            return error
        return msgspec.structs.replace(error, hint=failed_input(self.checkpoint, self._plan.operators))

    def _unforeseen(self, error: Exception) -> None:
        """Report that the query can no longer be followed, unless a better explanation comes first.

        Waits before it reports. If the query itself has failed, `watch` reports the reason; if the JVM is lost, the
        session child reports that and ends this process.
        """
        if not self._ending.over.wait(_LAST_WORD):
            trace = hidden("".join(traceback.format_exception(error)))
            log.error("a running query cannot be followed", attempt=self._request.attempt_id, exception=trace)
            why = hidden(f"the query cannot be followed any more: {type(error).__name__}: {error}")
            self._failed(QueryEnded(why).info())

    def _report(self, run: SparkRun) -> None:
        plan = self._plan
        self._progress.report(
            run.java,
            plan.source_names,
            self._channels.backlog(),
            exchanges=set(plan.exchanges.values()),
            scans=plan.scans,
            replayable=self._channels.replayable,
            others=OtherFigures(self._built.sinks.compactions, self.batches.figures(), self._pending.figures()),
        )
        if self._progress.is_awaited and time.monotonic() >= self._look_at:
            with suppress(PySparkException, Py4JError):
                self._look_for_input(run)

    def _look_at_work(self, run: SparkRun) -> None:
        """Report what the partitions of the last micro-batch did, if it was slow. Raises nothing."""
        told = self._progress.metrics
        work = self._workload.look(run, told.batch_id, told.batch_ms)
        if work is not None:
            self._progress.add(work)

    def _look_for_input(self, run: SparkRun) -> None:
        """Report whether the query waits for input: then nobody needs to wait for its first micro-batch."""
        found = self.batches.finds_input(run.execution)
        if found is not None:
            self._progress.waits(not found)
        if found is False:  # there may be none for days: look less often
            self._look_at = time.monotonic() + _LOOK

    # --- stop ----------------------------------------------------------------------------------------------------

    def stop(self) -> StoppedQuery | None:
        """Stop the query. Blocks until its thread is gone: forever, if user code does not return.

        Returns None if Spark gives up waiting for it.
        """
        self._ending.stop()
        run = self._gate.run_if_started()  # None if the query could not be opened again: nothing runs then
        if run is not None:
            with suppress(PySparkException, Py4JError):
                self._park_at_cut()
            if not run.stop(self._request.attempt_id):
                return None
        self._watched.wait()
        if run is not None:
            self._engine.stores.await_tasks(run.id)
        with self._built.code.in_session(self._plan.spark):
            self._built.sinks.close(self._snapshots.covered())
        self._engine.callback.release(self._request.attempt_id)
        self._built.release()
        runs = [one for one in (run.id if run is not None else None, self._parked) if one is not None]
        return StoppedQuery(self._request.directory, self._engine.stores, runs, self._standing())

    def _park_at_cut(self) -> None:
        """Keep the state stores open for the next attempt, if this one stops with a stop checkpoint.

        No micro-batch begins after the cut of such a checkpoint, so the stores are exactly at the cut.
        """
        with self._parking:
            closed = self._channels.closed_after is not None
            if closed and self._parked is None and not self._engine.session.config.on_cluster:
                self._park()

    def _park(self) -> None:
        # Maintenance closes the stores of a run that has ended, so they are moved to a run id that Spark does not know.
        self._parked = str(uuid4())
        self._engine.stores.hand_over(self._gate.run().id, self._parked)

    def _standing(self) -> Standing | None:
        cut = self._channels.closed_after
        if cut is None or self._parked is None:
            return None
        job, task = self._request.job, self._request.task
        return Standing(
            job_id=job.job_id,
            task_id=task.id,
            partitions=self._built.start.partitions,
            spark=job.spark,
            operators=self._plan.operators,
            checkpoint_id=cut,
            batch_id=self._channels.published,
            run_id=self._parked,
            checkpoint=self.checkpoint,
        )

    # --- snapshots -----------------------------------------------------------------------------------------------

    def take_snapshot(self, request: TakeSnapshot) -> SnapshotTaken:
        """Take a snapshot. Raises SnapshotFailed, with nothing left in the target directory."""
        taken = self._snapshots.take(request)
        return msgspec.structs.replace(taken, rows=self._rows_at(taken.batch_id))

    def _rows_at(self, batch_id: int) -> RowCounts:
        """Return the attempt's row counts up to and including a micro-batch.

        Spark reports what a micro-batch has read right after its commit. If the report is late the checkpoint does not
        fail: its counts then lack the rows of that micro-batch.
        """
        deadline = time.monotonic() + _REPORT
        while not self._progress.has_reported(batch_id) and time.monotonic() < deadline:
            with suppress(PySparkException, Py4JError, QueryEnded):
                self._report(self._gate.run())
            if self._ending.over.wait(_PAUSE / 4):
                break
        return self._progress.rows_at(batch_id)

    def abort_snapshot(self, checkpoint_id: int) -> None:
        self._snapshots.abort(checkpoint_id)

    def confirm(self, checkpoint_id: int) -> None:
        """Let the sinks commit what the checkpoint covers. Blocks meanwhile, and raises what they raise.

        Idempotent. A checkpoint that is not known here covers nothing.
        """
        if (batch_id := self._snapshots.micro_batch(checkpoint_id)) is None:
            return
        with self._built.code.in_session(self._plan.spark):
            self._built.sinks.commit(checkpoint_id, batch_id)
        self._snapshots.confirm(checkpoint_id)

    def collected(self, vertex_id: VertexId) -> Collected:
        """Return the last rows of a collect sink. Raises NoSuchSink."""
        return self._built.sinks.collected(vertex_id)

    def partitions(self) -> TaskPartitions:
        """Return what the partitions of its deciding stage have done. Raises QueryEnded if it does not run."""
        return partitions(self._engine.partitions, self._gate.run().id)
