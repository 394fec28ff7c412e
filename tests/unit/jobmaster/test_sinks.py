"""What a JobMaster does with its job's sinks between attempts and at the end, on real files."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from minflinkd.checkpoint.causes import CheckpointKind
from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.jobgraph.model import Input, JobGraph, Sink, Source, Vertex
from minflinkd.jobmaster import sinks as job_sinks
from minflinkd.jobmaster.sinks import JobSinks, leaves_sinks
from minflinkd.rpc.snapshot import TaskSnapshot
from minflinkd.runtime.errors import Consequence
from minflinkd.runtime.ids import AttemptId, JobId, ResourceId, TaskId, VertexId
from minflinkd.storage.interface import StorageCorrupt, StorageUnavailable
from minflinkd.storage.publication import SinkTransaction, StagedFile, StagedToken, final_name, staged_directory
from minflinkd.storage.registry import Storages
from tests.waiting import until

JOB, ATTEMPT = JobId("1" * 32), AttemptId("2" * 32)


def graph(root: Path) -> JobGraph:
    return JobGraph(
        name="copy",
        params={"root": str(root)},
        vertices=(
            Vertex(id=VertexId("numbers"), source=Source(format="rate")),
            Vertex(
                id=VertexId("out"),
                inputs=(Input(id=VertexId("numbers")),),
                sink=Sink(format="parquet", path="${root}"),
            ),
        ),
    )


def stage(root: Path, epoch: int, attempt: AttemptId = ATTEMPT) -> StagedFile:
    directory = staged_directory(JOB, "out", attempt, epoch)
    (root / directory).mkdir(parents=True)
    (root / directory / "part-0.parquet").write_bytes(b"rows")
    return StagedFile(f"{directory}/part-0.parquet", final_name(JOB, "out", attempt, epoch, "part-0.parquet"), 4)


def checkpoint(root: Path, *files: StagedFile) -> CompletedCheckpoint:
    transaction = SinkTransaction(job_id=JOB, sink="out", root=str(root), checkpoint_id=1, files=files)
    task = TaskSnapshot(
        task_id=TaskId("numbers"),
        attempt_id=ATTEMPT,
        resource_id=ResourceId("tm-1"),
        checkpoint_id=1,
        batch_id=1,
        transactions=(transaction,),
    )
    return CompletedCheckpoint(
        job_id=JOB,
        checkpoint_id=1,
        epoch=1,
        kind=CheckpointKind.PERIODIC,
        triggered_ms=0,
        completed_ms=0,
        tasks=(task,),
    )


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


MANIFEST = f"_minflinkd/{JOB}/out/manifests/000000001.json"


async def test_before_a_deployment_the_checkpoint_is_published_and_the_rest_discarded(tmp_path: Path) -> None:
    """Each row is published once, whichever attempt staged it (J12)."""
    sinks = JobSinks(Storages(), job_id=JOB, graph=graph(tmp_path))
    covered = stage(tmp_path, 1)
    stage(tmp_path, 2)
    stage(tmp_path, 1, AttemptId("3" * 32))
    for _ in range(2):
        await sinks.prepare(checkpoint(tmp_path, covered))
        assert files(tmp_path) == {covered.final, MANIFEST}


async def test_a_fresh_start_discards_everything_that_is_staged(tmp_path: Path) -> None:
    stage(tmp_path, 1)
    await JobSinks(Storages(), job_id=JOB, graph=graph(tmp_path)).prepare(None)
    assert files(tmp_path) == set()


async def test_the_end_leaves_data_and_manifests(tmp_path: Path) -> None:
    covered = stage(tmp_path, 1)
    stage(tmp_path, 2)
    await JobSinks(Storages(), job_id=JOB, graph=graph(tmp_path)).close(checkpoint(tmp_path, covered))
    assert files(tmp_path) == {covered.final, MANIFEST}


async def test_nothing_is_discarded_where_the_checkpoint_cannot_be_published(tmp_path: Path) -> None:
    """A person may still find the cause, and needs the files for it."""
    covered, other = stage(tmp_path, 1), stage(tmp_path, 2)
    (tmp_path / covered.staged).unlink()
    with pytest.raises(StorageCorrupt):
        await JobSinks(Storages(), job_id=JOB, graph=graph(tmp_path)).prepare(checkpoint(tmp_path, covered))
    assert files(tmp_path) == {other.staged}


async def test_a_slow_preparation_of_an_older_round_is_over_before_the_next_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the older round could discard files that a newer attempt has staged."""
    order: list[str] = []
    go = asyncio.Event()

    async def discard(*_: object) -> int:
        order.append("begin")
        await go.wait()
        order.append("end")
        return 0

    monkeypatch.setattr("minflinkd.jobmaster.sinks.discard_staged", discard)
    sinks = JobSinks(Storages(), job_id=JOB, graph=graph(tmp_path))
    rounds = [asyncio.create_task(sinks.prepare(None)) for _ in range(2)]
    await until(lambda: order, "the first round is in it")
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(*rounds)
    assert order == ["begin", "end"] * 2


