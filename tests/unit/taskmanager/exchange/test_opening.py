"""Another version reads a snapshot's unread rows of an exchange only with the columns with which they were written."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from minflinkd.checkpoint.state_matching import StateNotMatched
from minflinkd.jobgraph.model import Checkpointing, RuntimeMode, Task
from minflinkd.rpc.messages import JobContext
from minflinkd.runtime.ids import AttemptId, JobId, TaskId, VertexId
from minflinkd.taskmanager.child.protocol import InputChannel, RunTask
from minflinkd.taskmanager.exchange.channels import UNREAD
from minflinkd.taskmanager.exchange.log import LogWriter
from minflinkd.taskmanager.session.exchange.opening import Opening

A = VertexId("a")


def opened(base: Path, *, unread: StructType | None, yields: StructType) -> dict[VertexId, str]:
    """Open a task's inputs. Its snapshot has `unread` rows of `a`; None means that their columns were not recorded."""
    log = base / "exchanges/upstream"
    LogWriter(log, ("task",)).describe(yields.json())
    left = base / "attempt/checkpoint" / UNREAD / A
    LogWriter(left, ())
    if unread is not None:
        LogWriter(left, ()).describe(unread.json())
    context = JobContext(
        job_id=JobId("1" * 32),
        name="job",
        params={},
        mode=RuntimeMode.STREAMING,
        checkpointing=Checkpointing(),
        checkpoint_root="file:///nowhere",
    )
    request = RunTask(
        job=context,
        task=Task(id=TaskId("task"), vertices=(), parallelism=1),
        attempt_id=AttemptId("2" * 32),
        directory=str(base / "attempt"),
        inputs=(InputChannel(vertex_id=A, directory=str(log)),),
    )
    return Opening(request, base / "attempt/checkpoint").await_inputs(threading.Event())


def columns(**types: str) -> StructType:
    schema = StructType()
    for name, kind in types.items():
        schema.add(name, kind)
    return schema


def test_unread_rows_with_the_columns_that_the_task_upstream_yields_are_taken_in(tmp_path: Path) -> None:
    """It does not matter whether a column may be null, nor whether the columns were recorded (C5)."""
    same, strict = columns(k="string", v="long"), columns(k="string", v="long")
    strict["v"].nullable = False
    assert opened(tmp_path / "1", unread=same, yields=strict) == {A: strict.json()}
    assert opened(tmp_path / "2", unread=None, yields=same) == {A: same.json()}


@pytest.mark.parametrize(
    "yields",
    [columns(k="string", v="long", w="long"), columns(k="string", w="long"), columns(k="string", v="integer")],
    ids=["one more", "another meaning", "another type"],
)
def test_unread_rows_with_other_columns_than_the_new_version_has_there_are_refused(
    tmp_path: Path, yields: StructType
) -> None:
    """Columns are stored by position, so they would be read as other columns, or as null (C25, H2)."""
    with pytest.raises(StateNotMatched, match="unaligned"):
        opened(tmp_path, unread=columns(k="string", v="long"), yields=yields)
