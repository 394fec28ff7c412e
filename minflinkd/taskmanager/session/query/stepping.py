"""Lets a query advance by hand, in tests of jobs (`minflinkd.testing`): input, event time and the time of day.

The input of a step is moved to where the query looks for it while the query may not look. So a micro-batch reads all of
it, or nothing. Spark's `processAllAvailable` then waits until no micro-batch follows, neither with rows nor without. It
never returns for a query with timers in processing time, so there micro-batches without input are counted instead.

Spark takes the time of day of a micro-batch (`current_timestamp()`) from a clock that belongs to the query. Its field
is private and final; a test fails if a new Spark moves it.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from minflinkd.taskmanager.child.protocol import StepTask, TaskStepped
from minflinkd.taskmanager.session.plan import bounded
from minflinkd.taskmanager.session.plan.watermarks import is_idle
from minflinkd.taskmanager.session.query.running import RunningQuery
from minflinkd.taskmanager.session.spark.failures import QueryEnded
from minflinkd.taskmanager.session.spark.session import Session
from minflinkd.taskmanager.session.state import snapshot

_STREAM = "org.apache.spark.sql.execution.streaming.runtime.StreamExecution"
_EMPTY = 3  # micro-batches without input in a row; only a query that never rests runs so many
_PAUSE = 0.002  # seconds between two looks whether the query is idle
_IDLE_PATIENCE = 30.0  # seconds; it takes milliseconds


def step(session: Session, query: RunningQuery, request: StepTask) -> TaskStepped:
    """Carry out a step. Blocks until the query has nothing more to do. Raises QueryEnded."""
    try:
        return _step(session, query, request)
    except (PySparkException, Py4JError) as error:
        raise QueryEnded(f"the query ended during a step ({type(error).__name__})") from error


def _step(session: Session, query: RunningQuery, request: StepTask) -> TaskStepped:
    _process_all(query)  # until then it may not have read where it starts
    if request.watermark_ms is not None:
        query.run_empty_batch()  # otherwise a restored query fires nothing before its next rows
        _process_all(query)
    execution = query.execution
    with bounded.between_batches(session, execution) as forget:
        for staged, name in request.files:
            Path(staged).rename(name)
        if request.clock_ms is not None:
            _set_clock(session, execution, request.clock_ms)
        tracker = execution.watermarkTracker()
        if request.watermark_ms is not None and request.watermark_ms > int(tracker.currentWatermark()):
            tracker.setWatermark(request.watermark_ms)
            forget()
    _settle(query)
    return TaskStepped(watermark_ms=int(query.execution.watermarkTracker().currentWatermark()))


def _settle(query: RunningQuery) -> None:
    """Wait until the query is idle, has taken in the watermarks of its inputs, and has told its readers its own."""
    done = None
    while done != (done := snapshot.read_boundary(query.checkpoint).committed):
        query.batches.look_at_exchanges()
        if not _process_all(query):
            return
        _await_idle(query)
        query.batches.look_at_exchanges()
        _process_all(query)


def _process_all(query: RunningQuery) -> bool:
    """Wait until Spark finds nothing more to do. Returns False if it never will, and has read all its input.

    A query with timers in processing time runs micro-batches for ever, most of them without rows.
    """
    began = snapshot.read_boundary(query.checkpoint).started
    if query.resting is None or query.resting.done():
        query.resting = _at_rest(query.execution)
    while not query.resting.done():
        with suppress(TimeoutError):
            query.resting.result(_PAUSE)
        if not query.resting.done() and _only_empty(query.checkpoint, began):
            return False
    query.resting.result()
    return True


def _at_rest(execution: Any) -> Future[None]:
    """Return what is done when Spark has nothing more to do, or the query has ended."""
    rest: Future[None] = Future()

    def wait() -> None:
        try:
            execution.processAllAvailable()
            rest.set_result(None)
        except BaseException as error:  # also if the JVM is gone
            rest.set_exception(error)

    threading.Thread(target=wait, name="at rest", daemon=True).start()
    return rest


def _only_empty(checkpoint: Path, began: int) -> bool:
    """Whether several micro-batches in a row, after micro-batch `began`, had no input."""
    last = snapshot.read_boundary(checkpoint).committed
    if last - _EMPTY <= began:
        return False
    try:
        offsets = {snapshot.read_offsets(checkpoint, batch).offsets for batch in range(last - _EMPTY, last + 1)}
    except FileNotFoundError:
        return False
    return len(offsets) == 1


def _await_idle(query: RunningQuery) -> None:
    """Wait until Spark says that the query waits, a moment after it has found nothing to do: only then it is told."""
    deadline = time.monotonic() + _IDLE_PATIENCE
    while not is_idle(query.execution) and query.execution.isActive() and time.monotonic() < deadline:
        time.sleep(_PAUSE)


def _set_clock(session: Session, execution: Any, time_ms: int) -> None:
    clock = execution.triggerClock()
    if str(clock.getClass().getSimpleName()) == "ManualClock":
        clock.setTime(time_ms)
        return
    member = session.jvm.org.apache.spark.util.Utils.classForName(_STREAM, True, False).getDeclaredField("triggerClock")
    member.setAccessible(True)
    member.set(execution, session.jvm.org.apache.spark.util.ManualClock(time_ms))