async def test_a_storage_that_hangs_is_an_error_that_may_pass_and_keeps_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No restart or cancellation waits for ever, and the hanging step cannot overlap the next one (A5)."""
    order: list[str] = []
    go = asyncio.Event()

    async def hang(*_: object) -> int:
        order.append("begin")
        await go.wait()  # like a thread, which cannot be stopped
        order.append("end")
        return 0

    sinks = JobSinks(Storages(), job_id=JOB, graph=graph(tmp_path))
    monkeypatch.setattr(job_sinks, "STEP_TIMEOUT", 0.01)
    with monkeypatch.context() as hanging:
        hanging.setattr(job_sinks, "discard_staged", hang)
        for told in ("step 1 of 1", "an earlier request"):
            with pytest.raises(StorageUnavailable, match=told) as refused:
                await sinks.prepare(None)
            assert refused.value.consequence is Consequence.RETRYABLE
    staged = stage(tmp_path, 1)
    monkeypatch.setattr(job_sinks, "STEP_TIMEOUT", 10)
    after = asyncio.create_task(sinks.prepare(None))
    await asyncio.sleep(0)
    assert files(tmp_path) == {staged.staged}
    go.set()
    await after
    assert (order, files(tmp_path)) == (["begin", "end"], set())


async def test_many_steps_that_make_progress_have_all_the_time_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is for one step, not for a job with many sinks (A5)."""

    async def slow(*_: object) -> int:
        await asyncio.sleep(0.5)
        return 0

    monkeypatch.setattr(job_sinks, "STEP_TIMEOUT", 2.0)
    monkeypatch.setattr(job_sinks, "publish", slow)
    covered = [stage(tmp_path, epoch) for epoch in range(5)]
    point = checkpoint(tmp_path, *covered)
    many = replace(point, tasks=tuple(replace(point.tasks[0], task_id=TaskId(f"t{n}")) for n in range(5)))
    await JobSinks(Storages(), job_id=JOB, graph=graph(tmp_path)).prepare(many)


async def test_the_sinks_of_other_regions_are_left_alone(tmp_path: Path) -> None:
    """Tasks of other regions run on, and their staged files belong to attempts that count (R16)."""
    covered = stage(tmp_path, 1)
    other = stage(tmp_path, 2)
    sinks = JobSinks(Storages(), job_id=JOB, graph=graph(tmp_path))
    await sinks.prepare(checkpoint(tmp_path, covered), frozenset({VertexId("elsewhere")}))
    assert files(tmp_path) == {covered.staged, other.staged}
    await sinks.prepare(checkpoint(tmp_path, covered), frozenset({VertexId("out")}))
    assert files(tmp_path) == {covered.final, MANIFEST}


async def test_what_a_sink_commits_itself_is_none_of_the_jobmasters_business(tmp_path: Path) -> None:
    """A restored attempt commits it, because the sink's code and connections are there (J13)."""
    point = checkpoint(tmp_path)
    token = StagedToken(ATTEMPT, 1, '"rows"')
    task = replace(
        point.tasks[0], transactions=(SinkTransaction(job_id=JOB, sink="own", checkpoint_id=1, tokens=(token,)),)
    )
    sinks = JobSinks(Storages(), job_id=JOB, graph=graph(tmp_path))
    await sinks.prepare(replace(point, tasks=(task,)))
    await sinks.close(replace(point, tasks=(task,)))
    assert files(tmp_path) == set()


async def test_what_a_sink_of_another_version_staged_is_discarded_too(tmp_path: Path) -> None:
    """No files of an earlier version are left, and a storage that nobody knows any more holds nobody up (H3, J12)."""
    root, other = tmp_path / "out", tmp_path / "other"
    stage(other, 1)
    of_other_versions = [
        (VertexId("out"), str(root)),
        (VertexId("out"), str(other)),
        (VertexId("lost"), "nowhere://bucket/lost"),
    ]
    storages = Storages()
    sinks = JobSinks(storages, job_id=JOB, graph=graph(root), of_other_versions=of_other_versions)
    await sinks.prepare(None)
    assert [path for path in other.rglob("*") if path.is_file()] == []
    await sinks.close(None)
    assert list(other.iterdir()) == []
    await storages.aclose()


def test_a_version_leaves_sinks_behind_that_it_lacks_or_that_are_in_another_task(tmp_path: Path) -> None:
    """Only then must the version before it commit for these sinks before it stops (J13)."""
    one = graph(tmp_path)
    source, out = one.vertices
    apart = Vertex(id=VertexId("apart"), inputs=(Input(id=source.id, exchange=True),), sql="SELECT * FROM numbers")
    moved = replace(one, vertices=(source, apart, replace(out, inputs=(Input(id=apart.id),))))
    renamed = replace(one, vertices=(source, replace(out, id=VertexId("other"))))
    more = replace(one, vertices=(*one.vertices, replace(out, id=VertexId("other"))))
    assert [leaves_sinks(one, new) for new in (one, more, renamed, moved)] == [False, False, True, True]
