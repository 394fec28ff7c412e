"""Whether a task can go on with state that another version of it has left, by Spark's own rules (C25, H2).

Spark describes the state of a query in files beside it, and compares the types with those of the query that starts from
it, before its first micro-batch: then the version before it would have stopped already. So this is had here, with the
files alone: Spark plans a first micro-batch over them, of which nothing runs.

`transformWithState` is left out: what it keeps only its code knows, and Spark asks that of a worker.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from minflinkd.checkpoint.matching import StateNotMatched, Verdicts, all_fit, match_nodes
from minflinkd.jobgraph.model import OutputMode
from minflinkd.rpc.snapshot import PlanNode
from minflinkd.taskmanager.session.failures import spark_message
from minflinkd.taskmanager.session.plan import Plan
from minflinkd.taskmanager.session.spark import Session

log = structlog.get_logger(__name__)

_RUNTIME = "org.apache.spark.sql.execution.streaming.runtime"
_METADATA = "org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqMetadata$"
_UNFIT = ("STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE", "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE")
_ADVICE = ("Please check number and type of fields.", "If you want to force running")


def verdicts(session: Session, plan: Plan, old: Sequence[PlanNode], described: Path) -> Verdicts:
    """Of each operator of the plan for which there is state: what keeps it from that, "" for nothing.

    `described`: with `state/<operator>/...` as a checkpoint of the query with the nodes `old` has them. An operator of
    which Spark cannot say it is missing. Blocks for about a tenth of a second.
    """
    try:
        operators = match_nodes(
            old, plan.operators, allow_non_restored=True, verdicts=all_fit(plan.operators)
        ).operators
    except StateNotMatched:
        return {}  # whoever matches them says why
    told = {new: had for new, had in operators.items() if (described / "state" / str(had)).exists()}
    if not told or _refusal(session, plan, described, told) == "":
        return dict.fromkeys(told, "")
    found = {new: _refusal(session, plan, described, {new: had}) for new, had in told.items()}
    return {new: refusal for new, refusal in found.items() if refusal is not None}


def _refusal(session: Session, plan: Plan, described: Path, operators: Mapping[int, int]) -> str | None:
    """ "" where Spark takes the state of all of these; None where it has nothing to say of state."""
    directory = Path(tempfile.mkdtemp(prefix="rehearsal-", dir=described.parent))
    try:
        for new, had in operators.items():
            shutil.copytree(described / "state" / str(had), directory / "state" / str(new))
        _plan_first_batch(session, plan, directory / "state")
    except (PySparkException, Py4JError) as error:
        if _condition(error) in _UNFIT:
            return _sentence(spark_message(error))
        log.warning("state was not compared by Spark", error=str(error)[:2000])
        return None
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return ""


def _plan_first_batch(session: Session, plan: Plan, state: Path) -> None:
    """As the query's own thread would, over this directory; whatever it compares or refuses, it does here."""
    jvm: Any = session.jvm
    execution = getattr(jvm, f"{_RUNTIME}.IncrementalExecution")
    no_watermarks = _scala(jvm, f"{_RUNTIME}.WatermarkPropagator$").noop()
    nothing = _scala(jvm, "scala.collection.immutable.Map$").empty()
    metadata = _scala(jvm, _METADATA).apply(0, 0, nothing)
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    mode = {
        OutputMode.APPEND: modes.Append,
        OutputMode.UPDATE: modes.Update,
        OutputMode.COMPLETE: modes.Complete,
    }[plan.output_mode]()
    new_map = jvm.scala.collection.mutable.HashMap
    analyzed = plan.require()._jdf.queryExecution().analyzed()
    first = execution(
        plan.spark._jsparkSession,
        analyzed,
        mode,
        str(state),
        jvm.java.util.UUID.randomUUID(),
        jvm.java.util.UUID.randomUUID(),
        0,
        jvm.scala.Option.empty(),
        metadata,
        no_watermarks,
        True,  # the first of its run: only then are types compared
        new_map(),
        new_map(),
        getattr(execution, "$lessinit$greater$default$14")(),
        False,
        False,
    )
    first.executedPlan()


def _scala(jvm: Any, name: str) -> Any:
    return getattr(getattr(jvm, name), "MODULE$")


def _condition(error: PySparkException | Py4JError) -> str:
    if isinstance(error, PySparkException):
        return str(error.getCondition())
    if isinstance(error, Py4JJavaError):  # pyspark converts only what it expects
        getter = getattr(error.java_exception, "getCondition", None)
        return str(getter()) if getter is not None else ""
    return ""


def _sentence(message: str) -> str:
    return " ".join(_worth_telling(message.splitlines()))


def _worth_telling(lines: Iterable[str]) -> Iterable[str]:
    for line in lines:
        if line.startswith(_ADVICE[1]):
            return
        if line.strip() and line not in _ADVICE:
            yield line.strip()
