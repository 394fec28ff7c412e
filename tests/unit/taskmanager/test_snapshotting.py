"""Snapshots of running tasks on a real disk: what is uploaded, and what is left of snapshots that are given up."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from minflinkd.checkpoint.causes import CheckpointNotPending
from minflinkd.checkpoint.layout import parse_physical_file
from minflinkd.rpc import messages as m
from minflinkd.storage.interface import InvalidPath
from minflinkd.taskmanager.attempts.attempt import Attempt
from minflinkd.taskmanager.attempts.deployment import Deployer
from minflinkd.taskmanager.attempts.local_snapshots import LocalSnapshots
from minflinkd.taskmanager.child import protocol as sp
from tests.unit.taskmanager.snapshot_world import JOB, TASK, running, state
from tests.waiting import until


async def test_what_a_confirmed_checkpoint_holds_is_not_uploaded_again(tmp_path: Path) -> None:
    """If names are unique, a file is known by its name.

    The earlier checkpoint must be confirmed, not only acknowledged (C12).
    """
    async with running(tmp_path) as world:
        world.session.files = {state(1): b"one", "offsets/0": b"first", "commits/0": b"c"}
        first = await world.take(1)
        assert (first.bytes_full, first.bytes_uploaded) == (9, 9)
        world.session.files |= {state(2): b"two"}
        second = await world.take(2)
        assert second.bytes_uploaded == 12, "the first may never complete"
        await world.complete(1)
        world.session.files |= {state(3): b"three"}
        third = await world.confirmed(3)
        assert (third.bytes_full, third.bytes_uploaded) == (17, 8), "the second may yet fail"
        assert await world.restored(third) == world.session.files


async def test_a_full_checkpoint_needs_no_file_of_an_earlier_one(tmp_path: Path) -> None:
    """Everything is uploaded anew. The coordinator is told to keep these copies, and later ones use them (C12)."""
    async with running(tmp_path) as world:
        world.session.files = {state(1): b"one", "offsets/0": b"first"}
        await world.confirmed(1)
        full = await world.take(2, full=True)
        assert full.bytes_uploaded == full.bytes_full == 8
        assert {file.handle.file for file in full.files} == set(full.physical_files) == set(full.rewritten)
        await world.complete(2)
        world.subsume(full)
        assert await world.restored(full) == world.session.files
        world.session.files |= {state(3): b"three"}
        third = await world.confirmed(3)
        assert third.bytes_uploaded == 5


async def test_a_file_that_changed_under_its_name_is_uploaded(tmp_path: Path) -> None:
    """The file has the same length. A restored attempt writes its logs and descriptions anew (C12)."""
    async with running(tmp_path) as world:
        world.session.files = {"metadata": b"id 1", "offsets/0": b"aaaa", "state/0/_metadata/metadata": b"2 partitions"}
        await world.confirmed(1)
        world.session.files = {"metadata": b"id 2", "offsets/0": b"bbbb", "state/0/_metadata/metadata": b"4 partitions"}
        second = await world.confirmed(2)
        assert second.bytes_uploaded == second.bytes_full == 20
        assert await world.restored(second) == world.session.files


async def test_a_late_trigger_of_a_published_checkpoint_begins_nothing(tmp_path: Path) -> None:
    """A late trigger would write files of the same names again (F5)."""
    async with running(tmp_path) as world:
        world.session.files = {state(1): b"one"}
        await world.confirmed(1)
        world.trigger(1)
        assert world.snapshots._running == {}
        await world.confirmed(2)
        world.trigger(1)
        assert world.snapshots._running == {}


async def test_two_files_of_the_same_content_are_uploaded_once(tmp_path: Path) -> None:
    """The files may be in one snapshot, or one in a confirmed checkpoint under another name; small or large (C12)."""
    large = bytes(700_000)
    async with running(tmp_path) as world:
        world.session.files = {"commits/0": b"same", "commits/1": b"same", "sources/0/1": large, "sources/0/2": large}
        first = await world.confirmed(1)
        assert first.bytes_uploaded == 4 + len(large)
        assert await world.restored(first) == world.session.files
        world.session.files = {"commits/2": b"same", "sources/0/3": large, "sources/0/4": b"1" * len(large)}
        second = await world.confirmed(2)
        assert second.bytes_uploaded == len(large)
        assert await world.restored(second) == world.session.files


async def test_a_snapshot_without_anything_new_writes_nothing(tmp_path: Path) -> None:
    """An idle task sends no request to the storage (C12)."""
    async with running(tmp_path) as world:
        world.session.files = {state(1): b"one", "offsets/0": b"first"}
        await world.confirmed(1)
        requests = world.storage.requests
        second = await world.confirmed(2)
        assert (second.bytes_uploaded, second.physical_files, world.storage.requests) == (0, (), requests)
        assert await world.restored(second) == world.session.files


async def test_many_small_files_are_read_and_written_together(tmp_path: Path) -> None:
    """Uploading a thousand changelogs creates one object in the storage (C12)."""
    async with running(tmp_path) as world:
        world.session.files = {state(n): b"%d" % n * 500 for n in range(1, 1001)}
        taken = await world.confirmed(1)
        assert len(taken.physical_files) == 2, "max-file-size, 1 MiB here"
        assert await world.restored(taken) == world.session.files


async def test_several_checkpoints_are_uploaded_beside_each_other(tmp_path: Path) -> None:
    """Each has files of its own (F2). One that is stuck does not hold up the others (C12)."""
    async with running(tmp_path, fail_at=1, hang=True) as world:
        world.session.files = {state(1): b"one"}
        world.trigger(1)
        await until(lambda: world.storage.requests == 1)
        second = await world.take(2)
        assert world.acknowledged(1) is None
        assert {parse_physical_file(name)[1] for name in second.physical_files} == {2}
        await world.abort(1)
        assert (world.stored(), world.copies()) == ({2}, {"2"})


@pytest.mark.parametrize("request_number", [1, 2, 3])
async def test_an_abort_stops_the_upload_and_leaves_nothing(tmp_path: Path, request_number: int) -> None:
    """An abort works in every step of the upload.

    No write comes afterwards, and no late trigger begins it anew (C13).
    """
    async with running(tmp_path, fail_at=request_number, hang=True) as world:
        world.session.files = {state(n, "zip"): bytes([n]) * 700_000 for n in range(1, 4)}
        world.trigger(1)
        await until(lambda: world.storage.requests == request_number)
        await world.abort(1)
        recorded = world.storages.statistics()
        world.trigger(1)
        await asyncio.sleep(0)
        assert (world.snapshots._running, world.delivered) == ({}, [])
        assert (world.stored(), world.copies()) == (set(), set())
        assert [path for path in (tmp_path / "storage").rglob("*") if path.is_file()] == []
        assert world.storages.statistics() == recorded, "nothing is written any more"
        assert isinstance(world.session.asked[-1], sp.AbortSnapshot)


async def test_an_abort_reaches_a_snapshot_that_waits_for_its_micro_batch(tmp_path: Path) -> None:
    """The child is told, and whatever it may have linked is deleted (C13)."""
    async with running(tmp_path) as world:
        world.session.busy = True
        world.session.files = {state(1): b"one"}
        world.trigger(1)
        await until(lambda: bool(world.session.asked))
        await world.abort(1)
        assert [type(request) for request in world.session.asked] == [sp.TakeSnapshot, sp.AbortSnapshot]
        assert (world.copies(), world.delivered) == (set(), [])


async def test_an_abort_before_the_acknowledgement_was_taken_deletes_the_files(tmp_path: Path) -> None:
    """The files belong to the TaskManager until then (C13, F4)."""
    async with running(tmp_path) as world:
        world.session.files = {state(1): b"one"}
        world.silent = True
        world.trigger(1)
        await until(lambda: world.acknowledged(1) is not None)
        assert world.stored() == {1}
        await world.abort(1)
        assert (world.stored(), world.copies(), world.attempt.handles) == (set(), set(), {})


async def test_an_abort_behind_the_acknowledgement_leaves_the_files_to_the_coordinator(tmp_path: Path) -> None:
    """Only the local copy is deleted (C13, F4)."""
    async with running(tmp_path) as world:
        world.session.files = {state(1): b"one"}
        await world.take(1)
        await world.abort(1)
        await world.abort(1)
        assert (world.stored(), world.copies(), world.attempt.handles) == ({1}, set(), {})


async def test_an_acknowledgement_that_comes_too_late_takes_its_files_with_it(tmp_path: Path) -> None:
    """The checkpoint has expired meanwhile (C21)."""
    async with running(tmp_path) as world:
        world.session.files = {state(1): b"one"}
        world.refusal = CheckpointNotPending("checkpoint 1 is not pending")
        await world.take(1)
        assert (world.stored(), world.copies(), world.attempt.handles) == (set(), set(), {})


async def test_a_task_whose_acknowledgement_comes_too_late_goes_on(tmp_path: Path) -> None:
    """It may have stopped at the cut, and its JobMaster may die before it tells of the abort (C13, A14a)."""
    async with running(tmp_path) as world:
        world.session.files = {state(1): b"one"}
        world.refusal = CheckpointNotPending("checkpoint 1 is not pending")
        world.trigger(1, stop=True)
        await until(lambda: world.acknowledged(1) is not None)
        await until(lambda: not world.snapshots.taking(world.attempt))
        assert [type(request) for request in world.session.asked][-1] is sp.AbortSnapshot
        assert world.attempt.stops_at == 0


async def test_an_attempt_that_ends_leaves_to_the_coordinator_what_it_may_have_acknowledged(tmp_path: Path) -> None:
    """The TaskManager cannot know whether the acknowledgement has arrived (F4)."""
    async with running(tmp_path) as world:
        world.session.files = {state(1): b"one"}
        world.silent = True
        world.trigger(1)
        await until(lambda: world.acknowledged(1) is not None)
        await asyncio.wait(world.snapshots.cancel_all(world.attempt))
        assert (world.stored(), world.copies()) == ({1}, {"1"})


async def test_files_of_a_complete_checkpoint_stay_where_its_acknowledgement_was_never_answered(tmp_path: Path) -> None:
    """The attempt ends while it still waits for the answer (F4)."""
    async with running(tmp_path) as world:
        world.session.files = {state(1): b"one"}
        world.silent = True
        world.trigger(1)
        await until(lambda: world.acknowledged(1) is not None)
        await world.complete(1)
        await asyncio.wait(world.snapshots.cancel_all(world.attempt))
        assert (world.stored(), world.copies()) == ({1}, {"1"})


async def test_an_upload_that_fails_is_declined_and_leaves_nothing(tmp_path: Path) -> None:
    """The coordinator hears the cause (C21, C23)."""
    async with running(tmp_path, fail_at=1) as world:
        world.session.files = {state(1): b"one"}
        world.trigger(1)
        await until(lambda: bool(world.delivered))
        (declined,) = world.delivered
        assert isinstance(declined, m.DeclineCheckpoint)
        assert declined.error.code == "storage-transient"
        assert (world.stored(), world.copies()) == (set(), set())


@pytest.mark.parametrize(("retained", "left"), [(None, {"3"}), (2, {"2", "3"})])
async def test_copies_of_the_retained_checkpoints_stay(tmp_path: Path, retained: int | None, left: set[str]) -> None:
    """C14."""
    async with running(tmp_path, retained=retained) as world:
        world.session.files = {state(1): b"one"}
        for number in (1, 2, 3):
            await world.confirmed(number)
        assert world.copies() == left


@pytest.mark.parametrize("copy", ["whole", "damaged", "missing a file", "evicted", "another TaskManager's"])
async def test_a_task_is_restored_from_its_own_copy_else_from_the_storage(tmp_path: Path, copy: str) -> None:
    """The copy is preferred. Both restore the same files (C14)."""
    async with running(tmp_path) as world:
        world.session.files = {state(1): b"one", "offsets/0": b"first"}
        taken = await world.confirmed(1)
        local, file = world.local, world.local.directory(JOB, TASK, 1) / state(1)
        match copy:
            case "damaged":
                file.write_bytes(b"two")
            case "missing a file":
                file.unlink()
            case "evicted":
                local.max_size = 4
                local.completed(JOB, TASK, 1)
            case "another TaskManager's":
                local = LocalSnapshots(tmp_path / "other")
        attempt = Attempt.of(world.attempt.deployment, tmp_path / "following", 1)
        requests = world.storage.requests
        deployer = Deployer(world.storages, cast(Any, None), local, cast(Any, None))
        await deployer._restore(attempt, m.TaskRestore(checkpoint_id=1, snapshot=taken))
        checkpoint = attempt.directory / "checkpoint"
        assert {str(p.relative_to(checkpoint)): p.read_bytes() for p in checkpoint.rglob("*") if p.is_file()} == (
            world.session.files
        )
        assert (world.storage.requests == requests) == (copy == "whole")
        world.attempt = attempt
        again = await world.take(2)
        assert again.bytes_uploaded == 0, "C12: what it was restored from is known to be in the storage"


async def test_a_checkpoint_whose_files_later_ones_have_gets_a_copy_of_its_own(tmp_path: Path) -> None:
    """A job may go back to an earlier checkpoint. The later copy goes, and its files must not go with it (C14)."""
    async with running(tmp_path, retained=2) as world:
        world.session.files = {state(1): b"one", "offsets/0": b"first"}
        first = await world.confirmed(1)
        world.session.files |= {state(2): b"two"}
        await world.confirmed(2)
        world.local.forget(JOB, TASK, 1)
        requests = world.storage.requests
        deployer = Deployer(world.storages, cast(Any, None), world.local, cast(Any, None))
        for number in (1, 2):
            attempt = Attempt.of(world.attempt.deployment, tmp_path / f"following{number}", 1)
            await deployer._restore(attempt, m.TaskRestore(checkpoint_id=1, snapshot=first))
            assert (attempt.directory / "checkpoint" / state(1)).read_bytes() == b"one"
            world.local.forget(JOB, TASK, 2)
        assert world.storage.requests == requests


async def test_a_snapshot_lays_out_nothing_elsewhere(tmp_path: Path) -> None:
    """Its metadata may have been changed by somebody (C14)."""
    async with running(tmp_path) as world:
        world.session.files = {state(1): b"one", "offsets/0": b"first"}
        taken = await world.confirmed(1)
        wrong = replace(taken, files=(*taken.files, replace(taken.files[0], path="../elsewhere")))
        deployer = Deployer(world.storages, cast(Any, None), world.local, cast(Any, None))
        with pytest.raises(InvalidPath):
            await deployer.lay_out(JOB, wrong, "file:///", tmp_path / "a" / "b", own=True)
        assert not (tmp_path / "a").exists()


async def test_a_fetched_checkpoint_of_the_same_number_is_in_nobodys_way(tmp_path: Path) -> None:
    """A job that was started from another job's checkpoint 2 reaches a checkpoint 2 of its own (C14, C25)."""
    async with running(tmp_path) as world:
        world.session.files = {state(1): b"one", "offsets/0": b"first"}
        foreign = await world.take(2)
        shutil.rmtree(world.local.root)
        world.attempt = Attempt.of(world.attempt.deployment, tmp_path / "following", 1)
        world.local.adopt(JOB, foreign, tmp_path / "nothing")
        assert world.copies() == set(), "what cannot be kept is not kept"
        await Deployer(world.storages, cast(Any, None), world.local, cast(Any, None))._restore(
            world.attempt, m.TaskRestore(checkpoint_id=1, snapshot=foreign)
        )
        assert world.copies() == {"2-fetched"}
        world.delivered.clear()
        world.session.files |= {state(2): b"two"}
        own = await world.confirmed(2)
        assert world.copies() == {"2"}
        assert len(world.local.lay_out(JOB, own, tmp_path / "restored")) == len(own.files)


async def test_what_was_fetched_once_is_not_fetched_again(tmp_path: Path) -> None:
    """A task may fail again and again after a restore, on a TaskManager that had no copy (C14)."""
    async with running(tmp_path) as world:
        world.session.files = {state(1): b"one", "offsets/0": b"first", "commits/0": b""}
        taken = await world.confirmed(1)
        deployer = Deployer(world.storages, cast(Any, None), LocalSnapshots(tmp_path / "other"), cast(Any, None))
        requests = []
        for number in (1, 2):
            attempt = Attempt.of(world.attempt.deployment, tmp_path / f"following{number}", 1)
            await deployer._restore(attempt, m.TaskRestore(checkpoint_id=1, snapshot=taken))
            assert (attempt.directory / "checkpoint" / state(1)).read_bytes() == b"one"
            shutil.rmtree(attempt.directory)
            requests.append(world.storage.requests)
        assert requests[0] == requests[1]
