"""A job is to be restored, and files of its checkpoints are damaged, on a real disk with real sinks (C28)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from minflinkd.checkpoint import layout
from minflinkd.jobgraph.model import OnDamage
from minflinkd.jobmaster.fallback import NoWholeCheckpoint, RestoreWouldRepeat
from minflinkd.jobmaster.falling_back import AllTasksMustStop
from minflinkd.storage.interface import StorageUnavailable
from minflinkd.storage.publication import (
    SinkTransaction,
    StagedToken,
    publish,
)
from tests.component.damaged_world import COMMITS, OUT, REPEATS, TASK, World, own
from tests.files import files_below
from tests.unit.checkpoint.builders import A1, JOB, name

HOW = pytest.mark.parametrize("how", ["flipped", "truncated", "removed"])


@HOW
@pytest.mark.parametrize("file", [own(3), layout.metadata_file(3)], ids=["segment", "metadata"])
async def test_a_job_that_has_published_nothing_goes_on_from_the_checkpoint_before(
    tmp_path: Path, file: str, how: str
) -> None:
    """Whichever of its files is damaged, and in whatever way. Removed metadata alone is no checkpoint (C28)."""
    world = World(tmp_path)
    world.damage(file, how)
    with capture_logs() as logs:
        point = await world.restore(suspected="seg" in file)
    assert point.checkpoint_id == 2
    if file == layout.metadata_file(3) and how == "removed":
        return
    assert point.warning is not None
    assert file in point.warning.message
    assert "nothing was published since then" in point.warning.message
    assert [entry["log_level"] for entry in logs if entry["event"] == "the job goes on from an earlier checkpoint"] == [
        "error"
    ]


async def test_the_newest_whole_checkpoint_is_taken_even_if_it_is_the_oldest(tmp_path: Path) -> None:
    """The segment of one and the metadata of another are damaged (C28)."""
    world = World(tmp_path)
    world.damage(own(2))
    world.damage(layout.metadata_file(3))
    point = await world.restore(suspected=False)
    assert point.checkpoint_id == 1
    assert point.warning is not None
    for file in (own(2), layout.metadata_file(3)):
        assert file in point.warning.message


async def test_everything_after_the_checkpoint_that_is_taken_is_given_up(tmp_path: Path) -> None:
    """Also what could not be read before: if somebody mends it later, it is not restored (C28)."""
    world = World(tmp_path)
    content = (world.stored.directory / layout.metadata_file(2)).read_bytes()
    world.damage(layout.metadata_file(2))
    world.damage(own(3))
    assert (await world.restore()).checkpoint_id == 1
    (world.stored.directory / layout.metadata_file(2)).write_bytes(content)
    world.damage(own(3))  # flips it back
    assert (await world.restore(suspected=False)).checkpoint_id == 1


async def test_a_record_that_cannot_be_read_still_gives_a_checkpoint_up(tmp_path: Path) -> None:
    """It exists, so somebody has decided (C28)."""
    world = World(tmp_path)
    world.stored.put(layout.damage_record(3), b"{torn")
    point = await world.restore(suspected=False)
    assert point.checkpoint_id == 2
    assert point.warning is not None


async def test_a_job_does_not_start_empty_because_all_that_is_left_was_given_up(tmp_path: Path) -> None:
    """The checkpoint that it went on from was deleted by hand (C28)."""
    world = World(tmp_path)
    world.stored.put(layout.damage_record(3), b"{}")
    for number in (1, 2):
        (world.stored.directory / layout.metadata_file(number)).unlink()
    with pytest.raises(NoWholeCheckpoint):
        await world.restore(suspected=False)


@HOW
async def test_a_file_that_all_checkpoints_share_leaves_none_of_them_whole(tmp_path: Path, how: str) -> None:
    """The job is not started without its state, with whatever option (C28)."""
    world = World(tmp_path, on_damage=OnDamage.FALL_BACK_AND_REPEAT)
    world.damage(name(9, A1), how)
    with pytest.raises(NoWholeCheckpoint, match=name(9, A1)):
        await world.restore()
    assert not list(world.stored.directory.rglob(layout.DAMAGED)), "nothing was decided"


async def test_a_job_does_not_start_empty_because_no_metadata_can_be_read(tmp_path: Path) -> None:
    """There are checkpoints, so the job has state (C28)."""
    world = World(tmp_path, sink=REPEATS)
    for number in (1, 2, 3):
        world.damage(layout.metadata_file(number))
    with pytest.raises(NoWholeCheckpoint, match="chk-3/_metadata"):
        await world.restore(suspected=False)


@pytest.mark.parametrize("file", [own(3), layout.metadata_file(3)], ids=["segment", "metadata"])
async def test_what_was_published_is_not_published_twice(tmp_path: Path, file: str) -> None:
    """The manifest says so, also if the metadata does not any more. Nothing is changed (C28)."""
    world = World(tmp_path)
    await world.published(3)
    world.damage(file)
    before = world.stored.files()
    with pytest.raises(RestoreWouldRepeat, match=r"manifests/000000003\.json"):
        await world.restore()
    assert world.stored.files() == before
    world.options = replace(world.options, on_damage=OnDamage.FALL_BACK_AND_REPEAT)
    assert (await world.restore()).checkpoint_id == 2


async def test_a_publication_under_way_counts(tmp_path: Path) -> None:
    """Its mark is written before the first file is moved (C28)."""
    world = World(tmp_path)
    await world.published(3)
    service = world.output / "_minflinkd" / JOB / OUT
    (service / "publishing").mkdir(exist_ok=True)
    (service / "manifests" / "000000003.json").rename(service / "publishing" / "000000003.json")
    world.damage(own(3))
    with pytest.raises(RestoreWouldRepeat, match="publishing/000000003"):
        await world.restore()


async def test_what_is_still_staged_is_discarded_and_made_again(tmp_path: Path) -> None:
    """A crash came between the completion and the publication: nobody has seen the rows (C28, J12)."""
    world = World(tmp_path)
    await world.published(2)
    seen = world.visible()
    world.stage(3)
    world.damage(own(3))
    assert (await world.restore()).checkpoint_id == 2
    assert world.visible() == seen
    assert not [path for path in files_below(world.output) if "staged" in path.parts]


async def test_a_staged_file_that_is_gone_counts_as_published(tmp_path: Path) -> None:
    """Whoever took it, nobody can say that its rows were not seen (C28)."""
    world = World(tmp_path)
    owed = world.stage(3)
    (world.output / owed.files[0].staged).unlink()
    world.damage(own(3))
    with pytest.raises(RestoreWouldRepeat, match="not staged any more"):
        await world.restore()


async def test_rows_to_commit_are_believed_to_be_committed(tmp_path: Path) -> None:
    """A sink that commits by itself cannot be asked (C28, J13)."""
    world = World(tmp_path, sink=COMMITS)
    world.damage(own(3))
    assert (await world.restore()).checkpoint_id == 2, "there was nothing to commit"
    world = World(tmp_path / "other", sink=COMMITS)
    token = StagedToken(A1, 1, "{}")
    world.checkpoint(3, SinkTransaction(job_id=JOB, sink=OUT, checkpoint_id=3, tokens=(token,)))
    world.damage(own(3))
    with pytest.raises(RestoreWouldRepeat, match="checkpoint 3 may have committed rows"):
        await world.restore()


async def test_an_at_least_once_sink_gets_rows_again(tmp_path: Path) -> None:
    """Its guarantee allows that, and the warning says it (C28)."""
    world = World(tmp_path, sink=REPEATS)
    world.damage(own(3))
    point = await world.restore()
    assert point.checkpoint_id == 2
    assert point.warning is not None
    assert "gets rows again" in point.warning.message


async def test_a_checkpoint_that_was_given_up_is_not_restored_even_if_it_is_mended(tmp_path: Path) -> None:
    """What it had staged was discarded. The decision holds for later JobMasters (C28)."""
    world = World(tmp_path)
    world.stage(3)
    world.damage(own(3))
    await world.restore()
    record = (world.stored.directory / layout.damage_record(3)).read_text()
    assert own(3) in record
    world.damage(own(3))  # flips it back
    point = await world.restore(suspected=False)
    assert point.checkpoint_id == 2
    assert point.warning is not None, "nothing is complete since then, so it still holds"
    assert own(3) in world.stored.files(), "and stays, for whoever wants to know what has happened"


async def test_a_task_that_cannot_read_a_whole_checkpoint_changes_nothing(tmp_path: Path) -> None:
    """Its TaskManager may see another storage (C28)."""
    world = World(tmp_path)
    point = await world.restore()
    assert (point.checkpoint_id, point.warning) == (3, None)


async def test_nothing_is_read_without_a_reason(tmp_path: Path) -> None:
    """A restore takes no longer than before: the tasks find damage when they fetch (C28)."""
    world = World(tmp_path)
    world.damage(own(3))
    assert (await world.restore(suspected=False)).checkpoint_id == 3


async def test_a_storage_that_does_not_answer_is_no_damage(tmp_path: Path) -> None:
    """Whichever request fails: the restore fails, and the next one is tried as if nothing had been (C28)."""
    world = World(tmp_path)
    world.damage(own(3))
    async with world.job_master() as (restoring, falling_back, _):
        await restoring.prepare(world.tasks, frozenset(world.tasks))  # by then the sweep has ended
        falling_back.suspect()
        failed, request = 0, 0
        while True:
            request += 1
            world.storage.requests, world.storage.fail_at = 0, request
            try:
                point = await restoring.prepare(world.tasks, frozenset(world.tasks))
            except StorageUnavailable:
                failed += 1
                continue
            break
    assert failed > 5
    assert point.checkpoint_id == 2
    assert point.warning is not None, "the failures after the decision have not hidden it"


async def test_the_other_tasks_stop_before_the_job_goes_back(tmp_path: Path) -> None:
    """One region was to be restored. Nothing is decided while another one runs (C28)."""
    world = World(tmp_path, more=True)
    world.damage(own(3))
    async with world.job_master() as (restoring, falling_back, _):
        falling_back.suspect()
        with pytest.raises(AllTasksMustStop):
            await restoring.prepare(world.tasks, frozenset({TASK}))
    assert not list(world.stored.directory.rglob(layout.DAMAGED))


async def test_a_taskmanager_that_publishes_until_the_last_moment_is_noticed(tmp_path: Path) -> None:
    """It was believed dead. When its staged files are discarded, what it has published by then is looked at (C28)."""
    world = World(tmp_path)
    owed = world.stage(3)
    world.damage(own(3))
    async with world.job_master() as (_, falling_back, coordinator):
        falling_back.suspect()
        found = await falling_back.look(all_tasks=True)
        assert found is not None
        assert coordinator.latest() is not None
        await publish(world.storages, owed)
        with pytest.raises(RestoreWouldRepeat):
            await falling_back.confirm(found)
