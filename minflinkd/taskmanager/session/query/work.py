"""Looks at what the partitions of a slow micro-batch did: which took longest, with how many rows, how long in Python.

Spark keeps the times of stages and tasks for its web page, also if there is none, and the times of Python functions in
the metrics of the executed plan. To read them takes some dozens of calls to the JVM. So only micro-batches that are
slow are looked at, and so seldom that the looking takes a hundredth of the time at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
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
JOBS = 4  # of a micro-batch that are looked at: one per sink, as a rule
STAGES = 8
NODES = 200  # of a plan
_PYTHON = "pythonProcessingTime"


class Workload:
    """Called by the thread that reports the progress of one query."""

    def __init__(self, context: Callable[[], SparkContext], clock: Callable[[], float] = time.monotonic) -> None:
        self._context = context
        self._clock = clock
        self._next = 0.0
        self._looked = -1  # at this micro-batch

    def look(self, run: SparkRun, batch_id: int, batch_ms: float) -> BatchWork | None:
        """Return what the micro-batch that finished last did; None if it is not looked at. Raises nothing."""
        began = self._clock()
        if batch_ms < SLOW_MS or batch_id == self._looked or began < self._next:
            return None
        self._looked = batch_id
        work = None
        try:
            work = self._measure(run, batch_id, batch_ms)
        except (PySparkException, Py4JError) as error:  # Spark has forgotten the jobs, or the query ends
            log.debug("the work of a micro-batch is not known", batch=batch_id, error=str(error)[:200])
        except Exception:  # a diagnosis must not harm the query
            log.warning("the work of a micro-batch cannot be read", batch=batch_id, exc_info=True)
        now = self._clock()
        self._next = now + max(PAUSE, SHARE * (now - began))
        return work

    def _measure(self, run: SparkRun, batch_id: int, batch_ms: float) -> BatchWork | None:
        stages = self._stages(run.id)
        if not stages:
            return None
        slowest = max(stages, key=lambda stage: stage.longest_ms)
        others = max(slowest.tasks - 1, 1)
        return BatchWork(
            batch_id=batch_id,
            batch_ms=batch_ms,
            partitions=slowest.tasks,
            longest_ms=slowest.longest_ms,
            others_ms=(slowest.task_ms - slowest.longest_ms) / others if slowest.tasks > 1 else 0.0,
            most_rows=slowest.most_rows,
            other_rows=max(0.0, slowest.rows - slowest.most_rows) / others if slowest.tasks > 1 else 0.0,
            task_ms=sum(stage.task_ms for stage in stages),
            python_ms=_python_ms(run.execution),
        )

    def _stages(self, run_id: str) -> list[_Stage]:
        """Return the stages of the query's last jobs. A job group has the query's run id."""
        context: Any = self._context()
        store = context._jsc.sc().statusStore()
        jobs = sorted(context.statusTracker().getJobIdsForGroup(run_id))[-JOBS:]
        found: list[_Stage] = []
        for job_id in reversed(jobs):
            job = store.job(job_id)
            if found and not _same_batch(job, found[0].description):
                break
            ids = job.stageIds()
            for i in range(min(int(ids.length()), STAGES)):
                stage = store.lastStageAttempt(int(ids.apply(i)))
                if str(stage.status()) == "COMPLETE":  # others were skipped
                    found.append(self._stage(store, stage, _description(job)))
        return found

    def _stage(self, store: Any, stage: Any, description: str) -> _Stage:
        """Read the times of a stage. The quantile 1.0 of its tasks is the slowest of them."""
        gateway: Any = self._context()._gateway
        quantiles = gateway.new_array(gateway.jvm.double, 1)
        quantiles[0] = 1.0
        task_ms, tasks = float(stage.executorRunTime()), int(stage.numTasks())
        rows = float(stage.shuffleReadRecords()) + float(stage.inputRecords())
        longest_ms, most_rows = task_ms if tasks == 1 else 0.0, rows if tasks == 1 else 0.0
        summary = store.taskSummary(int(stage.stageId()), int(stage.attemptId()), quantiles) if tasks > 1 else None
        if summary is not None and summary.isDefined():
            told = summary.get()
            longest_ms = float(told.executorRunTime().apply(0))
            most_rows = float(told.shuffleReadMetrics().readRecords().apply(0))
            most_rows += float(told.inputMetrics().recordsRead().apply(0))
        return _Stage(description, tasks, task_ms, longest_ms, rows, int(most_rows))


class _Stage:
    def __init__(
        self, description: str, tasks: int, task_ms: float, longest_ms: float, rows: float, most_rows: int
    ) -> None:
        self.description = description
        self.tasks = tasks
        self.task_ms = task_ms
        self.longest_ms = longest_ms
        self.rows = rows
        self.most_rows = most_rows


def _description(job: Any) -> str:
    """Spark writes the number of the micro-batch into it."""
    found = job.description()
    return str(found.get()) if found.isDefined() else ""


def _same_batch(job: Any, description: str) -> bool:
    return _description(job) == description


def _python_ms(execution: Any) -> float:
    """Return the time that all partitions of the last micro-batch spent in Python functions."""
    last = execution.lastExecution()
    if last is None:
        return 0.0
    total, nodes, seen = 0.0, [last.executedPlan()], 0
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
