"""How many partitions of a micro-batch a query computes at a time: as many as its task has slots.

The state of a query may have more partitions than that (`jobgraph.partitions`). Each would be a Spark task of its own,
and the query would take slots that belong to others. So the sinks read a micro-batch through `coalesce`: one Spark task
computes several partitions, one after the other, each with its own state store.

Only the last stage of a micro-batch is coalesced. A query with two shuffles computes the partitions between them in
Spark tasks of their own; the scheduler pool of the job keeps these from starving others.
"""

from __future__ import annotations

from minflinkd.jobgraph.model import OutputMode
from minflinkd.taskmanager.session.plan.plan import Plan


class Share:
    """`partitions`: of the query's state."""

    def __init__(self, slots: int, partitions: int, plan: Plan) -> None:
        self._slots = slots
        self._partitions = partitions
        # A complete result may be in an order, which `coalesce` does not keep.
        self._divides = plan.keeps_state and plan.output_mode is not OutputMode.COMPLETE

    @property
    def tasks(self) -> int | None:
        """How many Spark tasks the last stage may have; None: one for each of its partitions."""
        return self._slots if self._divides and self._slots < self._partitions else None
