"""Which attempt may continue in the directory, and with the open state stores, of the attempt before it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from minflinkd.jobgraph.model import Checkpointing, RuntimeMode, Source, Task, Vertex
from minflinkd.rpc.messages import JobContext
from minflinkd.rpc.snapshot import PlanNode
from minflinkd.runtime.ids import AttemptId, JobId, TaskId, VertexId
from minflinkd.taskmanager.child.protocol import Restored, RunTask
from minflinkd.taskmanager.session.restore.continuation import Standing, follows, may_follow
from minflinkd.taskmanager.session.state.snapshot import cut_off

JOB = JobContext(
    job_id=JobId("1" * 32),
    name="totals",
    params={"version": "1"},
    mode=RuntimeMode.STREAMING,
    checkpointing=Checkpointing(),
    checkpoint_root="file:///nowhere",
    spark={"spark.sql.streaming.minBatchesToRetain": "8"},
)
TASK = Task(id=TaskId("a"), vertices=(Vertex(id=VertexId("a"), source=Source(format="rate")),), parallelism=2)
NODES = (
    PlanNode(number=0, stateful=True, vertex="totals", kind="Aggregate", fingerprint="f"),
    PlanNode(number=0, stateful=False, vertex="a", kind="rate"),
)
OWN_BOOKS = (replace(NODES[0], kind="TransformWithStateInPySpark"), NODES[1])
STANDING = Standing(
    job_id=JOB.job_id,
    task_id=TASK.id,
    partitions=2,
    spark=JOB.spark,
    operators=NODES,
    checkpoint_id=7,
    batch_id=12,
    run_id="run",
    checkpoint=Path("checkpoint"),
)
RESTORED = Restored(checkpoint_id=7, batch_id=12)
REQUEST = RunTask(job=JOB, task=TASK, attempt_id=AttemptId("2" * 32), directory="next", restored=RESTORED)


def test_another_version_with_the_same_state_goes_on_where_the_one_before_it_stands() -> None:
    """Params, code, SQL and names around the state may differ (H4)."""
    vertices = (*TASK.vertices, Vertex(id=VertexId("b"), sql="SELECT 1"))
    changed = replace(REQUEST, job=replace(JOB, params={"version": "2"}), task=replace(TASK, vertices=vertices))
    assert follows(STANDING, REQUEST, NODES)
    assert follows(STANDING, changed, NODES)


@pytest.mark.parametrize(
    "request_",
    [
        replace(REQUEST, restored=None),
        replace(REQUEST, restored=replace(RESTORED, checkpoint_id=6)),
        replace(REQUEST, restored=replace(RESTORED, batch_id=11)),
        replace(REQUEST, restored=replace(RESTORED, input_ended=True)),
        replace(REQUEST, restored=replace(RESTORED, offsets={"a": "{}"})),
        replace(REQUEST, restored=replace(RESTORED, allow_non_restored=True)),
        replace(REQUEST, job=replace(JOB, job_id=JobId("3" * 32))),
        replace(REQUEST, job=replace(JOB, mode=RuntimeMode.BATCH)),
        replace(REQUEST, task=replace(TASK, id=TaskId("b"))),
    ],
    ids=["fresh", "older", "elsewhere", "drained", "offsets", "without state", "other job", "bounded", "other task"],
)
def test_an_attempt_that_begins_elsewhere_does_not(request_: RunTask) -> None:
    """An attempt that does not begin where the one before it stands cannot use its directory (C14)."""
    assert not may_follow(STANDING, request_)
    assert not follows(STANDING, request_, NODES)


@pytest.mark.parametrize(
    ("standing", "nodes"),
    [
        ({"partitions": 4}, NODES),
        ({"spark": {}}, NODES),
        ({"operators": NODES[1:]}, NODES[1:]),
        ({}, (replace(NODES[0], fingerprint="g"), NODES[1])),
        ({}, (replace(NODES[0], number=1), NODES[1])),
        ({"operators": OWN_BOOKS}, OWN_BOOKS),
    ],
    ids=["rescaled", "settings", "no state", "other types", "moved", "variables"],
)
def test_stores_of_another_kind_are_opened_anew(standing: dict[str, Any], nodes: tuple[PlanNode, ...]) -> None:
    """A store keeps the schema, the settings and the number of partitions with which it was opened (H6, C25)."""
    assert not follows(dataclasses.replace(STANDING, **standing), REQUEST, nodes)


def test_what_was_planned_and_not_processed_is_forgotten(tmp_path: Path) -> None:
    """The next version plans its first micro-batch itself, with its own sources (C14)."""
    for name in ("offsets", "commits", "sources/0", "sources/1", "sources/2"):
        (tmp_path / name).mkdir(parents=True)
    lines = ["v1", "{}", json.dumps({"logOffset": 4}), '{"events": 7}', json.dumps({"logOffset": 2})]
    for batch in (11, 12, 13):
        (tmp_path / "offsets" / str(batch)).write_text("\n".join(lines))
    for path in ("commits/12", "sources/0/3.compact", "sources/0/4", "sources/0/5", "sources/1/0", "sources/2/3"):
        (tmp_path / path).touch()
    cut_off(tmp_path, 12)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"offsets/11", "offsets/12", "commits/12", "sources/0/3.compact", "sources/0/4", "sources/1/0"}
