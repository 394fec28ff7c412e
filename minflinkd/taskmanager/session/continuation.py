"""Going on where another attempt of the task stopped: in its directory, with its state stores as they are open (H4).

A restored query opens a RocksDB for each partition, from the checkpoint's files. That takes the longer the larger the
state is, and lies between the last micro-batch of one version of a job and the first of the next. Yet behind the cut of
a checkpoint to stop with, the stores of the query that stops stand exactly where the next one begins.

Only where the next query would find nothing else in the restored files, and in the same session: its stores have the
schemas and the settings with which they were opened. It needs no store to be open; then Spark opens it as ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from minflinkd.jobgraph.model import RuntimeMode
from minflinkd.rpc.snapshot import PlanNode, without_meaning
from minflinkd.runtime.ids import JobId, TaskId
from minflinkd.taskmanager.session.operators import USER_STATE
from minflinkd.taskmanager.session_protocol import RunTask

_OWN_BOOKS = USER_STATE  # its stores know the variables that the code of one version has named


@dataclass(frozen=True)
class Standing:
    """What an attempt left that stopped in order behind the cut of `checkpoint_id`, at micro-batch `batch_id`."""

    job_id: JobId
    task_id: TaskId
    parallelism: int
    spark: Mapping[str, str]  # settings of the job
    operators: tuple[PlanNode, ...]
    checkpoint_id: int
    batch_id: int
    run_id: str
    checkpoint: Path  # Spark's directory


def may_follow(standing: Standing, request: RunTask) -> bool:
    """Whether the attempt is to begin where that one stands; what its query is, is not known yet. Pure."""
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
    """Whether its query can have those stores. Pure."""
    return (
        may_follow(standing, request)
        and standing.parallelism == request.task.parallelism
        and dict(standing.spark) == dict(request.job.spark)
        and without_meaning(standing.operators) == without_meaning(operators)
        and any(node.stateful for node in operators)
        and not any(node.kind.startswith(_OWN_BOOKS) for node in operators)
    )
