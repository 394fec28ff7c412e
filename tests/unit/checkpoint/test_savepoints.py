"""Savepoints in a real directory: written, read, verified, deleted."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from minflinkd.checkpoint import layout
from minflinkd.checkpoint.external import NoCheckpointThere, discard_external, read_external, read_to_discard
from minflinkd.checkpoint.metadata import CompletedCheckpoint, CorruptMetadata, encode
from minflinkd.checkpoint.savepoints import verify, write_savepoint
from minflinkd.filemerging.reader import read_segments
from minflinkd.filemerging.writer import PhysicalFileWriter
from minflinkd.jobgraph.model import JobGraph, Restore, RestoreMode
from minflinkd.jobmaster.origin import Origin
from minflinkd.rpc.snapshot import StateFile
from minflinkd.storage.faulty import FaultyStorage
from minflinkd.storage.interface import StorageCorrupt, StorageFull, StorageUnavailable, Writer
from minflinkd.storage.registry import Storages
from minflinkd_local import LocalStorage
from tests.files import files_below
from tests.unit.checkpoint.builders import A1, A, completed, name, snapshot
from tests.unit.checkpoint.stored_checkpoints import StoredCheckpoints

CONTENTS = {"offsets/3": b"v1\n{}\n{}", "state/0/0/4_x.zip": b"z" * 5000, "state/0/1/4_y.changelog": b""}


class NoRoom(LocalStorage):
    """A storage that creates nothing."""

    async def create(self, path: str) -> Writer:
        raise StorageFull(f"no room for {path}")


@pytest.fixture
async def storages() -> AsyncIterator[Storages]:
    storages = Storages({})
    yield storages
    await storages.aclose()


async def checkpoint(storages: Storages, root: Path, number: int = 7) -> CompletedCheckpoint:
    """Write a checkpoint of one task with two physical files to the storage."""
    place = storages.at(str(root))
    async with PhysicalFileWriter(place, lambda n: name(number, A1, n), max_file_size=64) as writer:
        files = tuple([StateFile(path, await writer.append(data)) for path, data in CONTENTS.items()])
        written = await writer.commit()
    task = replace(snapshot(number, A, A1), files=files, physical_files=written)
    found = completed(number, task)
    await place.child(f"chk-{number}/_metadata").write_bytes(encode(found))
    return found


async def test_a_savepoint_stands_for_itself_wherever_it_is_moved(storages: Storages, tmp_path: Path) -> None:
    """A savepoint has all files of its checkpoint, and shares none with it (C24)."""
    found = await checkpoint(storages, tmp_path / "job")
    target = await write_savepoint(storages.at(str(tmp_path / "job")), found, storages.at(str(tmp_path / "saved")))
    Path(target.path).rename(tmp_path / "moved")
    await storages.at(str(tmp_path / "job")).delete_tree()

    savepoint = await read_external(storages, str(tmp_path / "moved"))
    assert savepoint.checkpoint.self_contained
    assert savepoint.checkpoint.tasks[0].transactions == ()
    assert await verify(savepoint.root, savepoint.checkpoint) == sum(map(len, CONTENTS.values()))
    wanted = {file.path: file.handle for file in savepoint.checkpoint.tasks[0].files}
    await read_segments(savepoint.root, wanted, tmp_path / "laid out")
    assert {path: (tmp_path / "laid out" / path).read_bytes() for path in CONTENTS} == CONTENTS


async def test_a_huge_file_under_the_name_of_metadata_is_refused_before_it_fills_the_memory(
    storages: Storages, tmp_path: Path
) -> None:
    """Users name the path of a savepoint, and any file may be there (E45)."""
    with (tmp_path / "_metadata").open("wb") as file:
        file.truncate(4 << 30)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptMetadata, match="has more than 268435456 bytes"):
            await read_external(storages, str(tmp_path))
        assert tracemalloc.get_traced_memory()[1] < 300 << 20
    finally:
        tracemalloc.stop()


async def test_a_savepoint_of_a_damaged_checkpoint_is_not_written(storages: Storages, tmp_path: Path) -> None:
    """A copy must equal what was written. A failed copy leaves nothing (C24)."""
    found = await checkpoint(storages, tmp_path / "job")
    file = tmp_path / "job" / found.tasks[0].files[1].handle.file
    file.write_bytes(file.read_bytes().replace(b"zz", b"xx"))
    with pytest.raises(StorageCorrupt, match="checksum"):
        await write_savepoint(storages.at(str(tmp_path / "job")), found, storages.at(str(tmp_path / "saved")))
    assert list(files_below(tmp_path / "saved")) == []


async def test_a_damaged_savepoint_is_found_out(storages: Storages, tmp_path: Path) -> None:
    """`inspect --verify` finds it (C24)."""
    found = await checkpoint(storages, tmp_path / "job")
    await write_savepoint(storages.at(str(tmp_path / "job")), found, storages.at(str(tmp_path)))
    (directory,) = tmp_path.glob("savepoint-*")
    (file,) = directory.glob("*.seg")
    file.write_bytes(file.read_bytes()[:-10])
    savepoint = await read_external(storages, str(directory))
    with pytest.raises(StorageCorrupt):
        await verify(savepoint.root, savepoint.checkpoint)


async def test_a_savepoint_is_deleted_with_its_directory(storages: Storages, tmp_path: Path) -> None:
    """Disposing of a savepoint deletes its directory (C24)."""
    found = await checkpoint(storages, tmp_path / "job")
    target = await write_savepoint(storages.at(str(tmp_path / "job")), found, storages.at(str(tmp_path / "saved")))
    await discard_external(await read_external(storages, target.uri))
    assert not Path(target.path).exists()
    assert len(list(files_below(tmp_path / "job"))) == 1 + len(found.tasks[0].physical_files)
    with pytest.raises(NoCheckpointThere):
        await read_external(storages, target.uri)


async def test_a_checkpoint_is_deleted_without_what_others_refer_to(storages: Storages, tmp_path: Path) -> None:
    """When a claimed checkpoint is deleted, the retained ones next to it stay whole (C24)."""
    first = await checkpoint(storages, tmp_path / "job", 7)
    second = completed(8, replace(snapshot(8, A, A1), files=first.tasks[0].files[:1], physical_files=()))
    await storages.at(str(tmp_path / "job")).child("chk-8/_metadata").write_bytes(encode(second))
    await discard_external(await read_external(storages, str(tmp_path / "job" / "chk-7")))
    left = {str(path.relative_to(tmp_path / "job")) for path in files_below(tmp_path / "job")}
    assert left == {"chk-8/_metadata", *second.physical_files()}


def claiming(storages: Storages, path: Path) -> Origin:
    return Origin(storages, JobGraph(name="j", vertices=(), restore=Restore(path=str(path), mode=RestoreMode.CLAIM)))


@pytest.mark.parametrize("after", [False, True], ids=["before the request", "after the request"])
@pytest.mark.parametrize("kind", ["savepoint", "checkpoint"])
async def test_a_deletion_that_was_interrupted_anywhere_is_completed_by_a_repetition(
    storages: Storages, tmp_path: Path, kind: str, after: bool
) -> None:
    """Neither a storage that fails nor a daemon that dies leaves files for ever: both are followed by a repetition.

    What is being deleted is no checkpoint any more, and the checkpoint beside it stays whole (C24).
    """
    for number in range(1, 50):
        here = tmp_path / str(number)
        jobs = StoredCheckpoints(here / "job")
        shared = jobs.put(name(3, A1))
        for checkpoint_id in (4, 5):
            found = jobs.checkpoint(checkpoint_id, reuses=[shared])
        stays = jobs.files()
        target = jobs.directory / "chk-4"
        if kind == "savepoint":
            place = await write_savepoint(storages.at(str(jobs.directory)), found, storages.at(str(here / "saved")))
            target = Path(place.path)
        else:
            stays -= {name(4, A1), "chk-4/_metadata"}
        storage = FaultyStorage(LocalStorage(), number, after=after)
        faulty = Storages({})
        faulty.add(storage)
        try:
            await claiming(faulty, target).discard()
        except StorageUnavailable:
            assert jobs.files() >= stays
            await claiming(faulty, target).discard()
        await faulty.aclose()
        assert jobs.files() == stays
        assert not target.exists()
        if storage.requests < number:
            assert number > 4, "the requests are not reached any more"
            return
    raise AssertionError("there is no end of requests")


async def test_what_is_half_deleted_cannot_be_started_from(storages: Storages, tmp_path: Path) -> None:
    """Some of its files may be missing. It can only be deleted (C24)."""
    jobs = StoredCheckpoints(tmp_path / "job")
    jobs.checkpoint(4)
    directory = jobs.directory / "chk-4"
    (directory / "_metadata").rename(directory / layout.DISCARDED)
    with pytest.raises(NoCheckpointThere):
        await read_external(storages, str(directory))
    await discard_external(await read_to_discard(storages, str(directory / "_metadata")))
    assert jobs.files() == set()
    with pytest.raises(NoCheckpointThere):
        await read_to_discard(storages, str(directory))


async def test_a_savepoint_can_be_deleted_on_a_full_disk(storages: Storages, tmp_path: Path) -> None:
    """Nothing is written for it: people delete savepoints to make room (C24)."""
    found = await checkpoint(storages, tmp_path / "job")
    target = await write_savepoint(storages.at(str(tmp_path / "job")), found, storages.at(str(tmp_path / "saved")))
    full = Storages({})
    full.add(NoRoom())
    await discard_external(await read_to_discard(full, target.uri))
    await full.aclose()
    assert not Path(target.path).exists()
