"""The first stage of an attempt: from the supervisor's request to a task that is complete except for its query."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from minflinkd.jobgraph.params import resolve
from minflinkd.taskmanager.child.protocol import RunTask
from minflinkd.taskmanager.exchange.channels import TaskChannels
from minflinkd.taskmanager.session.code.libraries import CodeCache, JobCode
from minflinkd.taskmanager.session.exchange.opening import Opening
from minflinkd.taskmanager.session.exchange.writing import ExchangeSink
from minflinkd.taskmanager.session.plan import building
from minflinkd.taskmanager.session.plan.plan import Plan
from minflinkd.taskmanager.session.plan.prepared import Prepared
from minflinkd.taskmanager.session.restore.continuation import Standing
from minflinkd.taskmanager.session.restore.directory import Restoring, Start, partitions_for
from minflinkd.taskmanager.session.restore.repartition import PARTITIONS
from minflinkd.taskmanager.session.sinks import TaskSinks, make_sinks
from minflinkd.taskmanager.session.spark.callback import BatchCallback
from minflinkd.taskmanager.session.spark.partitions import PartitionBook
from minflinkd.taskmanager.session.spark.session import Session, activate
from minflinkd.taskmanager.session.state.stores import StateStores

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Engine:
    """What all tasks of a session child share."""

    session: Session
    callback: BatchCallback
    code: CodeCache
    stores: StateStores
    partitions: PartitionBook
    prepared: Prepared = field(default_factory=Prepared)


@dataclass(frozen=True, kw_only=True)
class BuiltTask:
    """A task that is ready to start. Call `release` when its query has ended, or if it never starts.

    `stores_of`: the run id under which its state stores are open, if it continues where another attempt stopped.
    `phases`: seconds that each phase of building took.
    """

    engine: Engine
    request: RunTask
    code: JobCode
    plan: Plan
    frame: DataFrame
    sinks: TaskSinks
    exchange: ExchangeSink | None
    channels: TaskChannels
    start: Start
    stores_of: str | None
    phases: dict[str, float]

    def release(self) -> None:
        self.plan.release()
        self.code.release()


def build(engine: Engine, request: RunTask, before: Standing | None, over: threading.Event) -> BuiltTask:
    """Build a task. Blocks, also until the tasks upstream are built.

    `before`: what a stopped attempt has left, from which this one may continue. `over`: set if the attempt is stopped
    meanwhile. Raises TaskNotBuilt, UnknownSecret, UnusableArtifact, LibraryConflict, InputMissing, StateNotMatched, and
    what Spark raises if it repartitions state. Nothing is left to release then.
    """
    began = time.monotonic()
    checkpoint = Path(request.directory) / "checkpoint"
    for vertex in request.task.vertices:  # a secret that is missing here may be there later, or elsewhere
        resolve(vertex, request.job.params, engine.session.secrets)
    opening = Opening(request, checkpoint)
    inputs = opening.await_inputs(over)
    prepared = engine.prepared.take(request.job, request.task, inputs)
    code = prepared.code if prepared is not None else engine.code.load(request.job.job_id, request.artifacts)
    plan = None
    try:
        loaded = time.monotonic()
        if prepared is not None:
            plan = prepared.plan
            activate(engine.session, plan.spark)  # the plan was built on another thread
        else:
            plan = building.build(engine.session, request.job, request.task, code, inputs)
        if plan.not_real_time:
            log.info("a task runs in micro-batches", task=request.task.id, reason=plan.not_real_time)
        frame = plan.require()
        # Whatever the code of a vertex has set: the partitions of the state must be as many as the JobMaster knows of.
        plan.spark.conf.set(PARTITIONS, str(partitions_for(request, plan)))
        output = opening.output(plan.schema)
        exchange = ExchangeSink(output.directory) if output is not None else None
        with code.in_session(plan.spark):
            sinks = make_sinks(engine.session, plan, request, code, exchange)
        built = time.monotonic()
        with code.in_session(plan.spark):
            sinks.restore(request.restored.transactions if request.restored is not None else ())
        start = Restoring(engine.session, request, checkpoint, before, over).prepare(plan)
        return BuiltTask(
            engine=engine,
            request=request,
            code=code,
            plan=plan,
            frame=frame,
            sinks=sinks,
            exchange=exchange,
            channels=opening.channels(output, start.checkpoint, plan.exchanges),
            start=start,
            stores_of=before.run_id if before is not None and start.continues else None,
            phases={"code": loaded - began, "build": built - loaded, "prepare": time.monotonic() - built},
        )
    except BaseException:
        if plan is not None:
            plan.release()
        code.release()
        raise


def interrupt(engine: Engine, request: RunTask) -> None:
    """Cancel the Spark jobs with which `build` prepares the state, as they may take long. Blocks for a short time."""
    with suppress(PySparkException, Py4JError):
        engine.session.spark.sparkContext.cancelJobsWithTag(request.attempt_id)
