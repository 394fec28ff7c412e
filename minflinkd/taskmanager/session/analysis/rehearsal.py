"""Finds out by Spark's own rules whether a task can continue with the state of another version (C25, H2).

Spark describes the state of a query in files next to it. When a query starts from that state, Spark compares the types
before the first micro-batch. But by then the old version would already have stopped. So the comparison is made here in
advance, with only those files: Spark plans a first micro-batch over them, and runs nothing.

`transformWithState` is left out: only its code knows what it keeps, and Spark asks a Python worker for that.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import structlog
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from minflinkd.checkpoint.state_matching import StateNotMatched, Verdicts, all_fit, match_nodes
from minflinkd.rpc.snapshot import PlanNode
from minflinkd.taskmanager.session.plan.plan import Plan
from minflinkd.taskmanager.session.spark.failures import condition_of, hidden, spark_message
from minflinkd.taskmanager.session.spark.first_batch import plan_first_batch
from minflinkd.taskmanager.session.spark.session import Session
from minflinkd.taskmanager.session.state.operators import USER_STATE
from minflinkd.taskmanager.session.state.schemas import difference

log = structlog.get_logger(__name__)

_UNFIT = ("STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE", "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE")
_ADVICE = ("Please check number and type of fields.", "If you want to force running")


def verdicts(session: Session, plan: Plan, old: Sequence[PlanNode], described: Path) -> Verdicts:
    """Return for each operator of the plan that has state why it cannot continue with that state; "" if it can.

    `described`: a directory with `state/<operator>/...` as in a checkpoint of the query with the nodes `old`. Operators
    that Spark says nothing about are left out. Blocks for about a tenth of a second.
    """
    try:
        operators = match_nodes(
            old, plan.operators, allow_non_restored=True, allow_changed=True, verdicts=all_fit(plan.operators)
        ).operators
    except StateNotMatched:
        return {}  # the caller matches them too, and reports the reason
    # Try all operators at once. Only if Spark refuses, try each by itself to find out which ones.
    asked = {node.number for node in plan.operators if node.stateful and not node.kind.startswith(USER_STATE)}
    told = {new: had for new, had in operators.items() if new in asked and (described / "state" / str(had)).exists()}
    if not told or _refusal(session, plan, described, told) == "":
        return dict.fromkeys(told, "")
    found = {new: _refusal(session, plan, described, {new: had}) for new, had in told.items()}
    return {new: refusal for new, refusal in found.items() if refusal is not None}


def _refusal(session: Session, plan: Plan, described: Path, operators: Mapping[int, int]) -> str | None:
    """Return why Spark refuses the state of these operators; "" if it accepts all; None if it says nothing of state."""
    directory = Path(tempfile.mkdtemp(prefix="rehearsal-", dir=described.parent))
    try:
        for new, had in operators.items():
            shutil.copytree(described / "state" / str(had), directory / "state" / str(new))
        plan_first_batch(session, plan.spark, plan.require(), plan.output_mode, directory / "state")
    except (PySparkException, Py4JError) as error:
        if condition_of(error) in _UNFIT:
            return _told(error)
        log.warning("state was not compared by Spark", error=hidden(str(error))[:2000])
        return None
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return ""


def _told(error: PySparkException | Py4JError) -> str:
    """Return what changes in the state's schema, or Spark's own message if the error does not carry both schemas."""
    given = error.java_exception.getMessageParameters() if isinstance(error, Py4JJavaError) else _parameters(error)
    for part in ("Value", "Key"):
        stored, new = given.get(f"stored{part}Schema"), given.get(f"new{part}Schema")
        if stored and new:
            return difference(part.lower(), str(stored), str(new))
    return _sentence(spark_message(error))


def _parameters(error: PySparkException | Py4JError) -> Mapping[str, str]:
    return (error.getMessageParameters() or {}) if isinstance(error, PySparkException) else {}


def _sentence(message: str) -> str:
    return " ".join(_worth_telling(message.splitlines()))


def _worth_telling(lines: Iterable[str]) -> Iterable[str]:
    for line in lines:
        if line.startswith(_ADVICE[1]):
            return
        if line.strip() and line not in _ADVICE:
            yield line.strip()
