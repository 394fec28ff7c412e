"""The TaskManager's own copies of snapshots (C14), and the health of its session child."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from minflinkd.filemerging.segments import checksum
from minflinkd.rpc.snapshot import StateFile, StateHandle, TaskSnapshot
from minflinkd.runtime.errors import InvalidId
from minflinkd.runtime.ids import AttemptId, JobId, ResourceId, TaskId
from minflinkd.taskmanager.attempts.local_snapshots import Copy, LocalSnapshots, beyond
from minflinkd.taskmanager.child.health import Health, Limits, heard, observed, unwatched, verdict

JOB, TASK = JobId("1" * 32), TaskId("a")
SNAPSHOT = TaskSnapshot(
    task_id=TASK,
    attempt_id=AttemptId("2" * 32),
    resource_id=ResourceId("tm-1"),
    checkpoint_id=1,
    batch_id=0,
    files=(
        StateFile("offsets/0", StateHandle("f", 0, 3, checksum(b"abc"))),
        StateFile("state/0/1.zip", StateHandle("f", 3, 4, checksum(b"defg"))),
    ),
)


@pytest.fixture
def snapshots(tmp_path: Path) -> LocalSnapshots:
    kept = LocalSnapshots(tmp_path / "snapshots")
    directory = kept.directory(JOB, TASK, 1)
    for name, text in (("offsets/0", "abc"), ("state/0/1.zip", "defg")):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return kept


def test_a_complete_copy_is_laid_out_by_hard_links(snapshots: LocalSnapshots, tmp_path: Path) -> None:
    """No byte is copied (C14)."""
    target = tmp_path / "attempt"
    assert snapshots.lay_out(JOB, SNAPSHOT, target) == set()
    snapshots.completed(JOB, TASK, 1)
    assert snapshots.lay_out(JOB, SNAPSHOT, target) == {"offsets/0", "state/0/1.zip"}
    for file in SNAPSHOT.files:
        assert (target / file.path).samefile(snapshots.directory(JOB, TASK, 1) / file.path)


@pytest.mark.parametrize("damage", ["missing", "longer", "other", "unreachable"])
def test_a_damaged_file_of_a_copy_is_not_laid_out(snapshots: LocalSnapshots, tmp_path: Path, damage: str) -> None:
    """The storage's file is used instead (C14)."""
    snapshots.completed(JOB, TASK, 1)
    last = snapshots.directory(JOB, TASK, 1) / "state/0/1.zip"
    last.unlink()
    if damage == "unreachable":
        last.parent.rmdir()
        last.parent.write_text("a file in its place")
    elif damage != "missing":
        last.write_text({"longer": "too long", "other": "defh"}[damage])
    assert snapshots.lay_out(JOB, SNAPSHOT, tmp_path / "attempt") == {"offsets/0"}
    assert [p.name for p in (tmp_path / "attempt").rglob("*") if p.is_file()] == ["0"]


def test_what_the_copy_of_another_checkpoint_shares_with_a_snapshot_is_laid_out(
    snapshots: LocalSnapshots, tmp_path: Path
) -> None:
    """A TaskManager may be lost before its standby has the last checkpoint. Only what is new is fetched (C14, R32)."""
    snapshots.completed(JOB, TASK, 1)
    files = (
        *SNAPSHOT.files,
        StateFile("state/0/2.zip", StateHandle("g", 0, 3, checksum(b"new"))),
        StateFile("offsets/1", StateHandle("g", 3, 3, checksum(b"abc"))),
    )
    target = tmp_path / "attempt"
    later = replace(SNAPSHOT, checkpoint_id=2, files=files)
    assert snapshots.lay_out(JOB, later, target) == {"offsets/0", "state/0/1.zip"}
    assert {str(p.relative_to(target)) for p in target.rglob("*") if p.is_file()} == {"offsets/0", "state/0/1.zip"}
    of_another_task = replace(later, task_id=TaskId("b"))
    assert snapshots.lay_out(JOB, of_another_task, tmp_path / "other") == set()


@pytest.mark.parametrize("changed", ["the own copy", "the other copy"])
def test_a_file_that_two_copies_have_comes_from_the_one_whose_content_is_right(
    snapshots: LocalSnapshots, tmp_path: Path, changed: str
) -> None:
    """Two attempts may write different content to one path (C14)."""
    snapshots.completed(JOB, TASK, 1)
    other = take(snapshots, 2, {})
    (other / "offsets").mkdir()
    (other / "offsets/0").write_text("abc" if changed == "the own copy" else "xyz")
    if changed == "the own copy":
        (snapshots.directory(JOB, TASK, 1) / "offsets/0").write_text("xyz")
    assert snapshots.lay_out(JOB, SNAPSHOT, tmp_path / "attempt") == {"offsets/0", "state/0/1.zip"}
    assert (tmp_path / "attempt/offsets/0").read_text() == "abc"


@pytest.mark.parametrize(("retained", "left"), [(1, ["3", "4"]), (2, ["2", "3", "4"]), (9, ["1", "2", "3", "4"])])
def test_copies_stay_as_long_as_their_checkpoints(snapshots: LocalSnapshots, retained: int, left: list[str]) -> None:
    """Later checkpoints may be confirmed meanwhile. A copy of a checkpoint that is still pending always stays (C14)."""
    for number in (1, 2, 3, 4):
        take(snapshots, number, {})
    snapshots.confirmed(JOB, TASK, 3, retained=retained)
    assert sorted(p.name for p in (snapshots.root / JOB / TASK).iterdir()) == left


