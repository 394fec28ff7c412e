"""What `minflinkd explain` leaves out of Spark's plan (J5)."""

from __future__ import annotations

import pytest

from minflinkd.taskmanager.session.analysis.physical_plan import readable

STATE = (
    ", state info [ checkpoint = /state/first-batch-uq/state, runId = db6f6f9e-367d-4579-9709-237cc0faf622, opId = 0, "
    "ver = 0, numPartitions = 1] stateStoreCkptIds = None"
)


@pytest.mark.parametrize(
    ("line", "left"),
    [
        (f"+- StateStoreSave [k#4L]{STATE}, Append, 0, 0, 2", "+- StateStoreSave [k#4L], Append, 0, 0, 2"),
        (
            f"Join [a#1], [b#2], Inner{STATE}, 0, state cleanup [ left value predicate: (a#1 <= 0) ], 2",
            "Join [a#1], [b#2], Inner, 0, state cleanup [ left value predicate: (a#1 <= 0) ], 2",
        ),
        (
            "EventTimeWatermark c2eda988-c420-4f41-a8b3-cbf588f5c4ae, time#3: timestamp, 4 seconds",
            "EventTimeWatermark time#3: timestamp, 4 seconds",
        ),
        (
            "+- Exchange hashpartitioning(k#4L, 2), REQUIRED_BY_STATEFUL_OPERATOR, [plan_id=17]",
            "+- Exchange hashpartitioning(k#4L, 2), REQUIRED_BY_STATEFUL_OPERATOR",
        ),
        (
            "+- StreamingRelation exchange winning 7f912814aa10, [category#394L]",
            "+- StreamingRelation exchange winning, [category#394L]",
        ),
        ("+- *(1) Project [n#1L]", "+- *(1) Project [n#1L]"),
    ],
)
def test_a_plan_has_nothing_of_this_planning_alone(line: str, left: str) -> None:
    assert readable(line) == left
