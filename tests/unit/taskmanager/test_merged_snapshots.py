"""Snapshots of tasks that share physical files, and the rewriting of files of which little is still needed."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from minflinkd.filemerging.compaction import DEFAULT_MAX_AMPLIFICATION, time_to_rewrite
from minflinkd.filemerging.segments import HEADER
from minflinkd.filemerging.writer import PhysicalFileWriter
from minflinkd.rpc import messages as m
from minflinkd.rpc.snapshot import MergingFigures, TaskSnapshot
from minflinkd.taskmanager.attempts.attempt import Attempt
from minflinkd.taskmanager.attempts.deployment import Deployer
from minflinkd.taskmanager.attempts.local_snapshots import LocalSnapshots
from minflinkd.taskmanager.attempts.uploading import rewrite
from minflinkd.taskmanager.metrics import merging_metrics
from tests.unit.taskmanager.snapshot_world import (
    ATTEMPT,
    JOB,
    OTHER_ATTEMPT,
    OTHER_TASK,
    TASK,
    World,
    running,
    space_of,
    state,
)
from tests.waiting import until


async def test_tasks_on_one_taskmanager_share_the_file_of_a_checkpoint(tmp_path: Path) -> None:
    """A TaskManager writes one data file for each checkpoint (F1, F3)."""
    async with running(tmp_path) as world:
        world.session.files = {state(1): b"one", "offsets/0": b"first"}
        world.session.others = {state(2): b"two", "offsets/0": b"other"}
        first, second = await world.confirmed_both(1)
        assert first.physical_files == second.physical_files == tuple(p.name for p in world.physical_files())
        assert len(first.physical_files) == 1
        size = world.physical_files()[0].stat().st_size
        assert first.file_sizes == second.file_sizes == {first.physical_files[0]: size}
        assert await world.restored(first) == world.session.files
        assert await world.restored(second) == world.session.others
        assert space_of([first, second]).referenced == first.bytes_uploaded + second.bytes_uploaded
        again = await world.confirmed_both(2)
        assert [(s.physical_files, s.bytes_uploaded) for s in again] == [((), 0)] * 2


async def test_a_task_does_not_wait_for_ever_for_one_that_aligns(tmp_path: Path) -> None:
    """The file is finished when it reaches its age, and is not touched by what happens to the other task (F1)."""
    async with running(tmp_path, max_file_age=0.0) as world:
        world.session.files = {state(1): b"one"}
        world.session.busy_attempts = {OTHER_ATTEMPT}
        world.trigger_both(1)
        await until(lambda: world.acknowledged(1) is not None)
        aborted = m.NotifyCheckpointAborted(job_id=JOB, attempt_id=OTHER_ATTEMPT, checkpoint_id=1)
        await world.snapshots.abort(world.other, aborted)
        assert (world.acknowledged(1, OTHER_ATTEMPT), world.stored()) == (None, {1})


async def test_one_task_that_fails_is_told_and_the_other_ends_with_it(tmp_path: Path) -> None:
    """The checkpoint fails once, with its own cause.

    Nothing is left of it, and no trigger begins it anew (C21, C23).
    """
    async with running(tmp_path, fail_at=1) as world:
        world.session.files, world.session.others = {state(1): b"one"}, {}
        world.trigger_both(1)
        await until(lambda: not world.snapshots._running)
        (declined,) = world.delivered
        assert isinstance(declined, m.DeclineCheckpoint)
        assert (declined.attempt_id, declined.error.code) == (ATTEMPT, "storage-transient")
        assert (world.stored(), world.local_copies(OTHER_TASK)) == (set(), set())
        world.trigger_both(1)
        assert world.snapshots._running == {}
        await world.confirmed_both(2)


async def test_an_abort_of_all_leaves_nothing(tmp_path: Path) -> None:
    """One task has written its files and waits; the other has not reached its cut yet (C13)."""
    async with running(tmp_path) as world:
        world.session.files = {state(1): bytes(700_000), state(2): b"1" * 700_000}
        world.session.busy_attempts = {OTHER_ATTEMPT}
        world.trigger_both(1)
        await until(lambda: len(world.physical_files()) == 1)  # it has max-file-size and is finished
        for attempt in (world.attempt, world.other):
            number = m.NotifyCheckpointAborted(job_id=JOB, attempt_id=attempt.deployment.attempt_id, checkpoint_id=1)
            await world.snapshots.abort(attempt, number)
        assert (world.stored(), world.copies(), world.delivered) == (set(), set(), [])


def figures(snapshot: TaskSnapshot) -> MergingFigures:
    assert snapshot.merging is not None
    return snapshot.merging


def churn(world: World, chance: random.Random, number: int) -> None:
    """Replace a tenth of each task's state, or begin with 30 files of 4 kB, and replace the logs."""
    for task, files in enumerate((world.session.files, world.session.others)):
        assert files is not None
        kept = [path for path in files if path.startswith("state")]
        gone = chance.sample(kept, len(kept) // 10) if kept else []
        for path in gone:
            del files[path]
        for each in range(len(gone) or 30):
            files[state(number * 1000 + task * 100 + each)] = chance.randbytes(4000)
        files["offsets/0"] = chance.randbytes(200)


async def test_the_storage_holds_little_that_is_not_needed(tmp_path: Path) -> None:
    """Over 40 checkpoints of two tasks, by the bytes on disk. The restored files are equal byte for byte (F6)."""
    chance = random.Random(1)
    async with running(tmp_path) as world:
        world.session.others = {}
        new = rewritten = 0
        for number in range(1, 41):
            churn(world, chance, number)
            taken = await world.confirmed_both(number)
            space = world.subsume(*taken)
            assert space.amplification <= DEFAULT_MAX_AMPLIFICATION + 0.001
            assert len({name for snapshot in taken for name in snapshot.physical_files}) == 1
            if number > 1:
                again = sum(figures(snapshot).bytes_rewritten for snapshot in taken)
                rewritten += again
                new += sum(snapshot.bytes_uploaded for snapshot in taken) - again
                files = {name for snapshot in taken for name in snapshot.rewritten}
                assert files == (set(taken[0].physical_files) if again else set())
            if number % 10 == 0:
                for snapshot, files in zip(taken, (world.session.files, world.session.others), strict=True):
                    assert await world.restored(snapshot) == files
        assert 0 < rewritten <= 1.5 * new
        metrics = merging_metrics([], world.snapshots.bytes_new, world.snapshots.bytes_rewritten)
        assert metrics["merging.bytes_rewritten"] == rewritten
        for attempt in (world.attempt, world.other):
            attempt.to(m.TaskState.INITIALIZING)
            attempt.to(m.TaskState.RUNNING)
        metrics = merging_metrics([world.attempt, world.other], 0, 0)
        assert (metrics["merging.bytes_stored"], metrics["merging.bytes_referenced"]) == (
            space.stored,
            space.referenced,
        )


async def worn_out(world: World) -> TaskSnapshot:
    """Take and confirm a checkpoint. The next checkpoint needs one third of its file."""
    world.session.files = {state(n): b"%d" % n * 1000 for n in (1, 2, 3)}
    taken = await world.confirmed(1)
    for number in (1, 2):
        del world.session.files[state(number)]
    return taken


async def test_what_failed_to_be_rewritten_is_rewritten_by_the_next_checkpoint(tmp_path: Path) -> None:
    """Nothing is left of the first try, whichever step of it fails (F6)."""
    for step in (1, 2, 3, 4):
        async with running(tmp_path / str(step)) as world:
            first = await worn_out(world)
            world.storage.fail_at = world.storage.requests + step
            world.trigger(2)
            await until(lambda: not world.snapshots._running)
            if step == 4:  # there are only three steps
                assert world.acknowledged(2) is not None
                continue
            assert (world.acknowledged(2), world.stored()) == (None, {1})
            third = await world.confirmed(3)
            assert (third.bytes_uploaded, figures(third).bytes_rewritten) == (1000, 1000)
            assert {file.handle.file for file in third.files}.isdisjoint(first.physical_files)
            world.subsume(third)
            assert await world.restored(third) == world.session.files


async def test_a_rewritten_file_that_was_never_confirmed_is_rewritten_again(tmp_path: Path) -> None:
    """Handles into the new file are valid only once its checkpoint is confirmed (F6, C12)."""
    async with running(tmp_path) as world:
        first = await worn_out(world)
        second = await world.take(2)
        await world.abort(2)
        third = await world.confirmed(3)
        assert figures(second).bytes_rewritten == figures(third).bytes_rewritten == 1000
        assert (third.rewritten, figures(third).compactions) == (third.physical_files, 1)
        assert {f.handle.file for f in third.files} == set(third.physical_files)
        assert set(third.physical_files).isdisjoint({*first.physical_files, *second.physical_files})


async def test_an_attempt_that_is_cancelled_while_it_rewrites_leaves_the_earlier_checkpoint_whole(
    tmp_path: Path,
) -> None:
    """The worn file is not touched (F5, F6)."""
    async with running(tmp_path) as world:
        first = await worn_out(world)
        world.storage.hang, world.storage.fail_at = True, world.storage.requests + 2
        reached = world.storage.requests + 2
        world.trigger(2)
        await until(lambda: world.storage.requests == reached)
        await asyncio.wait(world.snapshots.cancel_all(world.attempt))
        assert world.stored() == {1}
        assert len(await world.restored(first)) == 3


async def test_a_state_file_that_is_damaged_on_the_own_disk_stays_where_it_is_whole(tmp_path: Path) -> None:
    """Either a rewritten segment has the content of the first, or nothing is rewritten (F6)."""
    async with running(tmp_path) as world:
        first = await worn_out(world)
        good = dict(world.session.files)
        world.session.files = {path: b"?" * len(content) for path, content in good.items()}
        second = await world.confirmed(2)
        assert {file.handle.file for file in second.files} == set(first.physical_files)
        assert await world.restored(second) == good


async def test_what_there_is_no_time_for_waits_for_the_next_checkpoint(tmp_path: Path) -> None:
    """Compaction on a slow storage fails no checkpoint. Files that were rewritten in time are finished (F6)."""
    async with running(tmp_path, max_file_size=3000) as world:
        world.session.files = {state(n): b"%d" % n * 1000 for n in range(1, 7)}
        taken = await world.confirmed(1)
        directory, worn = world.local.directory(JOB, TASK, 1), set(taken.physical_files)
        root = world.storages.at(world.attempt.deployment.job.checkpoint_root)
        async with PhysicalFileWriter(root, lambda number: f"{number}.seg") as writer:
            late = await rewrite(writer, directory, taken.files, worn, until=0.0)
            assert (late.files, late.size, late.worn, late.into) == (taken.files, 0, frozenset(), frozenset())
            done = await rewrite(writer, directory, taken.files, worn)
            assert (done.size, done.worn, done.into) == (6000, worn, {"0.seg"})
            await writer.commit()
        assert await world.restored(replace(taken, files=done.files)) == world.session.files
    assert (time_to_rewrite(0.1, 600), time_to_rewrite(20, 600), time_to_rewrite(100, 600)) == (5.0, 40, 150)


async def test_a_job_that_stops_does_not_wait_for_a_compaction(tmp_path: Path) -> None:
    """Somebody waits for the job to stop (F6)."""
    async with running(tmp_path) as world:
        await worn_out(world)
        request = m.TriggerCheckpoint(job_id=JOB, attempt_id=ATTEMPT, checkpoint_id=2, epoch=1, stop=True)
        world.snapshots.trigger(world.attempt, request)
        await until(lambda: not world.snapshots._running)
        taken = world.acknowledged(2)
        assert taken is not None
        assert taken.bytes_uploaded == 0


async def test_with_merging_off_each_state_file_is_a_file_of_its_own(tmp_path: Path) -> None:
    """Files of two tasks and empty files are separate too.

    Unneeded files are deleted at once, none is rewritten (F9).
    """
    chance = random.Random(1)
    async with running(tmp_path, merging=False) as world:
        world.session.others = {}
        for number in range(1, 11):
            churn(world, chance, number)
            world.session.files[state(number * 1000, "log")] = b""
            taken = await world.confirmed_both(number)
            mine, others = (set(snapshot.physical_files) for snapshot in taken)
            assert mine.isdisjoint(others)
            handles = {file.handle for snapshot in taken for file in snapshot.files}
            assert len(handles) == len({handle.file for handle in handles})
            assert {handle.offset for handle in handles} == {len(HEADER)}
            space = world.subsume(*taken)
            assert space.stored == space.referenced + len(handles) * len(HEADER)
            assert [figures(snapshot).compactions for snapshot in taken] == [0, 0]
            for snapshot, files in zip(taken, (world.session.files, world.session.others), strict=True):
                assert await world.restored(snapshot) == files


async def test_with_merging_off_no_task_waits_for_another(tmp_path: Path) -> None:
    """If one fails, the other's part does not end (F9)."""
    async with running(tmp_path, merging=False) as world:
        world.session.files = {state(1): b"one", state(2): b"two"}
        world.session.busy_attempts = {OTHER_ATTEMPT}
        world.trigger_both(1)
        await until(lambda: world.acknowledged(1) is not None)
        aborted = m.NotifyCheckpointAborted(job_id=JOB, attempt_id=OTHER_ATTEMPT, checkpoint_id=1)
        await world.snapshots.abort(world.other, aborted)
        assert (world.acknowledged(1, OTHER_ATTEMPT), len(world.physical_files())) == (None, 2)


async def test_with_merging_off_an_upload_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """The files that were finished already are deleted too (C13)."""
    async with running(tmp_path, merging=False, fail_at=8) as world:
        world.session.files = {state(n): b"%d" % n * 1000 for n in range(1, 9)}
        world.trigger(1)
        await until(lambda: not world.snapshots._running)
        assert (world.acknowledged(1), world.stored()) == (None, set())
        assert len((await world.confirmed(2)).physical_files) == 8


OFF = None  # as the maximum size: no merging
SIZES = [OFF, 1, 3000, 1 << 20]


@pytest.mark.parametrize("written_with", SIZES)
@pytest.mark.parametrize("restored_with", SIZES)
@pytest.mark.parametrize("sizes_recorded", [True, False])
async def test_a_job_goes_on_from_a_checkpoint_that_was_merged_otherwise(
    tmp_path: Path, written_with: int | None, restored_with: int | None, sizes_recorded: bool
) -> None:
    """Merging was off, used other sizes, or was done by a version that did not record file sizes (F9)."""
    async with running(tmp_path, max_file_size=written_with or 1 << 20, merging=written_with is not OFF) as world:
        world.session.files = {state(n): b"%d" % n * 1000 for n in range(1, 9)} | {"offsets/0": b"", "commits/0": b"c"}
        taken = await world.confirmed(1)
        assert len(taken.physical_files) == {OFF: 10, 1: 10, 3000: 4, 1 << 20: 1}[written_with]
        files = world.session.files
    if not sizes_recorded:
        taken = replace(taken, file_sizes={})
    async with running(tmp_path, max_file_size=restored_with or 1 << 20, merging=restored_with is not OFF) as world:
        attempt = Attempt.of(world.attempt.deployment, tmp_path / "following", 1)
        deployer = Deployer(world.storages, cast(Any, None), LocalSnapshots(tmp_path / "other"), cast(Any, None))
        await deployer._restore(attempt, m.TaskRestore(checkpoint_id=1, snapshot=taken))
        laid_out = attempt.directory / "checkpoint"
        assert {str(p.relative_to(laid_out)): p.read_bytes() for p in laid_out.rglob("*") if p.is_file()} == files
        world.attempt = attempt
        world.session.files = dict(files)
        assert (await world.take(2)).bytes_uploaded == 0
        for number in (1, 3, 5, 7):
            del world.session.files[state(number)]
        for number in (3, 4, 5, 6):  # with such small files a checkpoint may rewrite only one
            latest = await world.confirmed(number)
        space = world.subsume(latest)
        if restored_with is not OFF:
            assert space.amplification <= DEFAULT_MAX_AMPLIFICATION + 0.01
        assert await world.restored(latest) == world.session.files
        world.session.files = {state(n): b"%d" % n * 1000 for n in range(10, 18)}
        latest = await world.confirmed(7)
        if restored_with is OFF:
            assert len({file.handle.file for file in latest.files}) == 8
        world.subsume(latest)
        assert world.stored() == {7}, "nothing of the other kind is left when all state has changed"
        assert await world.restored(latest) == world.session.files
