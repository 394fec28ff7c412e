"""The sweep over all jobs of a checkpoint directory (F7), on a real disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace as copy

from minflinkd.checkpoint import layout, orphans
from minflinkd.checkpoint.metadata import CompletedCheckpoint, encode
from minflinkd.checkpoint.orphans import CHANGED, RECENT, UNREADABLE, NotLeading, list_jobs, sweep
from minflinkd.checkpoint.savepoints import write_savepoint
from minflinkd.filemerging.segments import checksum
from minflinkd.rpc.jobs import JobOrphans, OrphanFile
from minflinkd.rpc.snapshot import StateFile, StateHandle, TaskSnapshot
from minflinkd.runtime.ids import JobId
from minflinkd.storage.registry import Storages
from tests.unit.checkpoint.builders import A1, JOB, TM, A, completed, name

OLD, BEFORE, NEW = 1_000, 2_000, 3_000  # seconds since 1970
OTHER = JobId("0" * 31 + "2")


class Root:
    """Checkpoints of two jobs. Every file is old unless it is written anew."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.location = Storages().at(f"file://{path}")

    def put(self, job: JobId, file: str, data: bytes = b"x", *, at: int = OLD) -> Path:
        path = self.path / job / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (at, at))
        return path

    def checkpoint(self, job: JobId, number: int) -> CompletedCheckpoint:
        """Write a retained checkpoint with one segment."""
        data = f"state {number}".encode()
        handle = StateHandle(name(number, A1), 0, len(data), checksum(data))
        snapshot = TaskSnapshot(
            task_id=A,
            attempt_id=A1,
            resource_id=TM,
            checkpoint_id=number,
            batch_id=1,
            files=(StateFile("state/0", handle),),
            physical_files=(handle.file,),
        )
        checkpoint = copy(completed(number, snapshot), job_id=job)
        self.put(job, handle.file, data)
        self.put(job, layout.metadata_file(number), encode(checkpoint))
        return checkpoint

    def files(self) -> set[str]:
        return {str(path.relative_to(self.path)) for path in self.path.rglob("*") if path.is_file()}

    async def sweep(
        self,
        *,
        dry_run: bool = False,
        leads: Callable[[], bool] = lambda: True,
        running: JobOrphans | None = None,
        only: JobId | None = None,
    ) -> dict[JobId, JobOrphans]:
        async def of_running(job_id: JobId, before_ms: int) -> JobOrphans | None:
            return running if running is not None and running.job_id == job_id else None

        found = await sweep(
            self.location,
            of_running=of_running,
            before_ms=BEFORE * 1000,
            leads=leads,
            only=only,
            dry_run=dry_run,
        )
        return {one.job_id: one for one in found}


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "checkpoints")


async def test_what_no_metadata_names_goes_and_retained_checkpoints_stay(root: Root) -> None:
    """Retained checkpoints of an ended job stay too (F7)."""
    root.checkpoint(JOB, 7)
    root.put(JOB, "offsets.json")
    root.put(JOB, "ids/000000000001")
    before = root.files()
    orphan = root.put(JOB, name(6, A1)).name
    left = root.put(OTHER, name(1, A1)).name  # the checkpoints of this job were deleted
    dry = await root.sweep(dry_run=True)
    assert dry[JOB] == JobOrphans(job_id=JOB, files=(OrphanFile(orphan, 1, OLD * 1000),), kept=1)
    assert [file.name for file in dry[OTHER].files] == [left]
    assert root.files() == before | {f"{JOB}/{orphan}", f"{OTHER}/{left}"}
    assert await root.sweep() == dry
    assert root.files() == before


async def test_only_the_job_that_was_named_is_looked_at(root: Root) -> None:
    """F7"""
    for job in (JOB, OTHER):
        root.put(job, name(6, A1))
    assert list(await root.sweep(only=OTHER)) == [OTHER]
    assert root.files() == {f"{JOB}/{name(6, A1)}"}


