"""What stays of a job that ended with retained checkpoints (C24), on a real disk."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from minflinkd.checkpoint import layout, orphans, retained
from minflinkd.checkpoint.external import discard_external, read_external
from minflinkd.checkpoint.orphans import NotLeading
from minflinkd.checkpoint.retained import retain_only
from minflinkd.checkpoint.savepoints import write_savepoint
from minflinkd.storage.faulty import FaultyStorage
from minflinkd.storage.interface import StorageUnavailable
from minflinkd.storage.location import Location
from minflinkd.storage.registry import Storages
from minflinkd_local import LocalStorage
from tests.unit.checkpoint.builders import A1, A2, name
from tests.unit.checkpoint.stored_checkpoints import StoredCheckpoints

SHARED = name(3, A1)  # written for an earlier checkpoint; 4 and 5 refer to it


@pytest.fixture
async def storages() -> AsyncIterator[Storages]:
    storages = Storages({})
    yield storages
    await storages.aclose()


@pytest.fixture
def stored(tmp_path: Path) -> StoredCheckpoints:
    """Return the checkpoints 4 and 5 of a job, which share a file, and other objects of its directory."""
    stored = StoredCheckpoints(tmp_path / "job")
    stored.put(SHARED)
    for number in (4, 5):
        stored.checkpoint(number, reuses=[SHARED])
    stored.put("offsets.json")
    stored.put("history.json")
    stored.put(layout.id_block(1))
    return stored


def of_checkpoints(*numbers: int) -> set[str]:
    return {SHARED, *(name(n, A1) for n in numbers), *(layout.metadata_file(n) for n in numbers)}


OTHERS = {"offsets.json", "history.json", layout.id_block(1)}


async def keep(stored: StoredCheckpoints, storages: Storages, *kept: int) -> None:
    await retain_only(storages.at(str(stored.directory)), kept, leads=lambda: True)


async def test_a_subsumed_checkpoint_goes_with_the_files_that_only_it_refers_to(
    stored: StoredCheckpoints, storages: Storages
) -> None:
    """The files that it shares with a retained one stay (C24, F5)."""
    await keep(stored, storages, 5)
    assert stored.files() == of_checkpoints(5) | OTHERS


async def test_every_retained_checkpoint_stays(stored: StoredCheckpoints, storages: Storages) -> None:
    """`num-retained` may be more than one (C24)."""
    await keep(stored, storages, 4, 5)
    assert stored.files() == of_checkpoints(4, 5) | OTHERS


async def test_what_was_written_for_a_checkpoint_that_was_never_completed_goes(
    stored: StoredCheckpoints, storages: Storages
) -> None:
    """The job was cancelled during that checkpoint. So do reserved ids that no coordinator uses (C24, F7)."""
    for file in (name(6, A1), name(6, A2), layout.id_block(17)):
        stored.put(file)
    await keep(stored, storages, 5)
    assert stored.files() == of_checkpoints(5) | (OTHERS - {layout.id_block(1)}) | {layout.id_block(17)}


async def test_a_retained_checkpoint_that_was_claimed_meanwhile_is_not_replaced_by_an_older_one(
    stored: StoredCheckpoints, storages: Storages
) -> None:
    """A job that started from checkpoint 5 deletes it. Checkpoint 4 goes all the same, with what both share (C24)."""
    await discard_external(await read_external(storages, str(stored.directory / "chk-5")))
    assert stored.files() == of_checkpoints(4) | OTHERS
    await keep(stored, storages, 5)
    assert stored.files() == OTHERS


async def test_what_a_claim_leaves_because_of_a_subsumed_checkpoint_goes_with_that_one(
    stored: StoredCheckpoints, storages: Storages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claimed checkpoint is deleted after the subsumed one was read, and before that one is deleted (C24)."""
    delete_in_batches = retained.delete_in_batches
    claimed = await read_external(storages, str(stored.directory / "chk-5"))

    async def meanwhile(*arguments: object, **others: object) -> None:
        monkeypatch.setattr(retained, "delete_in_batches", delete_in_batches)
        await discard_external(claimed)
        assert SHARED in stored.files()
        await delete_in_batches(*arguments, **others)  # type: ignore[arg-type]

    monkeypatch.setattr(retained, "delete_in_batches", meanwhile)
    await keep(stored, storages, 5)
    assert stored.files() == OTHERS


async def test_savepoints_in_the_jobs_directory_stay(
    tmp_path: Path, stored: StoredCheckpoints, storages: Storages
) -> None:
    """Wherever somebody put them, also where a checkpoint would be (C24, F7)."""
    here = storages.at(str(stored.directory))
    checkpoint = (await read_external(storages, str(stored.directory / "chk-4"))).checkpoint
    for target in ("chk-3", "saved"):
        written = await write_savepoint(here, checkpoint, storages.at(str(tmp_path / "savepoints")))
        Path(written.path).rename(stored.directory / target)
    before = stored.files()
    await keep(stored, storages, 5)
    assert stored.files() == before - {name(4, A1), layout.metadata_file(4)}


async def test_no_file_goes_while_metadata_cannot_be_read(stored: StoredCheckpoints, storages: Storages) -> None:
    """It may refer to any file. It stays itself, too: somebody has to look at it (A12)."""
    torn = stored.put(layout.metadata_file(2), b"torn")
    orphan = stored.put(name(6, A1))
    with capture_logs() as logs:
        await keep(stored, storages, 5)
    assert stored.files() == of_checkpoints(5) | OTHERS | {torn, orphan, name(4, A1)}
    assert [line["event"] for line in logs] == ["files stay while checkpoint metadata is unreadable"]


async def test_nothing_goes_while_leadership_is_in_doubt(stored: StoredCheckpoints, storages: Storages) -> None:
    """A daemon that lost its lead must not delete what the next one made (A11)."""
    before = stored.files()
    with pytest.raises(NotLeading):
        await retain_only(storages.at(str(stored.directory)), [5], leads=lambda: False)
    assert stored.files() == before


@pytest.mark.parametrize("after", [False, True], ids=["before the request", "after the request"])
async def test_it_may_be_interrupted_at_every_request_and_is_finished_by_a_repetition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """At no time is a retained checkpoint without one of its files (C24)."""
    monkeypatch.setattr(orphans, "BATCH", 1)
    for number in range(1, 100):
        stored = StoredCheckpoints(tmp_path / str(number))
        stored.put(SHARED)
        for checkpoint in (3, 4, 5):
            stored.checkpoint(checkpoint, reuses=[SHARED])
        storage = FaultyStorage(LocalStorage(), number, after=after)
        place = Location(storage, "file", str(stored.directory))
        try:
            await retain_only(place, [5], leads=lambda: True)
        except StorageUnavailable:
            assert stored.files() >= of_checkpoints(5)
            await retain_only(place, [5], leads=lambda: True)
        assert stored.files() == of_checkpoints(5)
        if storage.requests < number:
            assert number > 8, "the requests are not reached any more"
            return
    raise AssertionError("there is no end of requests")
