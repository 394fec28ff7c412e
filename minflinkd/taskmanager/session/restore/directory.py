"""Prepares the checkpoint directory that an attempt's query starts from: restored, moved, repartitioned or taken over.

The query continues from what Spark finds there. So whatever must differ from the snapshot is changed here, before the
query exists.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import structlog
from pyspark import SparkContext

from minflinkd.jobgraph.model import RuntimeMode
from minflinkd.rpc.plan_sources import lines_with_logs
from minflinkd.taskmanager.child.protocol import RunTask
from minflinkd.taskmanager.session.plan.plan import Plan
from minflinkd.taskmanager.session.restore import continuation, placement
from minflinkd.taskmanager.session.restore.continuation import Standing
from minflinkd.taskmanager.session.restore.offsets import start_at
from minflinkd.taskmanager.session.restore.repartition import StateNotRepartitioned, recorded_partitions, repartition
from minflinkd.taskmanager.session.spark.scheduling import pool, tagged
from minflinkd.taskmanager.session.spark.session import Session
from minflinkd.taskmanager.session.state import schema_paths, snapshot

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Start:
    """Where a query starts, and how many partitions it has.

    `moved`: state or offsets have other paths than in the snapshot. `continues`: the directory is that of the attempt
    before it.
    """

    checkpoint: Path
    partitions: int
    moved: bool = False
    continues: bool = False


def partitions_for(request: RunTask, plan: Plan) -> int:
    """Return how many partitions the query should have: without state, no more than are computed at a time."""
    return request.state_partitions if plan.keeps_state else request.task.parallelism


class Restoring:
    """Prepares the start of one attempt.

    `checkpoint`: the directory into which the supervisor has restored the files. `before`: what a stopped attempt has
    left, from which this one may continue.
    """

    def __init__(
        self,
        session: Session,
        request: RunTask,
        checkpoint: Path,
        before: Standing | None,
        stopping: threading.Event,
    ) -> None:
        self._session = session
        self._request = request
        self._checkpoint = checkpoint
        self._before = before
        self._stopping = stopping

    def prepare(self, plan: Plan) -> Start:
        """Prepare the directory. Raises StateNotMatched, StateNotRestored, and what Spark raises if it repartitions."""
        start = self._prepare(plan)
        if not start.continues:
            schema_paths.localize(start.checkpoint)
        return start

    def _prepare(self, plan: Plan) -> Start:
        restored, wanted = self._request.restored, partitions_for(self._request, plan)
        if restored is not None and restored.offsets:
            target = self._checkpoint.with_name("at-offsets")
            start_at(self._session, plan, self._checkpoint, target, restored)
            return Start(target, wanted, moved=True)
        if restored is None or restored.batch_id < 0:
            return Start(self._checkpoint, wanted)
        if restored.same_meaning:
            placement.refuse_another_meaning(
                restored.operators, plan.operators, allow_non_restored=restored.allow_non_restored
            )
        if self._before is not None and continuation.follows(self._before, self._request, plan.operators):
            return self._go_on(self._before, plan)
        moved = placement.place(
            self._checkpoint,
            restored.batch_id,
            restored.operators,
            plan.operators,
            allow_non_restored=restored.allow_non_restored,
        )
        checkpoint, batch, partitions = self._fit_partitions(plan, restored.batch_id, wanted)
        snapshot.renew_query_id(checkpoint)
        if self._request.job.mode is RuntimeMode.BATCH and not restored.input_ended:
            snapshot.plan_empty_batch(checkpoint, batch)
        return Start(checkpoint, partitions, moved=moved)

    def _go_on(self, before: Standing, plan: Plan) -> Start:
        snapshot.cut_off(before.checkpoint, before.batch_id, lines_with_logs(plan.operators))
        snapshot.renew_query_id(before.checkpoint)
        return Start(before.checkpoint, before.partitions, continues=True)

    def _fit_partitions(self, plan: Plan, batch: int, wanted: int) -> tuple[Path, int, int]:
        """R20: give the query as many partitions as it should have.

        Returns its directory, its last micro-batch, and how many it has.

        If Spark cannot repartition the state, the query keeps its partitions: results are the same, only the
        parallelism is not as wanted.
        """
        request = self._request
        recorded = recorded_partitions(snapshot.read_offsets(self._checkpoint, batch))
        if recorded in (0, wanted):
            return self._checkpoint, batch, wanted
        target = self._checkpoint.with_name("repartitioned")
        try:
            with pool(self._context, request.job.job_id), tagged(self._context, request.attempt_id):
                return target, repartition(plan.spark, self._checkpoint, batch, wanted, target), wanted
        except StateNotRepartitioned as error:
            if self._stopping.is_set():
                raise
            log.warning("a query keeps its partitions", attempt=request.attempt_id, has=recorded, why=str(error))
            return self._checkpoint, batch, recorded

    @property
    def _context(self) -> SparkContext:
        return self._session.spark.sparkContext
