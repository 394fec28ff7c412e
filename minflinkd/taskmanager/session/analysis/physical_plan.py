"""Spark's physical plan of a task, as text for people (`minflinkd explain`)."""

from __future__ import annotations

from typing import Final

from minflinkd.runtime.errors import bounded
from minflinkd.taskmanager.session.plan.plan import Plan
from minflinkd.taskmanager.session.spark import first_batch
from minflinkd.taskmanager.session.spark.failures import hidden
from minflinkd.taskmanager.session.spark.session import Session
from minflinkd.taskmanager.session.state.operators import USER_STATE

LONGEST: Final = 16 * 1024  # characters


def told(session: Session, plan: Plan) -> str:
    """Return the plan of a first micro-batch without state. It was planned before, without a fault. Blocks."""
    frame = plan.require()
    compares = not any(node.kind.startswith(USER_STATE) for node in plan.operators)
    found = first_batch.plan_without_state(session, plan.spark, frame, plan.output_mode, compares=compares)
    return bounded(hidden(str(found.toString()).rstrip()), LONGEST)
