"""Which logs of file sources a job takes that starts at recorded offsets, and where its sources start in them."""

from __future__ import annotations

from typing import Any

import pytest

from minflinkd.checkpoint.offsets import Offsets, TaskOffsets
from minflinkd.checkpoint.source_logs import SourceLogs, logs_of, positions, sources_with_logs, without_log
from minflinkd.rpc.plan_sources import EXCHANGE
from minflinkd.rpc.snapshot import PlanNode, StateFile, StateHandle, TaskSnapshot
from minflinkd.runtime.ids import AttemptId, JobId, ResourceId, TaskId

LOG = '{"logOffset":%d}'


def source(number: int, vertex: str, kind: str = "FileSource") -> PlanNode:
    return PlanNode(number=number, stateful=False, vertex=vertex, kind=kind)


def snapshot(task: str, *operators: PlanNode, files: tuple[str, ...] = (), **offsets: str) -> TaskSnapshot:
    """Return a snapshot with files of this name. Each has a handle of its own."""
    return TaskSnapshot(
        task_id=TaskId(task),
        attempt_id=AttemptId("0" * 32),
        resource_id=ResourceId("tm-000000000000"),
        checkpoint_id=3,
        batch_id=3,
        operators=operators,
        files=tuple(StateFile(path, StateHandle(f"{task}/{path}", 0, 1, "")) for path in files),
        source_offsets=offsets,
    )


def recorded(*, staged: bool, **offsets: Any) -> Offsets:
    known = TaskOffsets(processed=offsets, published=offsets, staged=staged)
    return Offsets(job_id=JobId("0" * 32), tasks={TaskId("t"): known})


TWO = (
    snapshot(
        "a",
        PlanNode(number=0, stateful=True, vertex="sums", kind="Aggregate"),
        source(0, "x", EXCHANGE),
        source(1, "a"),
        source(2, "a"),
        files=("metadata", "offsets/3", "sources/0/9.compact", "sources/0/10", "sources/1/0", "state/0/0/1.delta"),
        **{"a": LOG % 10, "a#2": LOG % 0},
    ),
    snapshot("b", source(0, "b"), source(1, "k", "kafka"), files=("sources/0/0", "sources/1/0"), b=LOG % 0, k="{}"),
)


def test_the_logs_of_sources_of_several_tasks_are_those_of_one_query() -> None:
    """A new version may have them in one task. Neither state nor any other file comes with them (C26)."""
    found = logs_of(TWO, {"a", "b"})
    assert [(node.number, node.vertex) for node in found.operators] == [(0, "a"), (1, "a"), (2, "b")]
    assert [(file.path, file.handle.file) for file in found.files] == [
        ("sources/0/9.compact", "a/sources/0/9.compact"),
        ("sources/0/10", "a/sources/0/10"),
        ("sources/1/0", "a/sources/1/0"),
        ("sources/2/0", "b/sources/0/0"),
    ]
    assert [file.path for file in logs_of(TWO, {"b"}).files] == ["sources/0/0"]
    assert logs_of(TWO, ()) == SourceLogs()


def test_only_file_sources_are_found_by_their_logs() -> None:
    """An exchange has no log. Kafka's directory holds no list of what was read (C26)."""
    assert sources_with_logs(TWO) == {"a": 10, "a#2": 0, "b": 0}
    bare = snapshot("b", source(0, "b"), b=LOG % 0)
    assert sources_with_logs([bare]) == {}, "the checkpoint does not have the log"


@pytest.mark.parametrize(("place", "starts"), [(4, 4), (5, 5), (7, 5)])
def test_a_job_whose_sinks_repeat_rows_reads_again_what_the_log_lacks(place: int, starts: int) -> None:
    """The files after the log's end are not known: nothing is skipped (C26)."""
    found, useless = positions(recorded(staged=False, a={"logOffset": place}, k={"k": {"0": 9}}), {"a": 5})
    assert found == {"a": {"logOffset": starts}, "k": {"k": {"0": 9}}}
    assert useless == frozenset()


def test_what_is_published_is_not_read_again() -> None:
    """A log that lacks published files is not used, and so the start is refused (C26, J12)."""
    found, useless = positions(recorded(staged=True, a={"logOffset": 7}, b={"logOffset": 2}), {"a": 5, "b": 2})
    assert found == {"a": {"logOffset": 7}, "b": {"logOffset": 2}}
    assert useless == {"a"}


def test_a_file_source_without_its_log_is_named() -> None:
    """Any other source needs none (C26)."""
    offsets = {"a": LOG % 10, "a#2": LOG % 0, "k": '{"k":{"0":9}}', "plain": "17"}
    assert without_log(offsets, SourceLogs()) == ("a", "a#2")
    assert without_log(offsets, logs_of(TWO, {"a"})) == ()
