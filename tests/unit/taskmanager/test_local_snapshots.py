"""The TaskManager's own copies of snapshots (C14), and the health of its session child."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from minflinkd.rpc.snapshot import StateFile, StateHandle, TaskSnapshot
from minflinkd.runtime.errors import InvalidId
from minflinkd.runtime.ids import AttemptId, JobId, ResourceId, TaskId
from minflinkd.taskmanager.local_snapshots import LocalSnapshots
from minflinkd.taskmanager.session_health import Health, Limits, heard, observed, unwatched, verdict

JOB, TASK = JobId("1" * 32), TaskId("a")
SNAPSHOT = TaskSnapshot(
    task_id=TASK,
    attempt_id=AttemptId("2" * 32),
    resource_id=ResourceId("tm-1"),
    checkpoint_id=1,
    batch_id=0,
    files=(
        StateFile("offsets/0", StateHandle("f", 0, 3, "")),
        StateFile("state/0/1.zip", StateHandle("f", 3, 4, "")),
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
    """C14: no byte is copied."""
    target = tmp_path / "attempt"
    assert not snapshots.lay_out(JOB, SNAPSHOT, target)
    snapshots.completed(JOB, TASK, 1)
    assert snapshots.lay_out(JOB, SNAPSHOT, target)
    for file in SNAPSHOT.files:
        assert (target / file.path).samefile(snapshots.directory(JOB, TASK, 1) / file.path)


@pytest.mark.parametrize("damage", ["missing", "longer"])
def test_a_damaged_copy_is_refused_and_leaves_nothing(snapshots: LocalSnapshots, tmp_path: Path, damage: str) -> None:
    """C14: the storage's copy is used instead."""
    snapshots.completed(JOB, TASK, 1)
    last = snapshots.directory(JOB, TASK, 1) / "state/0/1.zip"
    last.unlink()
    if damage == "longer":
        last.write_text("too long")
    assert not snapshots.lay_out(JOB, SNAPSHOT, tmp_path / "attempt")
    assert not (tmp_path / "attempt").exists()


def test_older_copies_go_when_a_later_checkpoint_is_confirmed(snapshots: LocalSnapshots) -> None:
    for number in (1, 2, 3):
        snapshots.directory(JOB, TASK, number).mkdir(parents=True, exist_ok=True)
        snapshots.completed(JOB, TASK, number)
    snapshots.forget_before(JOB, TASK, 3)
    assert sorted(p.name for p in (snapshots.root / JOB / TASK).iterdir()) == ["3"]


def test_what_a_job_makes_after_it_came_back_is_not_deleted(snapshots: LocalSnapshots, tmp_path: Path) -> None:
    """The directory of the time before is set aside at once, and deleted by and by."""
    snapshots.completed(JOB, TASK, 1)
    gone = snapshots.forget_job(JOB)
    assert not snapshots.lay_out(JOB, SNAPSHOT, tmp_path / "attempt")
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
    """J7."""
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
    """J7: the supervisor was stopped itself, or its machine was."""
    limits, health = Limits(silent=60, stopped=5), Health(heard=100, stopped_since=101)
    assert verdict(unwatched(health, 1000), limits, 1104) is None
    assert "stopped by a signal for 5.0 s" in (verdict(unwatched(health, 1000), limits, 1106) or "")
    assert unwatched(Health(heard=100), 10) == Health(heard=110)