def take(snapshots: LocalSnapshots, number: int, files: dict[str, str]) -> Path:
    directory = snapshots.directory(JOB, TASK, number)
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(text)
    snapshots.completed(JOB, TASK, number)
    return directory


def test_beyond_the_bound_the_oldest_copies_go(tmp_path: Path) -> None:
    """A copy that is larger than the bound by itself costs no other copy its place (C14)."""
    snapshots = LocalSnapshots(tmp_path, max_size=10)
    one, two = take(snapshots, 1, {"a": "123456"}), take(snapshots, 2, {"a": "1234"})
    assert (one.exists(), two.exists(), snapshots.size()) == (True, True, 10)
    three = take(snapshots, 3, {"a": "1"})
    assert (one.exists(), two.exists(), three.exists(), snapshots.size()) == (False, True, True, 5)
    four = take(snapshots, 4, {"a": "12345678901"})
    assert (two.exists(), three.exists(), four.exists()) == (True, True, False)


def test_a_file_of_two_copies_is_counted_once(tmp_path: Path) -> None:
    """Copies of one task are links to the same files (C14)."""
    snapshots = LocalSnapshots(tmp_path, max_size=10)
    one = take(snapshots, 1, {"a": "12345678"})
    two = snapshots.directory(JOB, TASK, 2)
    two.mkdir()
    (two / "a").hardlink_to(one / "a")
    take(snapshots, 2, {"b": "12"})
    assert (one.exists(), two.exists(), snapshots.size()) == (True, True, 10)


def test_where_copies_may_take_nothing_none_is_kept(tmp_path: Path) -> None:
    """A bound of zero switches local recovery off (C14)."""
    assert not take(LocalSnapshots(tmp_path, max_size=0), 1, {"a": "1"}).exists()


@given(
    files=st.lists(st.dictionaries(st.integers(0, 9), st.just(0), max_size=6), max_size=8),
    sizes=st.lists(st.integers(0, 50), min_size=10, max_size=10),
    bound=st.integers(0, 120),
)
def test_what_stays_fits_and_nothing_goes_without_need(
    files: list[dict[int, int]], sizes: list[int], bound: int
) -> None:
    """The bound holds. Of the copies that fit by themselves, the latest stay, as many as there is room for (C14)."""
    copies = [Copy((JOB, TASK, n), {inode: sizes[inode] for inode in names}) for n, names in enumerate(files)]
    gone = beyond(copies, bound)
    assert gone == [copy for copy in copies if copy in gone], "in the order of their age"
    kept = [copy for copy in copies if copy not in gone]
    assert disk(kept) <= bound
    fitting = [copy for copy in copies if disk([copy]) <= bound]
    assert kept == fitting[len(fitting) - len(kept) :], "the latest"
    if len(kept) < len(fitting):
        assert disk(fitting[len(fitting) - len(kept) - 1 :]) > bound, "one more would not fit"


def disk(copies: list[Copy]) -> int:
    return sum({inode: size for copy in copies for inode, size in copy.files.items()}.values())


def test_what_a_job_makes_after_it_came_back_is_not_deleted(snapshots: LocalSnapshots, tmp_path: Path) -> None:
    """The earlier directory is set aside at once, and its files are deleted later."""
    snapshots.completed(JOB, TASK, 1)
    gone = snapshots.forget_job(JOB)
    assert snapshots.lay_out(JOB, SNAPSHOT, tmp_path / "attempt") == set()
    snapshots.directory(JOB, TASK, 2).mkdir(parents=True)
    shutil.rmtree(gone)
    assert list((snapshots.root / JOB / TASK).iterdir()) == [snapshots.directory(JOB, TASK, 2)]
    shutil.rmtree(snapshots.forget_job(JOB))
    assert not snapshots.forget_job(JOB).exists(), "idempotent"
    assert list(snapshots.root.iterdir()) == []


def test_ids_that_lead_elsewhere_are_refused(snapshots: LocalSnapshots) -> None:
    """R1."""
    with pytest.raises(InvalidId):
        snapshots.forget_job(JobId(".."))
    with pytest.raises(InvalidId):
        snapshots.directory(JOB, TaskId("../x"), 1)


def test_a_silent_child_is_given_up_late_and_a_stopped_one_soon() -> None:
    """A silent child may only be busy; a child stopped by a signal does nothing (J7)."""
    limits, health = Limits(silent=60, stopped=5), Health(heard=100)
    assert verdict(health, limits, 159.9) is None
    assert "not answered for 60.0 s" in (verdict(health, limits, 160) or "")
    assert verdict(heard(health, 150), limits, 160) is None
    assert heard(health, 50) == health
    stopped = observed(observed(health, True, 110), True, 113)
    assert verdict(stopped, limits, 114.9) is None
    assert "stopped by a signal for 5.0 s" in (verdict(stopped, limits, 115) or "")
    assert verdict(observed(stopped, False, 114), limits, 115) is None


def test_a_time_in_which_nobody_looked_is_held_against_no_child() -> None:
    """The supervisor itself was stopped, or its machine was (J7)."""
    limits, health = Limits(silent=60, stopped=5), Health(heard=100, stopped_since=101)
    assert verdict(unwatched(health, 1000), limits, 1104) is None
    assert "stopped by a signal for 5.0 s" in (verdict(unwatched(health, 1000), limits, 1106) or "")
    assert unwatched(Health(heard=100), 10) == Health(heard=110)
