"""The store on the real local storage, killed between any two of its steps."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from minflinkd.checkpoint import layout
from minflinkd.checkpoint.metadata import CompletedCheckpoint, MetadataTooNew
from minflinkd.checkpoint.store import ID_BLOCK, CheckpointStorageUnfit, CheckpointStore, WrongJob, require_fit
from minflinkd.runtime.ids import JobId
from minflinkd.storage.location import Location
from minflinkd.storage.registry import Storages
from minflinkd_local import LocalStorage
from tests.unit.checkpoint.builders import A1, B1, JOB, A, B, completed, name, snapshot


@pytest.fixture
def location(tmp_path: Path) -> Location:
    return Storages().at(str(tmp_path / "checkpoints")).child(JOB)


def store_at(location: Location, epoch: int = 1) -> CheckpointStore:
    return CheckpointStore(location, job_id=JOB, epoch=epoch)


async def add(location: Location, checkpoint: CompletedCheckpoint) -> None:
    """Write a checkpoint as tasks and coordinator do: the physical files first, then the metadata."""
    for file in checkpoint.physical_files():
        await location.child(file).write_bytes(b"state")
    await store_at(location).write(checkpoint)


async def objects(location: Location) -> set[str]:
    found = {location.relative(entry.path) async for entry in location.list()}
    return {found_name for found_name in found if layout.parse_id_block(found_name) is None}


async def test_a_store_that_was_never_written_is_empty(location: Location) -> None:
    """At the first start of a job its store is empty (C25)."""
    recovered = await store_at(location).recover()
    assert (recovered.completed, recovered.set_aside, recovered.last_id) == ((), (), 0)


async def test_what_was_written_is_recovered_in_order(location: Location) -> None:
    """A new coordinator recovers all checkpoints in order after the loss of the old one (C25)."""
    for number in (10, 9):
        await add(location, completed(number))
    recovered = await store_at(location, epoch=2).recover()
    assert recovered.completed == (completed(9), completed(10))
    assert store_at(location).path_of(10) == location.child("chk-10/_metadata").uri


async def test_torn_metadata_is_set_aside_and_the_others_are_used(location: Location) -> None:
    """Torn metadata is reported and skipped, and nothing that it may refer to is swept (C25, A12)."""
    await add(location, completed(1))
    await add(location, completed(2))
    whole = await location.child("chk-2/_metadata").read_bytes()
    await location.child("chk-2/_metadata").write_bytes(whole[:-10])
    store = store_at(location, epoch=2)
    recovered = await store.recover()
    assert [checkpoint.checkpoint_id for checkpoint in recovered.completed] == [1]
    assert [(aside.checkpoint_id, "torn" in aside.reason) for aside in recovered.set_aside] == [(2, True)]
    assert recovered.last_id == 2
    assert await store.orphans(recovered) == ()
    assert name(2, A1) in await objects(location)


async def test_a_checkpoint_of_another_job_or_a_later_version_stops_the_recovery(location: Location) -> None:
    """Continuing from an older checkpoint would lose data silently (C25)."""
    await add(location, completed(1))
    with pytest.raises(WrongJob):
        await CheckpointStore(location, job_id=JobId("f" * 32), epoch=1).recover()
    whole = await location.child("chk-1/_metadata").read_bytes()
    await location.child("chk-1/_metadata").write_bytes(whole.replace(b"checkpoint 1 ", b"checkpoint 2 ", 1))
    with pytest.raises(MetadataTooNew):
        await store_at(location).recover()


async def test_ids_never_repeat_across_coordinators(location: Location) -> None:
    """Ids only grow, even if one was never used or two coordinators run at a time (C20)."""
    given: list[int] = []
    first, second = store_at(location), store_at(location, epoch=2)
    await first.recover()
    given += [await first.allocate_id() for _ in range(ID_BLOCK + 1)]
    assert given == list(range(1, ID_BLOCK + 2))
    await second.recover()
    for _ in range(ID_BLOCK + 1):
        given += [await first.allocate_id(), await second.allocate_id()]
    assert len(given) == len(set(given))
    third = store_at(location, epoch=3)
    await third.recover()
    assert await third.allocate_id() > max(given)


async def test_ids_go_on_behind_files_of_a_checkpoint_that_never_completed(location: Location) -> None:
    """Physical files are never written twice (F5)."""
    await location.child(name(40, A1)).write_bytes(b"state")
    store = store_at(location, epoch=2)
    assert (await store.recover()).last_id == 40
    assert await store.allocate_id() == 41


async def test_orphans_are_files_of_ended_epochs_and_nothing_else(location: Location) -> None:
    """Referenced files, the present epoch's files, and files that no checkpoint writes are no orphans (F7, A11)."""
    await add(location, completed(1))
    orphan, present = name(2, A1, epoch=1), name(2, B1, epoch=2)
    for file in (orphan, present, "notes.txt"):
        await location.child(file).write_bytes(b"x")
    store = store_at(location, epoch=2)
    assert await store.orphans(await store.recover()) == (orphan,)


