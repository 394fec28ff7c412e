"""What the partitions of a micro-batch did: which took longest, with how many rows, how long in Python.

The times of stages and partitions are in the session's `PartitionBook`, those of Python functions in the metrics of the
executed plan. To read the plan takes some dozens of calls to the JVM. So only micro-batches that are slow are looked at
for the diagnosis, and as a rule so seldom that the looking takes a hundredth of the time.

A task that is behind has begun its next micro-batch by then. So the plan is kept when a micro-batch finishes, and the
stages of another one are passed over: its first stage may have ended while those that matter still run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from minflinkd.rpc.messages import BatchWork, TaskPartitions
from minflinkd.taskmanager.session.query.run import SparkRun
from minflinkd.taskmanager.session.spark.partitions import PartitionBook, Stage

log = structlog.get_logger(__name__)

SLOW_MS = 500.0  # quicker micro-batches limit nobody
PAUSE = 5.0  # seconds between two looks, at least
SHARE = 100  # times what the last look took is the pause after it
LONGEST_PAUSE = 30.0  # seconds: on a busy machine a look takes long, and just there somebody wants to know why
NODES = 200  # of a plan
_PYTHON = "pythonProcessingTime"


class Workload:
    """Of one query. `finished` is called by the query's own thread, `look` by the one that reports its progress."""

    def __init__(self, book: PartitionBook, clock: Callable[[], float] = time.monotonic) -> None:
        self._book = book
        self._clock = clock
        self._next = 0.0
        self._finished: tuple[int, Any] | None = None  # a slow micro-batch, and its execution

    def finished(self, run: SparkRun, batch_id: int, took_ms: float) -> None:
        """Keep the plan of a slow micro-batch that has just finished. Raises nothing."""
        if took_ms >= SLOW_MS and self._clock() >= self._next:
            with suppress(PySparkException, Py4JError):
                self._finished = batch_id, run.execution.lastExecution()

    def look(self, run: SparkRun, batch_id: int, batch_ms: float) -> BatchWork | None:
        """Return what a micro-batch did that was reported; None if it is not looked at. Raises nothing."""
        finished, began = self._finished, self._clock()
        if finished is None or finished[0] != batch_id or began < self._next:
            return None
        self._finished = None
        work = None
        try:
            work = self._measure(run, batch_id, batch_ms, finished[1])
        except (PySparkException, Py4JError) as error:  # Spark has forgotten the jobs, or the query ends
            log.debug("the work of a micro-batch is not known", batch=batch_id, error=str(error)[:200])
        except Exception:  # a diagnosis must not harm the query
            log.warning("the work of a micro-batch cannot be read", batch=batch_id, exc_info=True)
        now = self._clock()
        self._next = now + min(max(PAUSE, SHARE * (now - began)), LONGEST_PAUSE)
        return work

    def _measure(self, run: SparkRun, batch_id: int, batch_ms: float, execution: Any) -> BatchWork | None:
        stages = [stage for stage in self._book.stages(run.id) if stage.batch_id == batch_id]
        if not stages:
            return None
        longest = slowest(stages)
        others = max(longest.tasks - 1, 1)
        return BatchWork(
            batch_id=batch_id,
            batch_ms=batch_ms,
            partitions=longest.tasks,
            longest_ms=longest.longest_ms,
            others_ms=(longest.task_ms - longest.longest_ms) / others if longest.tasks > 1 else 0.0,
            most_rows=longest.most_rows,
            other_rows=(longest.rows - longest.most_rows) / others if longest.tasks > 1 else 0.0,
            task_ms=sum(stage.task_ms for stage in stages),
            python_ms=_python_ms(execution),
            uneven_ms=sum(stage.longest_ms - stage.task_ms / max(stage.tasks, 1) for stage in stages),
        )


def partitions(book: PartitionBook, run_id: str) -> TaskPartitions:
    """Return the partitions of a query's deciding stage, as of its last execution; none if there is none.

    Which stage decides is settled by all micro-batches together: in one of them, with few rows, it may be any.
    """
    latest = {stage.key: stage for stage in book.stages(run_id)}
    if not latest:
        return TaskPartitions()
    together = [replace(one, longest_ms=one.all_longest_ms or one.longest_ms) for one in latest.values()]
    return book.partitions(run_id, slowest(together).key)


def slowest(stages: Sequence[Stage]) -> Stage:
    """Return the stage that takes longest, of several that take about as long the one with the most partitions.

    A sink that looks at some partitions only, as `tail` does, computes these again. That says nothing of the others.
    """
    longest = max(stage.longest_ms for stage in stages)
    return max((s for s in stages if s.longest_ms >= longest / 2), key=lambda stage: (stage.tasks, stage.longest_ms))


def _python_ms(execution: Any) -> float:
    """Return the time that all partitions of a micro-batch spent in Python functions."""
    if execution is None:
        return 0.0
    total, nodes, seen = 0.0, [execution.executedPlan()], 0
    while nodes and seen < NODES:
        node = nodes.pop()
        seen += 1
        found = node.metrics().get(_PYTHON)
        if found.isDefined():
            total += float(found.get().value())
        name = str(node.nodeName())
        if name == "AdaptiveSparkPlan":
            nodes.append(node.executedPlan())
        elif name.endswith("QueryStage"):
            with suppress(Py4JError):
                nodes.append(node.plan())
        else:
            children = node.children()
            nodes.extend(children.apply(i) for i in range(int(children.length())))
    return max(total, 0.0)
