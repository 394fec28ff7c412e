"""Spark's physical plan of a task, as text for people (`minflinkd explain`)."""

from __future__ import annotations

import re
from typing import Final

from minflinkd.runtime.errors import bounded
from minflinkd.taskmanager.session.plan.plan import Plan
from minflinkd.taskmanager.session.spark import first_batch
from minflinkd.taskmanager.session.spark.failures import hidden
from minflinkd.taskmanager.session.spark.session import Session
from minflinkd.taskmanager.session.state.operators import USER_STATE

LONGEST: Final = 16 * 1024  # characters
_NOISE: Final = {
    re.compile(r", state info \[ checkpoint = .*?\](?: stateStoreCkptIds = \w+)?"): "",
    re.compile(r"(EventTimeWatermark) [0-9a-f-]{36}, "): r"\1 ",
    re.compile(r", \[plan_id=\d+\]"): "",
    re.compile(r"(StreamingRelation exchange \S+) [0-9a-f]+\b"): r"\1",
}


def told(session: Session, plan: Plan) -> str:
    """Return the plan of a first micro-batch without state. It was planned before, without a fault. Blocks."""
    frame = plan.require()
    compares = not any(node.kind.startswith(USER_STATE) for node in plan.operators)
    found = first_batch.plan_without_state(session, plan.spark, frame, plan.output_mode, compares=compares)
    # Not `toString`: a source that is alone in its plan says no more of itself there than its name.
    return bounded(readable(hidden(str(found.treeString()).rstrip())), LONGEST)


def readable(text: str) -> str:
    """Return the plan without what is of this planning alone: directories, ids of runs, addresses of objects. Pure."""
    for noise, instead in _NOISE.items():
        text = noise.sub(instead, text)
    return text
