"""Looks at what the partitions of a slow micro-batch did: which took longest, with how many rows, how long in Python.

Spark keeps the times of stages and tasks for its web page, also if there is none, and the times of Python functions in
the metrics of the executed plan. To read them takes some dozens of calls to the JVM. So only micro-batches that are
slow are looked at, and as a rule so seldom that the looking takes a hundredth of the time.

A task that is behind has begun its next micro-batch by then. So the plan is kept when a micro-batch finishes, and the
jobs of another one are passed over: their first stage may have ended while those that matter still run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from minflinkd.rpc.messages import BatchWork
from minflinkd.taskmanager.session.query.run import SparkRun

log = structlog.get_logger(__name__)

SLOW_MS = 500.0  # quicker micro-batches limit nobody
PAUSE = 5.0  # seconds between two looks, at least
SHARE = 100  # times what the last look took is the pause after it
LONGEST_PAUSE = 30.0  # seconds: on a busy machine a look takes long, and just there somebody wants to know why
WORTH = 0.05  # of the micro-batch: of shorter stages nobody needs to know which partition took longest
JOBS = 12  # of a micro-batch that are looked at: a sink may need several
STAGES = 8
NODES = 200  # of a plan
_PYTHON = "pythonProcessingTime"


class Workload:
    """Of one query. `finished` is called by the query's own thread, `look` by the one that reports its progress."""

    def __init__(self, context: Callable[[], SparkContext], clock: Callable[[], float] = time.monotonic) -> None:
        self._context = context
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
        stages = self._stages(run.id, batch_id, WORTH * batch_ms)
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
            other_rows=max(0.0, longest.rows - longest.most_rows) / others if longest.tasks > 1 else 0.0,
            task_ms=sum(stage.task_ms for stage in stages),
            python_ms=_python_ms(execution),
            uneven_ms=sum(stage.longest_ms - stage.task_ms / max(stage.tasks, 1) for stage in stages),
        )

    def _stages(self, run_id: str, batch_id: int, worth_ms: float) -> list[Stage]:
        """Return the stages of a micro-batch's jobs. A job group has the query's run id."""
        context: Any = self._context()
        store = context._jsc.sc().statusStore()
        found: list[Stage] = []
        jobs = 0
        for job_id in sorted(context.statusTracker().getJobIdsForGroup(run_id), reverse=True)[: 2 * JOBS]:
            job = store.job(job_id)
            if jobs == JOBS or (found and not _is_of(job, batch_id)):
                break
            if not _is_of(job, batch_id):  # of the next one
                continue
            jobs += 1
            ids = job.stageIds()
            for i in range(min(int(ids.length()), STAGES)):
                with suppress(Py4JError):  # Spark forgets stages, and first those that it skipped
                    stage = store.lastStageAttempt(int(ids.apply(i)))
                    if str(stage.status()) == "COMPLETE":
                        found.append(self._stage(store, stage, worth_ms))
        return found

    def _stage(self, store: Any, stage: Any, worth_ms: float) -> Stage:
        """Read the times of a stage. The quantile 1.0 of its tasks is the slowest of them."""
        task_ms, tasks = float(stage.executorRunTime()), int(stage.numTasks())
        rows = float(stage.shuffleReadRecords()) + float(stage.inputRecords())
        if tasks <= 1 or task_ms < worth_ms:
            return Stage(tasks, task_ms, task_ms / max(tasks, 1), rows, int(rows / max(tasks, 1)))
        gateway: Any = self._context()._gateway
        quantiles = gateway.new_array(gateway.jvm.double, 1)
        quantiles[0] = 1.0
        longest_ms, most_rows = task_ms / tasks, rows / tasks
        summary = store.taskSummary(int(stage.stageId()), int(stage.attemptId()), quantiles)
        if summary.isDefined():
            told = summary.get()
            longest_ms = float(told.executorRunTime().apply(0))
            most_rows = float(told.shuffleReadMetrics().readRecords().apply(0))
            most_rows += float(told.inputMetrics().recordsRead().apply(0))
        return Stage(tasks, task_ms, longest_ms, rows, int(most_rows))


@dataclass(frozen=True)
class Stage:
    tasks: int
    task_ms: float
    longest_ms: float
    rows: float
    most_rows: int


def slowest(stages: Sequence[Stage]) -> Stage:
    """Return the stage that takes longest, of several that take about as long the one with the most partitions.

    A sink that looks at some partitions only, as `tail` does, computes these again. That says nothing of the others.
    """
    longest = max(stage.longest_ms for stage in stages)
    return max((s for s in stages if s.longest_ms >= longest / 2), key=lambda stage: (stage.tasks, stage.longest_ms))


def _is_of(job: Any, batch_id: int) -> bool:
    """Whether it is a job of this micro-batch: Spark ends the description of its jobs with the number."""
    found = job.description()
    return found.isDefined() and str(found.get()).endswith(f"batch = {batch_id}")


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
