"""Bounded input (J8a): reads what exists at the start, then sets the watermark to the end of time.

Spark's own `availableNow` ends a query without writing its last windows. So a task of a batch job runs with an
ordinary trigger, and its sources are told to stop at what they see now. When they have nothing more, the watermark is
set so far ahead that every open window, join and timer fires in a micro-batch without data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.java_gateway import is_instance_of

from minflinkd.taskmanager.exchange.log import END_OF_TIME_MS
from minflinkd.taskmanager.session.spark.session import Session
from minflinkd.taskmanager.session.state import snapshot

_RUNTIME = "org.apache.spark.sql.execution.streaming.runtime"
_EXECUTION = f"{_RUNTIME}.MicroBatchExecution"
_EVERY_BATCH = 2**62  # greater than the number of any micro-batch
_STREAMING = "org.apache.spark.sql.connector.read.streaming"


def run_to_end(
    session: Session, java_query: Any, exchanges: frozenset[int] = frozenset(), ended: Callable[[], bool] = lambda: True
) -> bool:
    """Block until the input is exhausted and nothing more fires. Returns False if the query ended before that.

    `exchanges`: the offset lines of exchanges, which end by themselves. `ended`: whether all of them have ended.
    """
    execution = java_query.streamingQuery()
    if not _hold_sources(session, execution, exchanges):
        return False
    while not ended():
        if not execution.isActive():
            return False
        time.sleep(0.02)
    execution.processAllAvailable()
    if not execution.isActive():
        return False
    _end_time(session, execution)
    execution.processAllAvailable()
    return bool(execution.isActive())


def _end_time(session: Session, execution: Any) -> None:
    """Set the watermark of an idle query to the end of time.

    When an idle query looks for something to do, it derives the watermarks of its operators for the next micro-batch,
    and does not change them afterwards. So it must forget them, under the lock that it holds while it looks.
    """
    with between_batches(session, execution) as forget:
        execution.watermarkTracker().setWatermark(END_OF_TIME_MS)
        forget()


def end_for_empty_batch(session: Session, execution: Any, checkpoint: Path, park: Callable[[], None]) -> bool:
    """End a restored query that has run no micro-batch, so that the query after it begins with an empty one.

    Spark fires nothing in a restored query before its first micro-batch, and runs none without rows. `park` moves the
    query's state stores away for the query that follows. Returns False, and leaves the query alone, if it has run or
    planned a micro-batch.
    """
    with between_batches(session, execution):
        boundary = snapshot.read_boundary(checkpoint)
        if execution.lastExecution() is not None or boundary.started > boundary.committed:
            return False
        snapshot.plan_empty_batch(checkpoint, boundary.committed)
        park()
        execution.state().set(terminated(session))  # under the lock, so the query plans no micro-batch meanwhile
        return True


def terminated(session: Session) -> Any:
    """Return Spark's state of a terminated query. A query in this state ends after the micro-batch in progress."""
    return getattr(getattr(session.jvm, f"{_RUNTIME}.TERMINATED$"), "MODULE$")


@contextmanager
def between_batches(session: Session, execution: Any) -> Iterator[Callable[[], None]]:
    """Keep an idle query from looking for work. Yields a function that makes it forget its derived watermarks."""
    kind = session.jvm.org.apache.spark.util.Utils.classForName(_EXECUTION, True, False)
    member = kind.getDeclaredField("watermarkPropagator")
    member.setAccessible(True)
    lock = execution.awaitProgressLock()
    lock.lock()
    try:
        yield lambda: member.get(execution).purge(_EVERY_BATCH)
    finally:
        lock.unlock()


def _hold_sources(session: Session, execution: Any, exchanges: frozenset[int]) -> bool:
    """Limit every source except exchanges to what it sees now. Returns False if the query has ended."""
    while execution.uniqueSources().isEmpty():  # they are made on the query's own thread
        if not execution.isActive():
            return False
        time.sleep(0.002)
    sources = execution.uniqueSources()
    held = sources
    pairs = sources.toSeq()
    free = [execution.sources().apply(ordinal) for ordinal in exchanges]
    for position in range(pairs.size()):
        source, limit = pairs.apply(position)._1(), pairs.apply(position)._2()
        if any(session.jvm.java.util.Objects.equals(source, exchange) for exchange in free):
            continue
        if is_instance_of(session.gateway, source, f"{_STREAMING}.SupportsTriggerAvailableNow"):
            source.prepareForTriggerAvailableNow()
        else:
            wrapper = session.jvm.org.apache.spark.sql.execution.streaming.runtime.AvailableNowDataStreamWrapper(source)
            wrapper.prepareForTriggerAvailableNow()
            held = held.removed(source).updated(wrapper, limit)
    if held is not sources:
        getattr(execution, "uniqueSources_$eq")(held)
    return True
