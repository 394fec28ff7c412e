"""From readings to micro-batches (R62)."""

from __future__ import annotations

from minflinkd.autoscaler.readings import FEW, RECENT, JobReading, Track, follow
from minflinkd.runtime.ids import TaskId
from tests.unit.autoscaler.jobs import T, batch, reading


def followed(*readings: tuple[float, dict[str, object]]) -> Track:
    tracks: dict[TaskId, Track] = {}
    for at, shown in readings:
        tracks = follow(tracks, JobReading(at=at, tasks=(reading(**shown),)))
    return tracks[T]


def test_the_first_micro_batches_of_an_attempt_say_nothing() -> None:
    """They are slow: classes are loaded, and nothing is compiled yet."""
    track = followed((0, {}), (5, {"batches": 1, "rows": 10}), (10, {"batches": 2, "rows": 20}))
    assert track.batches == ()
    track = followed((0, {}), (5, {"batches": 2, "rows": 20}), (10, {"batches": 3, "rows": 30, "batch_seconds": 1.0}))
    assert [b.rows for b in track.batches] == [10]


def test_the_micro_batch_that_was_planned_before_a_change_says_nothing() -> None:
    """It runs with the slots that the task had."""
    shown = [(0.0, {}), (5.0, {"batches": 2}), (10.0, {"batches": 3, "rows": 10})]
    changed = [(15.0, {"batches": 4, "rows": 20, "slots": 4}), (20.0, {"batches": 5, "rows": 30, "slots": 4})]
    track = followed(*shown, *changed)
    assert [(b.rows, b.width) for b in track.batches] == [(10, 2), (10, 4)]


def test_what_is_known_of_the_job_outlives_a_restart_of_its_task() -> None:
    """The code is the same, and so is what a row costs."""
    track = followed(
        (0, {}), (5, {"batches": 2}), (10, {"batches": 3, "rows": 10}), (15, {"attempt": "2", "batches": 0})
    )
    assert len(track.batches) == 1
    assert track.unusual


def test_a_task_without_a_micro_batch_for_long_gets_no_rows() -> None:
    """Otherwise its last rate would stand for ever."""
    done = {"batches": 3, "rows": 300}
    track = followed((0, {}), (1, {"batches": 2}), (5, done), (20, done), (34, done))
    assert len(track.batches) == 1
    track = followed((0, {}), (1, {"batches": 2}), (5, done), (36, done))
    assert [b.rows for b in track.batches] == [300, 0]


def test_a_long_micro_batch_is_no_pause() -> None:
    """It runs, and its rows are counted when it ends."""
    done = {"batches": 3, "rows": 300}
    track = followed((0, {}), (1, {"batches": 2}), (5, done), (60, {**done, "running_for": 55.0}))
    assert [b.rows for b in track.batches] == [300]


def test_a_task_beside_others_has_a_part_of_its_slots() -> None:
    """Another task of its group was busy for all of the time: each has one of the two slots, about."""
    tracks: dict[TaskId, Track] = {}
    for at in (0, 5, 10, 15):
        both = [
            reading(name, batches=at, rows=10 * at, busy=float(at), batch_seconds=1.0, batch_rows=10.0)
            for name in ("t", "u")
        ]
        tracks = follow(tracks, JobReading(at=float(at), tasks=tuple(both)))
    assert [b.slots for b in tracks[T].batches] == [2.0, 1.0]


def test_few_of_each_load_are_remembered_for_long() -> None:
    """An hour ago, 100 micro-batches had 100 rows, and one had 5,000: that one is worth more than the 100."""
    old = tuple(batch(float(at), 100, 1.0) for at in range(100))
    large = batch(101.0, 5000, 6.0)
    later = 3600.0
    before = Track(reading(batches=5), later, 0, (*old, large))
    shown = JobReading(at=later + 5, tasks=(reading(batches=6, rows=10, batch_seconds=1.0, batch_rows=10.0),))
    kept = follow({T: before}, shown)[T].batches
    assert large in kept
    assert sum(b.load == 100 for b in kept) == FEW
    assert kept[-1].at - kept[0].at > RECENT