async def test_only_physical_files_can_be_deleted(location: Location) -> None:
    """A name from a message cannot lead elsewhere."""
    await add(location, completed(1))
    before = await objects(location)
    for wrong in ("chk-1/_metadata", "../chk-1/_metadata", f"../{name(1, A1)}", "/etc/passwd", ""):
        with pytest.raises(layout.InvalidPhysicalFile):
            await store_at(location).delete_files([name(1, A1), wrong])
    assert await objects(location) == before


@pytest.mark.parametrize("steps", range(6))
async def test_a_crash_between_any_two_steps_of_a_completion_leaves_a_whole_store(
    location: Location, steps: int
) -> None:
    """Checkpoint 2 completes and subsumes 1. The coordinator is killed after each number of steps (C22)."""
    await add(location, completed(1))
    second = completed(2, snapshot(2, A, A1, reuses=(name(1, A1),)), snapshot(2, B, B1))
    store = store_at(location)
    await store.recover()

    async def half_a_write() -> None:
        writer = await location.child("chk-2/_metadata").create()
        await writer.append(b"minflinkd-checkpoint 1")
        await writer.abort()

    completion = [
        lambda: location.child(name(2, A1)).write_bytes(b"state"),
        lambda: location.child(name(2, B1)).write_bytes(b"state"),
        half_a_write,
        lambda: store.write(second),
        lambda: store.discard(1),
        lambda: store.delete_files([name(1, B1)]),
    ]
    for action in completion[:steps]:
        await action()

    successor = store_at(location, epoch=2)
    recovered = await successor.recover()
    written = steps > 3
    assert recovered.completed[-1] == (second if written else completed(1))
    assert recovered.set_aside == ()
    await successor.delete_files(await successor.orphans(recovered))
    kept = {file for checkpoint in recovered.completed for file in checkpoint.physical_files()}
    assert {file for file in await objects(location) if file.endswith(".seg")} == kept


async def test_physical_files_are_found_by_name_and_nothing_else_is_one(location: Location) -> None:
    """The result has the epoch and the checkpoint that wrote them (F7)."""
    await add(location, completed(1))
    await location.child("notes.txt").write_bytes(b"x")
    assert await store_at(location).physical_files() == {name(1, A1): (1, 1), name(1, B1): (1, 1)}


def test_checkpoints_do_not_lie_where_listings_are_late(tmp_path: Path) -> None:
    """The latest one could be overlooked, and its files would count as orphans (F7, A11)."""

    class Late(LocalStorage):
        capabilities = msgspec.structs.replace(LocalStorage.capabilities, consistent_list=False)

    require_fit(Location(LocalStorage(), "file", str(tmp_path)))
    with pytest.raises(CheckpointStorageUnfit, match="list new objects late"):
        require_fit(Location(Late(), "file", str(tmp_path)))