async def test_a_savepoint_is_never_touched_wherever_it_lies(root: Root) -> None:
    """Savepoints stay even if they were moved to where a job's files would be (F7, C24)."""
    checkpoint = root.checkpoint(JOB, 7)
    here = root.location.child(JOB)
    for directory in (root.location, root.location.child("savepoints"), root.location.child(OTHER)):
        await write_savepoint(here, checkpoint, directory)
    written = await write_savepoint(here, checkpoint, root.location)
    Path(written.path).rename(root.path / ("f" * 32))
    for path in root.path.rglob("*"):
        os.utime(path, (OLD, OLD))
    before = root.files()
    found = await root.sweep()
    assert {job: len(one.files) for job, one in found.items()} == {JOB: 0, OTHER: 0, JobId("f" * 32): 0}
    assert root.files() == before


async def test_a_directory_in_which_somebody_works_is_left_alone(root: Root) -> None:
    """Another cluster may run a job there (F7, A11)."""
    root.put(JOB, name(6, A1))
    root.put(JOB, name(7, A1), at=NEW)
    assert (await root.sweep())[JOB].skipped == RECENT
    assert len(root.files()) == 2


async def test_a_directory_with_metadata_that_cannot_be_read_is_left_alone(root: Root) -> None:
    """Unreadable metadata may refer to any file of its directory. The other jobs' orphans are deleted (A12)."""
    root.checkpoint(JOB, 7)
    root.put(JOB, name(6, A1))
    root.put(JOB, layout.metadata_file(8), b"torn")
    root.put(OTHER, name(6, A1))
    found = await root.sweep()
    assert found[JOB].skipped == UNREADABLE
    assert found[OTHER].files
    assert f"{JOB}/{name(6, A1)}" in root.files()


async def test_a_directory_whose_checkpoints_change_meanwhile_is_left_alone(root: Root) -> None:
    """A job that nobody here knows goes on, and now refers to files that were found before (F7)."""
    root.checkpoint(JOB, 7)
    root.put(JOB, name(6, A1))
    listed = (await list_jobs(root.location))[JOB]
    here = root.location.child(JOB)
    found = await orphans.orphans_of(JOB, here, listed, before_ms=BEFORE * 1000)
    assert [file.name for file in found.files] == [name(6, A1)]
    root.checkpoint(JOB, 8)
    assert (await orphans.delete_orphans(found, here, listed, leads=lambda: True)).skipped == CHANGED
    (root.path / JOB / layout.metadata_file(7)).unlink()
    assert (await orphans.orphans_of(JOB, here, listed, before_ms=BEFORE * 1000)).skipped == CHANGED
    assert f"{JOB}/{name(6, A1)}" in root.files()


async def test_a_running_jobs_coordinator_answers_for_it(root: Root) -> None:
    """Only the coordinator of a running job knows what is in flight; no metadata names that yet (F7)."""
    root.put(JOB, name(6, A1))
    root.put(JOB, name(7, A1), at=NEW)
    answer = JobOrphans(job_id=JOB, files=(OrphanFile(name(6, A1), 1, OLD * 1000),), kept=1)
    assert await root.sweep(running=answer) == {JOB: answer}
    assert root.files() == {f"{JOB}/{name(7, A1)}"}


@pytest.mark.parametrize("asked", [0, 1])
async def test_nothing_is_deleted_while_leadership_is_in_doubt(root: Root, asked: int) -> None:
    """Leadership is checked before anything is read, and again before anything is deleted (F7, A11)."""
    root.put(JOB, name(6, A1))
    answers = [True] * asked + [False]
    with pytest.raises(NotLeading):
        await root.sweep(leads=lambda: answers.pop(0))
    assert root.files() == {f"{JOB}/{name(6, A1)}"}


async def test_files_go_in_batches_and_it_is_asked_again_who_leads_before_each(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are deleted in batches, and leadership is checked before each batch (F7)."""
    monkeypatch.setattr(orphans, "BATCH", 2)
    for number in range(5):
        root.put(JOB, name(6, A1, number))
    answers = [True, True, True, False]
    with pytest.raises(NotLeading):
        await root.sweep(leads=lambda: answers.pop(0))
    assert len(root.files()) == 1


async def test_names_that_only_look_like_files_of_checkpoints_are_not_touched(root: Root) -> None:
    """Files of others stay (F7)."""
    for file in ("notes.seg", f"sub/{name(6, A1)}", f"{name(6, A1)}.bak", "chk-1/_metadata.tmp"):
        root.put(JOB, file)
    root.put(JobId("not-a-job"), name(6, A1))
    before = root.files()
    assert (await root.sweep())[JOB].files == ()
    assert root.files() == before
