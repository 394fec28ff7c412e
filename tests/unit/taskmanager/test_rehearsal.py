"""What a hot standby rehearses: the task without anything that others can see (R32)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from minflinkd.jobgraph.delivery import refused_mode
from minflinkd.jobgraph.model import Input, OutputMode, Sink, Source, Task, Vertex
from minflinkd.rpc.messages import StandbyTask, TaskRestore
from minflinkd.rpc.snapshot import TaskSnapshot
from minflinkd.runtime.ids import AttemptId, ResourceId, TaskId, VertexId
from minflinkd.storage.publication import SinkTransaction, StagedToken
from minflinkd.taskmanager.attempts.rehearsal import NOWHERE, cannot_rehearse, rehearsed

READ, COUNTED = VertexId("read"), VertexId("counted")
HERE = Path("/attempt/rehearsed")
TOKENS = (StagedToken(AttemptId("2" * 32), 3, "1"),)


def task(source: Source, *sinks: Vertex, readers: tuple[TaskId, ...] = ()) -> Task:
    counted = Vertex(id=COUNTED, inputs=(Input(id=READ),), sql="SELECT count(*) FROM read")
    return Task(
        id=TaskId("t"), vertices=(Vertex(id=READ, source=source), counted, *sinks), parallelism=2, readers=readers
    )


def sink(name: str, **settings: Any) -> Vertex:
    return Vertex(id=VertexId(name), inputs=(Input(id=COUNTED),), sink=Sink(**settings), output_mode=OutputMode.UPDATE)


def standby(of: Task) -> StandbyTask:
    snapshot = TaskSnapshot(
        task_id=of.id,
        attempt_id=AttemptId("2" * 32),
        resource_id=ResourceId("tm-1"),
        checkpoint_id=7,
        batch_id=3,
        transactions=(SinkTransaction(job_id="1" * 32, sink="table", checkpoint_id=7, tokens=TOKENS),),
    )
    return StandbyTask(task=of, restore=TaskRestore(checkpoint_id=7, snapshot=snapshot), partitions=4)


def test_no_sink_is_reached() -> None:
    """Files are written into the rehearsal's own directory, all other rows go nowhere (R32)."""
    files = sink("files", format="parquet", path="s3://bucket/out", partition_by=("day",))
    topic = sink("topic", format="kafka", options={"topic": "out"})
    code = sink("code", python="m:f")
    found = rehearsed(standby(task(Source(format="rate"), files, topic, code)), HERE).task
    assert [vertex.sink for vertex in found.vertices[2:]] == [
        Sink(format="parquet", path="/attempt/rehearsed/files", partition_by=("day",)),
        NOWHERE,
        NOWHERE,
    ]
    assert {vertex.output_mode for vertex in found.vertices[2:]} == {OutputMode.UPDATE}


@pytest.mark.parametrize("mode", OutputMode)
def test_whatever_a_sink_asks_for_goes_nowhere(mode: OutputMode) -> None:
    """A query that only has a mode which no durable sink takes is rehearsed in that mode (R32)."""
    assert refused_mode(NOWHERE, mode) is None


def test_what_the_checkpoint_has_staged_is_left_alone() -> None:
    """Only the job commits it. State and offsets are those of the checkpoint (R32, J12)."""
    before = standby(task(Source(format="rate"), sink("table", format="jdbc")))
    found = rehearsed(before, HERE)
    assert found.restore.snapshot == replace(before.restore.snapshot, transactions=())
    assert found.partitions == 4


def test_a_task_that_others_read_is_rehearsed_without_them() -> None:
    """It has no exchange, which its readers would read, but computes all rows (R32)."""
    found = rehearsed(standby(task(Source(format="rate"), readers=(TaskId("other"),))), HERE).task
    assert found.readers == ()
    assert [vertex.inputs for vertex in found.sinks] == [(Input(id=COUNTED),)]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (Source(format="parquet", path="/in", options={"maxFilesPerTrigger": "1"}), ""),
        (Source(format="kafka", options={"subscribe": "in"}), ""),
        (Source(format="json", path="/in", options={"cleanSource": "delete"}), "read has the option cleansource"),
        (Source(format="kafka", options={"Kafka.Group.Id": "mine"}), "read has the option kafka.group.id"),
        (Source(format="queue"), "read reads queue, which may do more than read"),
        (Source(python="m:f"), "read is a function, which may do more than read"),
    ],
)
def test_a_source_is_read_a_second_time_only_if_that_changes_nothing(source: Source, why: str) -> None:
    """Files may be deleted once they were read, messages acknowledged, partitions taken from the reader (R32)."""
    assert cannot_rehearse(task(source)) == why


def test_a_task_that_reads_another_one_is_not_rehearsed() -> None:
    """The other one's exchange is elsewhere, and has no place for a second reader (R32)."""
    counted = Vertex(id=COUNTED, inputs=(Input(id=READ, exchange=True),), sql="SELECT count(*) FROM read")
    assert cannot_rehearse(Task(id=TaskId("t"), vertices=(counted,), parallelism=1)) == "it reads another task"
