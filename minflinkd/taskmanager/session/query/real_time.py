"""The batches of one query in real-time mode (T2): ended for each checkpoint, so that it has a cut.

In this mode rows go through all stages at once, and a batch is only the distance between two commits. Spark ends one
after a minute. `RealTimeSource.java` ends it when it is asked to, and holds the query between two batches until it is
released. What happens there is here: the batch that ended is published, so that checkpoints can be cut after it.

Nothing is called for each row or batch, so the sink is Spark's own, and tells how many rows it wrote.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.readwriter import DataStreamWriter

from minflinkd.jobgraph.model import Sink
from minflinkd.rpc.messages import RealTimeFigures
from minflinkd.rpc.snapshot import RowCounts
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.exchange.channels import TaskChannels
from minflinkd.taskmanager.session.plan.plan import Plan
from minflinkd.taskmanager.session.query import latency
from minflinkd.taskmanager.session.query.admission import Admission
from minflinkd.taskmanager.session.query.progress import Progress
from minflinkd.taskmanager.session.query.run import Gate, SparkRun
from minflinkd.taskmanager.session.spark.failures import QueryEnded
from minflinkd.taskmanager.session.state import snapshot

log = structlog.get_logger(__name__)

LONGEST = "60 seconds"  # of a batch, if nothing ends it sooner
_LOOK_MS = 100  # milliseconds between two checks whether the query still runs
_LOOKS_FOR = 1.0  # seconds for which readers find nothing until it counts as no input
_TELL = 1.0  # seconds between two looks at the figures of rows
_PATIENCE = 0.02  # seconds between two checks whether waiting still makes sense


@dataclass
class RealTimeBatches:
    """Ends, publishes and begins the batches of one query. Its counterpart for micro-batches is `MicroBatches`.

    `control`: the query's `RealTimeSource.Control`. `other_tasks`: Spark tasks of a batch that read no source.
    """

    plan: Plan
    control: Any
    channels: TaskChannels
    checkpoint: Path
    progress: Progress
    admission: Admission
    other_tasks: int
    stopping: threading.Event
    gate: Gate
    tasks: int | None = None  # as in MicroBatches; all tasks of a batch run at once here
    error: ErrorInfo | None = None
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _boundaries: int = 0
    _between: bool = False  # a batch is published, and no other has begun
    _looks_since: float | None = None  # monotonic
    _told: RealTimeFigures = field(default_factory=RealTimeFigures)
    _told_at: float | None = None  # monotonic

    @property
    def _sink(self) -> tuple[VertexId, Sink]:
        vertex = next(sink for sink in self.plan.sinks if sink.inputs)
        assert vertex.sink is not None
        return vertex.id, vertex.sink

    def prepare(self, writer: DataStreamWriter) -> None:
        """Set how a run of the query writes, before it starts."""
        _, sink = self._sink
        context: Any = self.plan.spark._jsparkSession.sparkContext()
        self.control.open(context.taskScheduler().backend(), self.other_tasks)
        # Kafka's client waits some milliseconds for more records, which is what this mode is not for.
        options = {"kafka.linger.ms": "0"} | dict(sink.options)
        trigger: Any = writer.format(sink.format).options(**options).trigger
        trigger(realTime=LONGEST)  # pyspark's types do not have it yet

    def input_failed(self, error: Exception) -> None:
        """It reads no exchange."""

    def look_at_exchanges(self) -> None:
        """It has none."""

    def finds_input(self, execution: Any) -> bool | None:
        """Whether it has read rows, or None for as long as it may not have looked for any.

        Spark says that it processes data as soon as a batch has begun.
        """
        if int(self.control.rows()) > 0:
            return True
        if self._looks_since is None and self.control.looked():
            self._looks_since = time.monotonic()
        looked = self._looks_since is not None and time.monotonic() - self._looks_since >= _LOOKS_FOR
        return False if looked else None

    def figures(self) -> RealTimeFigures:
        """Return the figures of rows, at most once a second anew."""
        now = time.monotonic()
        if self._told_at is None:
            self._told_at = now
        elif now - self._told_at >= _TELL:
            with suppress(PySparkException, Py4JError):
                self._told = latency.figures(str(self.control.figures()), self._told, now - self._told_at)
                self._told_at = now
        return self._told

    # --- between two batches -------------------------------------------------------------------------------------

    @contextmanager
    def followed(self, run: SparkRun) -> Iterator[None]:
        """Do what is to be done between the batches of a run, on a thread of its own, until the run ends."""
        ended = threading.Event()
        thread = threading.Thread(target=self._follow, args=(run, ended), name=f"batches {run.id}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _follow(self, run: SparkRun, ended: threading.Event) -> None:
        try:
            self._follow_boundaries(run, ended)
        except Exception as error:
            if ended.is_set() or self.stopping.is_set() or not _is_active(run):
                log.debug("a query in real-time mode has no more batches", run=run.id, reason=str(error)[:200])
                return
            log.error("a query in real-time mode cannot go on", run=run.id, exc_info=True)
            self.error = QueryEnded(f"its batches cannot be followed any more: {type(error).__name__}: {error}").info()
            run.stop(run.id)

    def _follow_boundaries(self, run: SparkRun, ended: threading.Event) -> None:
        boundary, has_rows = 0, False
        while not ended.is_set():
            found = int(self.control.awaitBoundary(boundary, not has_rows, _LOOK_MS))
            if found < 0:
                if not has_rows and int(self.control.rows()) > 0:
                    # The first rows make a batch of their own: whoever waits for a new version to prove itself, or for
                    # a restart to be over, learns of them now.
                    has_rows = True
                    self.control.cut()
                continue
            boundary = found
            cuts = int(self.control.cuts())  # one that comes later is for the next batch
            self._publish(run, ended)
            self.admission.wait(ended)
            with self._changed:
                self._between = False
            self.control.release(cuts)

    def _publish(self, run: SparkRun, ended: threading.Event) -> None:
        """Publish the batch that has ended. At the start of a run, none has. Raises QueryEnded.

        Waits for as long as a checkpoint that was cut before this batch holds it back.
        """
        committed = snapshot.read_boundary(self.checkpoint).committed
        if committed > self.channels.published:
            written = self._written(run, committed)
            while not self.channels.publish(committed, self.channels.no_positions, None):
                if self.stopping.wait(_PATIENCE) or ended.is_set():
                    raise QueryEnded("the attempt stopped with a checkpoint that does not cover this batch")
            self.progress.finished(committed, RowCounts(written=written))
        with self._changed:
            self._between = True
            self._boundaries += 1
            self._changed.notify_all()

    def _written(self, run: SparkRun, batch: int) -> dict[str, int]:
        """Return the rows that the sink wrote, by Spark's report, which comes before the next batch is planned."""
        report = run.java.lastProgress()
        told = json.loads(report.json()) if report is not None else {}
        rows = int((told.get("sink") or {}).get("numOutputRows") or 0) if told.get("batchId") == batch else 0
        return {self._sink[0]: max(rows, 0)}

    # --- checkpoints ---------------------------------------------------------------------------------------------

    def end_batch(self) -> None:
        """End the batch that runs, soon. Does not wait."""
        with suppress(Py4JError):
            self.control.cut()

    def reach_boundary(self, check: Callable[[], None]) -> None:
        """End the batch that runs, and return when it is published. `check` raises if that is not worth waiting for.

        A checkpoint that is cut then covers all that was processed until this call.
        """
        with self._changed:
            if self._between:
                return
            before = self._boundaries
        self.end_batch()
        with self._changed:
            while self._boundaries == before:
                check()
                self._changed.wait(_PATIENCE)


def _is_active(run: SparkRun) -> bool:
    try:
        return bool(run.java.isActive())
    except (PySparkException, Py4JError):  # nor is there a session
        return False
