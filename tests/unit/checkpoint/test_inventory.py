"""All checkpoints in a job's directory are verified, on real files (C29)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from minflinkd.checkpoint import layout
from minflinkd.checkpoint.external import newest_below
from minflinkd.checkpoint.inventory import VerifiedCheckpoint, verify_all
from minflinkd.storage.faulty import FaultyStorage
from minflinkd.storage.interface import StorageUnavailable
from minflinkd.storage.location import Location
from minflinkd_local import LocalStorage
from tests.unit.checkpoint.builders import A1, NOON, name
from tests.unit.checkpoint.stored_checkpoints import StoredCheckpoints

SHARED = name(9, A1)


@pytest.fixture
def stored(tmp_path: Path) -> StoredCheckpoints:
    """Return the checkpoints 1 and 2 of a job, which share a file."""
    stored = StoredCheckpoints(tmp_path / "job")
    stored.put(SHARED)
    stored.put(layout.id_block(1))
    for number in (1, 2):
        stored.checkpoint(number, reuses=[SHARED])
    return stored


def place(path: Path) -> Location:
    return Location(LocalStorage(), "file", str(path))


async def verdicts(stored: StoredCheckpoints, pointers: Path | None = None) -> dict[int, dict[str, str]]:
    """Return the damaged files of each checkpoint, and why."""
    found = await verify_all(place(stored.directory), None if pointers is None else place(pointers))
    return {one.checkpoint_id: {damage.file: damage.why for damage in one.damage} for one in found}


async def test_whole_checkpoints_are_listed_from_the_newest_to_the_oldest(stored: StoredCheckpoints) -> None:
    """With what they hold (C29)."""
    assert await verify_all(place(stored.directory), None) == tuple(
        VerifiedCheckpoint(checkpoint_id=number, files=2, size=2, triggered_ms=NOON) for number in (2, 1)
    )


async def test_every_damaged_file_of_every_checkpoint_is_named(stored: StoredCheckpoints) -> None:
    """A shared file damages all of them (C29)."""
    stored.put(SHARED, b"y")
    (stored.directory / name(1, A1)).unlink()
    found = await verdicts(stored)
    assert found[2].keys() == {SHARED}
    assert found[1].keys() == {SHARED, name(1, A1)}


async def test_damaged_metadata_is_damage(stored: StoredCheckpoints) -> None:
    """The other checkpoints are verified all the same (C29)."""
    metadata = stored.directory / layout.metadata_file(2)
    metadata.write_bytes(metadata.read_bytes()[:-5])
    found = await verdicts(stored)
    assert "torn" in found[2][layout.metadata_file(2)]
    assert found[1] == {}


async def test_with_pointers_metadata_that_is_gone_is_damage_and_metadata_without_one_does_not_count(
    stored: StoredCheckpoints, tmp_path: Path
) -> None:
    """The pointer says that there is a checkpoint (C29, A11a)."""
    pointers = tmp_path / "pointers"
    pointers.mkdir()
    (pointers / "0000000002").touch()
    assert await verdicts(stored, pointers) == {2: {}}
    (stored.directory / layout.metadata_file(2)).unlink()
    assert await verdicts(stored, pointers) == {2: {layout.metadata_file(2): "it is missing"}}


async def test_it_is_shown_that_a_checkpoint_was_given_up(stored: StoredCheckpoints) -> None:
    """It is not restored any more, even if it is whole again (C28, C29)."""
    stored.put(layout.damage_record(2), b"{}")
    found = await verify_all(place(stored.directory), None)
    assert [one.given_up for one in found] == [True, False]


async def test_a_storage_that_does_not_answer_leaves_it_open(stored: StoredCheckpoints) -> None:
    """No verdict is better than a wrong one (C28)."""
    root = replace(place(stored.directory), storage=FaultyStorage(LocalStorage(), fail_at=4))
    with pytest.raises(StorageUnavailable):
        await verify_all(root, None)


async def test_a_job_without_checkpoints_has_nothing_to_verify(tmp_path: Path) -> None:
    """Its directory need not exist (C29)."""
    assert await verify_all(place(tmp_path / "none"), None) == ()


async def test_a_start_at_the_latest_offsets_leaves_out_what_was_given_up(stored: StoredCheckpoints) -> None:
    """Its staged output was discarded: a job that began at its offsets would never write these rows (C26, C28)."""
    stored.put(layout.damage_record(2), b"{}")
    newest = await newest_below(place(stored.directory))
    assert newest is not None
    assert newest.checkpoint.checkpoint_id == 1
