import asyncio
import contextlib
import os
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minflinkd.storage import publication
from minflinkd.storage.faulty import FaultyStorage
from minflinkd.storage.interface import Capabilities, ObjectNotFound, StorageCorrupt, StorageUnavailable
from minflinkd.storage.publication import (
    Manifest,
    SinkNotSupported,
    SinkTransaction,
    StagedFile,
    discard_staged,
    final_name,
    make_durable,
    publish,
    remove_service_directories,
    staged_directory,
)
from minflinkd.storage.registry import Storages
from minflinkd_local import LocalStorage

JOB, SINK, ATTEMPT = "a" * 32, "out", "b" * 32


class Copying(LocalStorage):
    """Behaves like an object store: it copies, and never renames."""

    capabilities = Capabilities(server_side_copy=True)

    async def rename(self, source: str, target: str) -> None:
        raise AssertionError("this storage cannot rename")


def stage(root: Path, epoch: int, files: dict[str, bytes], attempt: str = ATTEMPT) -> None:
    """Write as Spark does: data, and its own marker files next to it."""
    directory = root / staged_directory(JOB, SINK, attempt, epoch)
    for name, data in {**files, "_SUCCESS": b"", ".part-0.parquet.crc": b"c"}.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def visible(root: Path) -> dict[str, bytes]:
    """Return what a reader of the directory sees. It skips names that begin with _ or a dot."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and not any(part.startswith(("_", ".")) for part in path.relative_to(root).parts)
    }


def every_file(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


async def transaction(
    storages: Storages, root: Path, checkpoint: int, epochs: list[int], attempt: str = ATTEMPT
) -> SinkTransaction:
    """Make all data durable that is staged in these micro-batches."""
    files: list[StagedFile] = []
    for epoch in epochs:
        relative = staged_directory(JOB, SINK, attempt, epoch)
        for name, data in sorted(visible(root / relative).items()):
            final = final_name(JOB, SINK, attempt, epoch, name)
            files.append(StagedFile(f"{relative}/{name}", final, len(data)))
    covered = SinkTransaction(
        job_id=JOB, sink=SINK, root=f"file://{root}", checkpoint_id=checkpoint, files=tuple(files)
    )
    await make_durable(storages, covered)
    return covered


async def test_staged_files_become_visible_with_their_checkpoint(tmp_path: Path) -> None:
    """J12"""
    storages = Storages()
    stage(tmp_path, 7, {"part-00000-u.parquet": b"one", "carrier=UA/part-00001-u.parquet": b"two"})
    covered = await transaction(storages, tmp_path, 3, [7])
    assert visible(tmp_path) == {}
    assert await publish(storages, covered) == 2
    first = final_name(JOB, SINK, ATTEMPT, 7, "part-00000-u.parquet")
    second = final_name(JOB, SINK, ATTEMPT, 7, "carrier=UA/part-00001-u.parquet")
    assert second.startswith("carrier=UA/part-")
    assert visible(tmp_path) == {first: b"one", second: b"two"}
    manifest = f"_minflinkd/{JOB}/{SINK}/manifests/000000003.json"
    assert every_file(tmp_path) == sorted([first, second, manifest]), "nothing staged is left"
    written = msgspec.json.decode((tmp_path / manifest).read_bytes(), type=Manifest)
    assert written.files == tuple(sorted([(first, 3), (second, 3)]))


async def test_publishing_again_changes_nothing(tmp_path: Path) -> None:
    """A publication is repeated from the snapshot until it is confirmed (J12)."""
    storages = Storages()
    stage(tmp_path, 1, {"part-0.parquet": b"one"})
    covered = await transaction(storages, tmp_path, 1, [1])
    assert await publish(storages, covered) == 1
    before = every_file(tmp_path)
    assert [await publish(storages, covered) for _ in range(3)] == [0, 0, 0]
    assert every_file(tmp_path) == before


async def test_a_staged_file_that_is_missing_cannot_be_acknowledged(tmp_path: Path) -> None:
    """Files are durable before the task acknowledges (J12)."""
    storages = Storages()
    stage(tmp_path, 1, {"part-0.parquet": b"one"})
    covered = await transaction(storages, tmp_path, 1, [1])
    os.unlink(tmp_path / covered.files[0].staged)
    with pytest.raises(ObjectNotFound, match=r"part-0\.parquet"):
        await make_durable(storages, covered)


async def test_publishers_beside_each_other_do_not_mind(tmp_path: Path) -> None:
    """A TaskManager that is thought dead may still publish what its successor publishes too."""
    storages = Storages()
    stage(tmp_path, 1, {f"part-{number}.parquet": b"%d" % number for number in range(40)})
    covered = await transaction(storages, tmp_path, 1, [1])
    moved = await asyncio.gather(*(publish(storages, covered) for _ in range(4)))
    assert sum(moved) == 40
    assert len(visible(tmp_path)) == 40


async def test_publishers_beside_each_other_do_not_mind_where_files_are_copied(tmp_path: Path) -> None:
    """Each file exists once and whole, whoever copied it.

    No staged file is left that could be published again (J12).
    """
    storages = Storages()
    storages.add(Copying())
    stage(tmp_path, 1, {f"part-{number}.parquet": b"%d" % number for number in range(20)})
    covered = await transaction(storages, tmp_path, 1, [1])
    await asyncio.gather(*(publish(storages, covered) for _ in range(4)))
    assert sorted(visible(tmp_path).values()) == sorted(b"%d" % number for number in range(20))
    for path in visible(tmp_path):
        (tmp_path / path).unlink()  # a reader that goes by the manifest
    assert await publish(storages, covered) == 0
    assert visible(tmp_path) == {}


async def test_a_checkpoint_without_files_writes_nothing(tmp_path: Path) -> None:
    storages = Storages()
    assert await publish(storages, await transaction(storages, tmp_path, 1, [])) == 0
    assert os.listdir(tmp_path) == []


async def test_a_file_that_is_nowhere_is_named(tmp_path: Path) -> None:
    storages = Storages()
    stage(tmp_path, 1, {"part-0.parquet": b"one", "part-1.parquet": b"two"})
    covered = await transaction(storages, tmp_path, 1, [1])
    os.unlink(tmp_path / covered.files[1].staged)
    with pytest.raises(StorageCorrupt, match=r"part-1\.parquet is neither staged nor published"):
        await publish(storages, covered)
    assert not list((tmp_path / "_minflinkd").rglob("manifests/*"))


async def test_a_checkpoint_is_not_published_twice_with_different_files(tmp_path: Path) -> None:
    storages = Storages()
    for epoch in (1, 2):
        stage(tmp_path, epoch, {"part-0.parquet": b"one"})
        covered = await transaction(storages, tmp_path, 1, [epoch])
        if epoch == 1:
            await publish(storages, covered)
    with pytest.raises(StorageCorrupt, match="published other files"):
        await publish(storages, covered)
    assert len(visible(tmp_path)) == 1


@pytest.mark.parametrize("staged", ["part-0.parquet", "_minflinkd/x", "col=1/a/b/c/d/e/f/g"])
async def test_only_staged_files_are_published(tmp_path: Path, staged: str) -> None:
    covered = SinkTransaction(
        job_id=JOB, sink=SINK, root=str(tmp_path), checkpoint_id=1, files=(StagedFile(staged, "part-x"),)
    )
    with pytest.raises(StorageCorrupt, match="no staged file of sink out"):
        await publish(Storages(), covered)


async def test_what_no_checkpoint_covers_is_discarded(tmp_path: Path) -> None:
    """A restore discards staged files that no checkpoint covers (J12)."""
    storages = Storages()
    stage(tmp_path, 1, {"part-0.parquet": b"kept"})
    stage(tmp_path, 2, {"part-0.parquet": b"lost", "a=1/part-1.parquet": b"lost"})
    stage(tmp_path, 1, {"part-0.parquet": b"lost"}, attempt="c" * 32)
    covered = await transaction(storages, tmp_path, 1, [1])
    keep = frozenset(file.staged for file in covered.files)
    assert await discard_staged(storages, str(tmp_path), JOB, SINK, keep) == 9
    assert every_file(tmp_path) == [covered.files[0].staged]
    assert await publish(storages, covered) == 1
    assert list(visible(tmp_path).values()) == [b"kept"]
    assert await discard_staged(storages, str(tmp_path), JOB, "other") == 0


async def test_the_end_of_a_job_leaves_data_and_manifests(tmp_path: Path) -> None:
    storages = Storages()
    stage(tmp_path, 1, {"part-0.parquet": b"one"})
    await publish(storages, await transaction(storages, tmp_path, 1, [1]))
    stage(tmp_path, 2, {"part-0.parquet": b"lost"})
    await remove_service_directories(storages, str(tmp_path), JOB)
    assert [name.split("/")[-2] for name in every_file(tmp_path) if name.startswith("_")] == ["manifests"]
    await remove_service_directories(storages, str(tmp_path), JOB, manifests=True)
    assert os.listdir(tmp_path) == list(visible(tmp_path))
    assert len(visible(tmp_path)) == 1


async def test_storage_without_atomic_rename_and_copy_is_refused(tmp_path: Path) -> None:
    class Slow(LocalStorage):
        capabilities = Capabilities()

    storages = Storages()
    storages.add(Slow())
    stage(tmp_path, 1, {"part-0.parquet": b"one"})
    with pytest.raises(SinkNotSupported, match="atomic rename or copies on the server"):
        await transaction(storages, tmp_path, 1, [1])


def test_a_final_name_is_nobody_elses() -> None:
    names = {
        final_name(job, sink, attempt, epoch, name)
        for job in ("1" * 32, "2" * 32)
        for sink in ("a", "b")
        for attempt in ("3" * 32, "4" * 32)
        for epoch in (1, 11)
        for name in ("part-0.parquet", "part-1.parquet", "x=1/part-0.parquet")
    }
    assert len(names) == 2 * 2 * 2 * 2 * 3


@settings(max_examples=25, deadline=None)
@given(
    files=st.dictionaries(
        st.sampled_from(["part-0.parquet", "part-1.parquet", "c=1/part-0.parquet", "c=2/d=3/part-9.orc"]),
        st.binary(max_size=20),
        min_size=1,
    ),
    faults=st.lists(st.tuples(st.integers(1, 16), st.booleans()), max_size=4),
    kind=st.sampled_from([LocalStorage, Copying]),
)
def test_publication_interrupted_anywhere_and_repeated_ends_in_the_same_files(
    files: dict[str, bytes], faults: list[tuple[int, bool]], kind: type[LocalStorage]
) -> None:
    """Any request may fail, before or after it did its work (J12)."""

    async def run(root: Path) -> None:
        faulty, storages = FaultyStorage(kind()), Storages()
        storages.add(faulty)
        stage(root, 5, files)
        covered = await transaction(storages, root, 2, [5])
        for fail_at, after in faults:
            faulty.requests, faulty.fail_at, faulty.after = 0, fail_at, after
            try:
                await publish(storages, covered)
            except StorageUnavailable:
                seen = visible(root)
                assert seen.items() <= {final_name(JOB, SINK, ATTEMPT, 5, n): d for n, d in files.items()}.items()
        faulty.fail_at = None
        await publish(storages, covered)
        assert visible(root) == {final_name(JOB, SINK, ATTEMPT, 5, name): data for name, data in files.items()}
        assert len(every_file(root)) == len(files) + 1, "the manifest, and nothing staged"

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(Path(directory)))


async def test_a_file_that_an_earlier_checkpoint_publishes_meanwhile_is_durable_all_the_same(tmp_path: Path) -> None:
    """Checkpoint 2 still carries the files of 1 while 1 is being published (J12)."""
    storages = Storages()
    stage(tmp_path, 1, {"part-0.parquet": b"rows"})
    first = await transaction(storages, tmp_path, 1, [1])
    second = msgspec.structs.replace(first, checkpoint_id=2)
    await publish(storages, first)
    await make_durable(storages, second)
    assert await publish(storages, second) == 0
    assert list(visible(tmp_path).values()) == [b"rows"]


async def test_a_file_that_its_reader_has_taken_away_is_not_missed(tmp_path: Path) -> None:
    """Checkpoint 2 still carries what 1 published. A consumer moves files away as soon as it sees them (J12)."""
    storages = Storages()
    for epoch in (1, 2):
        stage(tmp_path, epoch, {"part-0.parquet": b"rows"})
    first = await transaction(storages, tmp_path, 1, [1])
    both = await transaction(storages, tmp_path, 2, [1, 2])
    await publish(storages, first)
    (tmp_path / first.files[0].final).unlink()
    await make_durable(storages, both)
    assert await publish(storages, both) == 1
    assert list(visible(tmp_path)) == [both.files[1].final]


async def test_the_records_are_listed_once_for_all_files_that_readers_have_taken_away(tmp_path: Path) -> None:
    storages, epochs = Storages(), list(range(1, 9))
    for epoch in epochs:
        stage(tmp_path, epoch, {"part-0.parquet": b"0", "part-1.parquet": b"1"})
        await publish(storages, await transaction(storages, tmp_path, epoch, [epoch]))
    stage(tmp_path, 9, {"part-0.parquet": b"rows"})
    new = await transaction(storages, tmp_path, 9, [9])
    old = [
        StagedFile(f"{staged_directory(JOB, SINK, ATTEMPT, epoch)}/part-{number}.parquet", final)
        for epoch in epochs
        for number in (0, 1)
        for final in [final_name(JOB, SINK, ATTEMPT, epoch, f"part-{number}.parquet")]
    ]
    covered = msgspec.structs.replace(new, files=(*old, *new.files))
    for path in visible(tmp_path):
        (tmp_path / path).unlink()
    before = storages.statistics()["file"]["list"].requests
    await make_durable(storages, covered)
    assert storages.statistics()["file"]["list"].requests == before + 2, "the marks, and the manifests"
    assert await publish(storages, covered) == 1
    lost = msgspec.structs.replace(covered, checkpoint_id=10, files=(*old, StagedFile(f"{old[0].staged}x", "lost")))
    with pytest.raises(StorageCorrupt, match="neither staged nor published as lost"):
        await publish(storages, lost)


@pytest.mark.parametrize("fail_at", range(1, 12))
async def test_a_file_taken_away_in_the_middle_of_its_publication_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail_at: int
) -> None:
    """The publisher dies anywhere between the first rename and the manifest. Its successor completes it (J12)."""
    monkeypatch.setattr(publication, "_PARALLEL", 1)  # no part of it is still under way after its death
    faulty, storages = FaultyStorage(LocalStorage()), Storages()
    storages.add(faulty)
    stage(tmp_path, 1, {"part-0.parquet": b"one", "part-1.parquet": b"two"})
    covered = await transaction(storages, tmp_path, 1, [1])
    faulty.requests, faulty.fail_at = 0, fail_at
    with contextlib.suppress(StorageUnavailable):
        await publish(storages, covered)
    faulty.fail_at = None
    taken = list(visible(tmp_path))
    for name in taken:
        (tmp_path / name).unlink()
    assert await publish(storages, covered) == 2 - len(taken)
    assert sorted([*taken, *visible(tmp_path)]) == sorted(file.final for file in covered.files)
    assert len(list((tmp_path / "_minflinkd").rglob("*.json"))) == 1, "the manifest, and no mark"
