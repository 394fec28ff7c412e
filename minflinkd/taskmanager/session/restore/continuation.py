"""Decides whether an attempt continues where another one stopped: in its directory, with its open state stores (H4).

A restored query opens a RocksDB for each partition, from the checkpoint's files. That takes longer with more state, and
it happens between the last micro-batch of one version of a job and the first one of the next. But after the cut of a
stop checkpoint, the stores of the stopped query are exactly at the point where the next query begins.

The next query continues in them only in the same session, and only if the restored files would give it the same state:
the stores keep the schemas and the settings with which they were opened. A store need not be open: Spark then opens it
as usual.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from minflinkd.jobgraph.model import RuntimeMode
from minflinkd.rpc.snapshot import PlanNode, without_meaning
from minflinkd.runtime.ids import JobId, TaskId
from minflinkd.taskmanager.child.protocol import RunTask
from minflinkd.taskmanager.session.state.operators import USER_STATE

_OWN_BOOKS = USER_STATE  # its open stores know only the variables that the old version's code has named


@dataclass(frozen=True)
class Standing:
    """What an attempt has left that stopped normally after the cut of `checkpoint_id`, at micro-batch `batch_id`."""

    job_id: JobId
    task_id: TaskId
    partitions: int
    spark: Mapping[str, str]  # settings of the job
    operators: tuple[PlanNode, ...]
    checkpoint_id: int
    batch_id: int
    run_id: str
    checkpoint: Path  # Spark's directory


def may_follow(standing: Standing, request: RunTask) -> bool:
    """Whether the requested attempt begins exactly where that one stopped. Its query is not known yet. Pure."""
    restored = request.restored
    return (
        restored is not None
        and (standing.job_id, standing.task_id) == (request.job.job_id, request.task.id)
        and (standing.checkpoint_id, standing.batch_id) == (restored.checkpoint_id, restored.batch_id)
        and restored.batch_id >= 0
        and not restored.input_ended
        and not restored.offsets
        and not restored.allow_non_restored
        and request.job.mode is RuntimeMode.STREAMING
    )


def follows(standing: Standing, request: RunTask, operators: tuple[PlanNode, ...]) -> bool:
    """Whether the attempt's query, with these operators, can continue in those state stores. Pure."""
    return (
        may_follow(standing, request)
        and standing.partitions == request.state_partitions
        and dict(standing.spark) == dict(request.job.spark)
        and without_meaning(standing.operators) == without_meaning(operators)
        and any(node.stateful for node in operators)
        and not any(node.kind.startswith(_OWN_BOOKS) for node in operators)
    )
