"""A first micro-batch that is planned and never run: what Spark says of a query only then.

A query that Spark has analysed may still fail in each attempt, when its first micro-batch is planned. Examples: a
second watermark after a first, a join of two streams without an equality, a pandas function that aggregates, state by
a text with a collation. Spark's own `IncrementalExecution` is used, so that nothing of its rules is repeated here.
Sources need no stand-ins: their relations are planned as they are, and would only refuse to be executed.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from minflinkd.jobgraph.model import OutputMode
from minflinkd.taskmanager.session.spark import Session

_RUNTIME = "org.apache.spark.sql.execution.streaming.runtime"
_METADATA = "org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqMetadata$"
_WATERMARK_MS = 1  # Spark looks at the watermarks of a plan only where time has begun


def plan_first_batch(
    session: Session, spark: SparkSession, frame: DataFrame, mode: OutputMode, state: Path, *, compares: bool = True
) -> None:
    """As the query's own thread would, over the directory `state`; whatever Spark compares or refuses, it does here.

    `compares`: the types of state with what is described in `state`, and whether they can be kept at all. Of
    `transformWithState` Spark asks that of a Python worker, which takes seconds.
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
        compares,  # the first of its run: only then are types compared
        new_map(),
        new_map(),
        getattr(execution, "$lessinit$greater$default$14")(),
        False,
        False,
    )
    first.executedPlan()


def plan_without_state(
    session: Session, spark: SparkSession, frame: DataFrame, mode: OutputMode, *, compares: bool
) -> None:
    """The same for a query that begins anew. Leaves nothing. Blocks for some hundredths of a second."""
    directory = Path(tempfile.mkdtemp(prefix="first-batch-", dir=session.config.working_directory))
    try:
        plan_first_batch(session, spark, frame, mode, directory / "state", compares=compares)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def java_mode(session: Session, mode: OutputMode) -> Any:
    modes = session.jvm.org.apache.spark.sql.streaming.OutputMode
    makers = {OutputMode.APPEND: modes.Append, OutputMode.UPDATE: modes.Update, OutputMode.COMPLETE: modes.Complete}
    return makers[mode]()


def _scala(jvm: Any, name: str) -> Any:
    return getattr(getattr(jvm, name), "MODULE$")
