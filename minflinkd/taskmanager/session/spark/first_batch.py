"""Plans a first micro-batch that is never run, to find out what Spark refuses only then.

A query that Spark has analysed may still fail in each attempt, when its first micro-batch is planned. Examples: a
second watermark after a first one, a join of two streams without an equality, a pandas function that aggregates, a text
with a collation as a key of state. Spark's own `IncrementalExecution` is used, so that none of its rules is repeated
here. Sources need no stand-ins: Spark plans their relations as they are, and would only refuse to execute them.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from minflinkd.jobgraph.model import OutputMode
from minflinkd.taskmanager.session.spark.session import Session

_RUNTIME = "org.apache.spark.sql.execution.streaming.runtime"
_METADATA = "org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqMetadata$"
_WATERMARK_MS = 1  # not 0: otherwise Spark does not look at the watermarks of a plan


def plan_first_batch(
    session: Session, spark: SparkSession, frame: DataFrame, mode: OutputMode, state: Path, *, compares: bool = True
) -> Any:
    """Plan a first micro-batch over the directory `state`, as the query's own thread would. Returns Spark's plan.

    Raises what Spark refuses.

    `compares`: whether Spark compares the types of state with those described in `state`, and checks that they can be
    kept at all. For `transformWithState` Spark asks a Python worker for the types, which takes seconds.
    """
    jvm: Any = session.jvm
    execution = getattr(jvm, f"{_RUNTIME}.IncrementalExecution")
    propagator = _scala(jvm, f"{_RUNTIME}.WatermarkPropagator$").apply
    nothing = _scala(jvm, "scala.collection.immutable.Map$").empty()
    new_map = jvm.scala.collection.mutable.HashMap
    first = execution(
        spark._jsparkSession,
        frame._jdf.queryExecution().analyzed(),
        java_mode(session, mode),
        str(state),
        jvm.java.util.UUID.randomUUID(),
        jvm.java.util.UUID.randomUUID(),
        0,
        jvm.scala.Option.empty(),
        _scala(jvm, _METADATA).apply(_WATERMARK_MS, _WATERMARK_MS, nothing),
        propagator(spark._jsparkSession.sessionState().conf()),
        compares,  # True: the first micro-batch of its run, the only one for which types are compared
        new_map(),
        new_map(),
        getattr(execution, "$lessinit$greater$default$14")(),
        False,
        False,
    )
    return first.executedPlan()


def plan_without_state(
    session: Session, spark: SparkSession, frame: DataFrame, mode: OutputMode, *, compares: bool
) -> Any:
    """Plan a first micro-batch without state, and leave no files. Blocks for some hundredths of a second."""
    directory = Path(tempfile.mkdtemp(prefix="first-batch-", dir=session.config.working_directory))
    try:
        return plan_first_batch(session, spark, frame, mode, directory / "state", compares=compares)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def java_mode(session: Session, mode: OutputMode) -> Any:
    modes = session.jvm.org.apache.spark.sql.streaming.OutputMode
    makers = {OutputMode.APPEND: modes.Append, OutputMode.UPDATE: modes.Update, OutputMode.COMPLETE: modes.Complete}
    return makers[mode]()


def _scala(jvm: Any, name: str) -> Any:
    return getattr(getattr(jvm, name), "MODULE$")
