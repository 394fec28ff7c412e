"""What happens in the micro-batches of one query and between them: waiting, sinks, exchanges and watermarks.

Spark calls `process` on the query's own thread. `look_at_exchanges` runs on the thread that watches the query.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from minflinkd.jobgraph.model import OutputMode
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.taskmanager.exchange.channels import TaskChannels
from minflinkd.taskmanager.exchange.log import Entry, EntryKind
from minflinkd.taskmanager.session.exchange.opening import exchange_positions
from minflinkd.taskmanager.session.exchange.writing import ExchangeSink
from minflinkd.taskmanager.session.plan.plan import Plan
from minflinkd.taskmanager.session.plan.watermarks import Watermarks, finds_input, is_idle
from minflinkd.taskmanager.session.query.admission import Admission
from minflinkd.taskmanager.session.query.progress import Progress
from minflinkd.taskmanager.session.query.run import Gate, SparkRun
from minflinkd.taskmanager.session.sinks import TaskSinks
from minflinkd.taskmanager.session.spark import steady_plans
from minflinkd.taskmanager.session.spark.callback import BatchCallback
from minflinkd.taskmanager.session.spark.failures import BatchFailed, QueryEnded, batch_failure, input_failure
from minflinkd.taskmanager.session.state import snapshot

log = structlog.get_logger(__name__)

_SHUFFLE = re.compile(r"(?<!\w)Exchange ")  # in Spark's text of a plan; a BroadcastExchange shuffles nothing


def spark_tasks(plan: Plan, slots: int, partitions: int) -> int | None:
    """Return by how many Spark tasks the sinks read a micro-batch; None: one for each partition.

    State may have more partitions than its task has slots. If each were a Spark task, the query would take slots that
    belong to others. So the micro-batch is read through `coalesce`: one Spark task computes several partitions, one
    after the other, each with its own state store.

    A complete result may be in an order, which `coalesce` does not keep. The stage between two shuffles cannot be
    coalesced from here; the job's scheduler pool keeps it from starving others.
    """
    divides = plan.keeps_state and plan.output_mode is not OutputMode.COMPLETE
    return slots if divides and slots < partitions else None


def shuffles(execution: Any) -> bool:
    """Whether the plan of the last micro-batch has a shuffle, or there was none yet.

    `execution`: Spark's MicroBatchExecution.
    """
    last = execution.lastExecution()
    return last is None or _SHUFFLE.search(last.executedPlan().toString()) is not None


@dataclass
class MicroBatches:
    """Processes the micro-batches of one query.

    `tasks`: see `spark_tasks`; another thread may change it.
    `published`: called after each micro-batch, with its number and the seconds that it took. `error`: why one failed.
    """

    plan: Plan
    sinks: TaskSinks
    channels: TaskChannels
    exchange: ExchangeSink | None
    admission: Admission
    watermarks: Watermarks
    checkpoint: Path
    progress: Progress
    tasks: int | None
    stopping: threading.Event
    gate: Gate
    callback: BatchCallback
    trigger_interval: float
    published: Callable[[int, float], None]
    error: ErrorInfo | None = None

    def process(self, frame: DataFrame, epoch: int) -> None:
        """Process a micro-batch. Raises BatchFailed, whatever failed."""
        failure = None
        try:
            self.gate.run()  # wait for the state stores that are left to this run
            # Before the micro-batch is computed, so that the one before can be checkpointed meanwhile. But Spark has
            # computed already what it broadcasts, and stages of an adaptive plan.
            self.admission.wait()
            self.progress.began()
            self._write(frame, epoch)
        except BaseException as error:  # user code may raise even SystemExit
            failure = batch_failure(error)
        if failure is not None:
            if not self.stopping.is_set():
                self.error = failure
            # One line only, raised outside the except block: Spark matches a regular expression against the whole text
            # of what stops a query, and overflows its stack over a long traceback.
            raise BatchFailed(f"micro-batch {epoch}: {failure.code}")

    def input_failed(self, error: Exception) -> None:
        """Record that an exchange could not be read for a micro-batch."""
        if not self.stopping.is_set():
            self.error = input_failure(error)

    def _write(self, frame: DataFrame, epoch: int) -> None:
        began = time.monotonic()
        rows = self.sinks.write(frame, epoch, began_ms=lambda: self._began_ms(epoch), tasks=self.tasks)
        if any(sink.sink is not None and sink.sink.python is not None for sink in self.plan.sinks):
            # The next micro-batch is planned in the same session.
            steady_plans.hold(frame.sparkSession, stateful=self.plan.keeps_state)
        entry, positions = None, self.channels.no_positions
        if self.exchange is not None or self.plan.exchanges:
            offsets = snapshot.read_offsets(self.checkpoint, epoch)
            positions = exchange_positions(offsets, self.plan.exchanges, positions)
            if self.exchange is not None:
                processed = int(offsets.metadata.get("batchWatermarkMs", 0))
                promised = self.watermarks.promised(self.gate.run().execution, processed)
                entry = Entry(kind=EntryKind.DATA, files=self.exchange.files, batch_id=epoch, watermark_ms=promised)
        while not self.channels.publish(epoch, positions, entry):
            if self.stopping.wait(0.02):
                raise QueryEnded("the attempt stopped with a checkpoint that does not cover this micro-batch")
        if self.plan.watermarks:
            self.watermarks.take_in(self.gate.run().execution, self.channels.watermarks())
        self.progress.finished(epoch, rows)
        self.published(epoch, time.monotonic() - began)

    def _began_ms(self, epoch: int) -> int:
        return int(snapshot.read_offsets(self.checkpoint, epoch).metadata["batchTimestampMs"])

    def prepare(self, writer: DataStreamWriter) -> None:
        """Set how a run of the query writes, before it starts."""
        self.callback.attach(writer)
        writer.trigger(processingTime=f"{round(self.trigger_interval * 1000)} milliseconds")

    def followed(self, run: SparkRun) -> AbstractContextManager[None]:
        """Spark calls `process` in each micro-batch, so nothing needs to follow a run."""
        return nullcontext()

    def figures(self) -> None:
        """Spark tells of rows when a micro-batch is over, and nothing before."""

    def finds_input(self, execution: Any) -> bool | None:
        return finds_input(execution)

    def look_at_exchanges(self) -> None:
        """Read what has arrived from exchanges, and forward watermarks, while no micro-batch runs."""
        self.channels.poll()
        if self.channels.may_idle:
            with suppress(PySparkException, Py4JError):
                self.watermarks.take_in_idle(self.gate.run().execution, self.channels.watermarks())
        if self.exchange is not None:
            self._tell_watermark()

    def _tell_watermark(self) -> None:
        """Tell the readers of an idle query its watermark (J8a).

        The query has fired whatever its watermark fires, and no micro-batch would tell the readers.
        """
        with suppress(PySparkException, Py4JError):
            execution = self.gate.run().execution
            tracker = execution.watermarkTracker()
            now = int(tracker.currentWatermark()) if tracker is not None else 0  # a query that begins has none yet
            if now > 0 and is_idle(execution):
                promised = self.watermarks.promised(execution, now)
                if promised is not None:
                    self.channels.put_watermark(promised)
