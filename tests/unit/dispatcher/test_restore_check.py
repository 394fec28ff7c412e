"""A submission that names a checkpoint to start from is checked before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import pytest
from msgspec.structs import replace

from minflinkd.checkpoint.causes import CheckpointKind
from minflinkd.checkpoint.metadata import CompletedCheckpoint, encode
from minflinkd.checkpoint.offsets import Offsets, TaskOffsets
from minflinkd.checkpoint.offsets import encode as encode_offsets
from minflinkd.dispatcher.state_fit import RestoreCheck
from minflinkd.jobgraph.model import JobGraph, Restore, RuntimeMode
from minflinkd.jobgraph.validation import parse_job
from minflinkd.jobmaster.origin import Origin, latest_offsets
from minflinkd.rpc.snapshot import Meant, PlanNode, Role, TaskSnapshot
from minflinkd.runtime.ids import AttemptId, JobId, ResourceId, TaskId
from minflinkd.storage.registry import Storages

OLD = JobId("0" * 31 + "1")
TASK = TaskId("numbers")


def node(vertex: str, kind: str, *, stateful: bool) -> PlanNode:
    return PlanNode(number=0, stateful=stateful, vertex=vertex, kind=kind)


NODES = (node("totals", "Aggregate", stateful=True), node("numbers", "rate", stateful=False))


def job(**restore: Any) -> JobGraph:
    return parse_job(
        {
            "name": "job",
            "restore": restore,
            "vertices": {
                "numbers": {"source": {"format": "rate"}},
                "totals": {"inputs": ["numbers"], "sql": "SELECT count(*) AS n FROM numbers"},
                "out": {"inputs": ["totals"], "sink": {"format": "parquet", "path": "/nowhere/out"}},
            },
        }
    )


SNAPSHOT = TaskSnapshot(
    task_id=TASK,
    attempt_id=AttemptId("0" * 32),
    resource_id=ResourceId("tm-000000000000"),
    checkpoint_id=3,
    batch_id=3,
    operators=NODES,
    source_offsets={"numbers": '{"offset":30}'},
)


def store(
    path: Path, *snapshots: TaskSnapshot, nodes: tuple[PlanNode, ...] = NODES, self_contained: bool = False
) -> str:
    checkpoint = CompletedCheckpoint(
        job_id=OLD,
        checkpoint_id=3,
        epoch=1,
        kind=CheckpointKind.PERIODIC,
        triggered_ms=0,
        completed_ms=0,
        tasks=snapshots or (replace(SNAPSHOT, operators=nodes),),
        self_contained=self_contained,
    )
    path.mkdir(parents=True)
    (path / "_metadata").write_bytes(encode(checkpoint))
    return str(path)


async def faults(graph: JobGraph, nodes: tuple[PlanNode, ...] = NODES, running: JobId | None = None) -> list[str]:
    storages = Storages({})
    try:
        check = RestoreCheck(storages, runs=lambda job_id: job_id == running)
        return [f"{fault.path}: {fault.problem}" for fault in await check.faults(graph, {TASK: nodes})]
    finally:
        await storages.aclose()


async def test_a_job_that_fits_is_accepted(tmp_path: Path) -> None:
    """C25."""
    path = store(tmp_path / "chk-3")
    assert await faults(job(path=path)) == []
    assert await faults(job(path=f"{path}/_metadata")) == []


async def test_a_savepoint_may_be_where_only_fsspec_reads(tmp_path: Path) -> None:
    """It is read like any other, but nobody can delete it: it cannot be claimed (C25)."""
    local = store(tmp_path / "savepoint-1", self_contained=True)
    fsspec.filesystem("memory").put(local, "/savepoints/savepoint-1", recursive=True)
    path = "memory://savepoints/savepoint-1"
    assert await faults(job(path=path)) == []
    assert await faults(job(path="memory://savepoints/none")) == [
        "restore.path: there is no memory://savepoints/none/_metadata"
    ]
    (fault,) = await faults(job(path=path, mode="claim"))
    assert fault == "restore.mode: memory:// is only read, so the job could never delete what it claims"


async def test_a_path_without_a_checkpoint_is_a_fault(tmp_path: Path) -> None:
    """So is a damaged checkpoint, and an unknown scheme (J4)."""
    assert await faults(job(path=str(tmp_path))) == [f"restore.path: there is no file://{tmp_path}/_metadata"]
    (tmp_path / "_metadata").write_bytes(b"minflinkd")
    assert "this is not checkpoint metadata" in (await faults(job(path=str(tmp_path))))[0]
    assert (await faults(job(path="nothing://x/y")))[0].startswith("restore.path: ")


async def test_state_without_a_place_is_a_fault_with_every_reason(tmp_path: Path) -> None:
    """C25."""
    path = store(tmp_path / "chk-3")
    found = await faults(job(path=path), (node("others", "Aggregate", stateful=True), NODES[1]))
    assert found == [
        "restore.path: vertex others has state (Aggregate), for which there is no state",
        "restore.path: vertex totals had state (Aggregate), and has none any more",
    ]
    assert await faults(job(path=path, **{"allow-non-restored-state": True}), NODES[1:]) == []


async def test_state_that_would_go_on_as_something_else_is_a_fault_unless_it_is_allowed(tmp_path: Path) -> None:
    """The rule is that of a hot restart. A checkpoint that does not record what its state means is accepted (C25)."""

    def totals(text: str) -> tuple[PlanNode, ...]:
        return replace(NODES[0], meaning=(Meant(role=Role.AGGREGATE, text=text, exact=text, form=text),)), NODES[1]

    path = store(tmp_path / "chk-3", nodes=totals("sum(v)"))
    (found,) = await faults(job(path=path), totals("max(v)"))
    assert found.endswith("holds sum(v), and would be read as max(v)")
    assert await faults(job(path=path, **{"allow-changed-state": True}), totals("max(v)")) == []
    assert await faults(job(path=path), totals("sum(v)")) == []
    assert await faults(job(path=store(tmp_path / "chk-2")), totals("max(v)")) == []


async def test_an_input_that_had_ended_beside_others_is_named(tmp_path: Path) -> None:
    """Files that came since would be skipped silently. A job whose inputs never end gets no warning (J8a)."""
    other = replace(SNAPSHOT, task_id=TaskId("others"), input_ended=False, operators=())
    path = store(tmp_path / "savepoint", replace(SNAPSHOT, input_ended=True), other, self_contained=True)
    storages = Storages({})
    try:
        check = RestoreCheck(storages, runs=lambda _: False)
        bounded = replace(job(path=path), mode=RuntimeMode.BATCH)
        (warning,) = await check.warnings(bounded)
        assert warning.startswith("the input of numbers had ended when the savepoint was taken")
        assert await check.warnings(job(path=path)) == ()
        going = store(tmp_path / "chk-3", SNAPSHOT, other)
        assert await check.warnings(replace(bounded, restore=Restore(path=going))) == ()
    finally:
        await storages.aclose()


async def test_a_checkpoint_of_a_job_that_runs_is_not_claimed(tmp_path: Path) -> None:
    """A savepoint of a running job may be claimed (C24)."""
    path = store(tmp_path / "chk-3")
    (fault,) = await faults(job(path=path, mode="claim"), running=OLD)
    assert fault.startswith(f"restore.mode: the checkpoint belongs to job {OLD}")
    assert await faults(job(path=path, mode="claim")) == []
    savepoint = store(tmp_path / "savepoint", self_contained=True)
    assert await faults(job(path=savepoint, mode="claim"), running=OLD) == []


async def test_the_latest_offsets_are_those_recorded_or_a_checkpoints(tmp_path: Path) -> None:
    """Whether the state fits does not matter then (C26)."""
    path = store(tmp_path / "chk-3")
    changed = (node("others", "Aggregate", stateful=True), NODES[1])
    assert await faults(job(path=path, offsets="latest"), changed) == []
    (fault,) = await faults(job(path=str(tmp_path), offsets="latest"))
    assert fault.startswith("restore.path: there is no")
    record = Offsets(job_id=OLD, tasks={TASK: TaskOffsets(processed={"numbers": {"offset": 40}})})
    (tmp_path / "offsets.json").write_bytes(encode_offsets(record))
    assert await faults(job(path=str(tmp_path), offsets="latest")) == []
    other = tmp_path / "other"
    other.mkdir()
    (other / "offsets.json").write_bytes(encode_offsets(Offsets(job_id=OLD)))
    assert await faults(job(path=str(other), offsets="latest")) == [
        "restore.path: it has no offset of any source of this job"
    ]


@pytest.mark.parametrize(("recorded", "start"), [(2, '{"offset":30}'), (3, '{"offset":40}')])
async def test_a_checkpoint_that_is_later_than_the_record_says_where_sources_stand(
    tmp_path: Path, recorded: int, start: str
) -> None:
    """What it has published is not read again (C26, J12)."""
    store(tmp_path / "chk-3")
    at = TaskOffsets(published={"numbers": {"offset": 40}}, checkpoint_id=recorded, staged=True)
    (tmp_path / "offsets.json").write_bytes(encode_offsets(Offsets(job_id=OLD, tasks={TASK: at})))
    storages = Storages()
    graph = job(path=str(tmp_path), offsets="latest")
    found = await latest_offsets(storages, str(tmp_path), Origin(storages, graph))
    assert [restore.offsets for restore in found.restores.values()] == [{"numbers": start}]


async def test_a_file_source_whose_log_is_gone_is_a_fault(tmp_path: Path) -> None:
    """Otherwise the job would be accepted, and fail again and again (C26, J4)."""
    record = Offsets(job_id=OLD, tasks={TASK: TaskOffsets(processed={"numbers": {"logOffset": 4}})})
    (tmp_path / "offsets.json").write_bytes(encode_offsets(record))
    (fault,) = await faults(job(path=str(tmp_path), offsets="latest"))
    assert fault.startswith("vertices.numbers: the offset of the file source numbers is a place in its log")
