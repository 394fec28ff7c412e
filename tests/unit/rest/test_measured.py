"""What a sample says of a job, compared with those before it (E16)."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from minflinkd.checkpoint.causes import CheckpointKind, FailureCause
from minflinkd.checkpoint.statistics import CheckpointRecord, CheckpointStatistics, CheckpointStatus
from minflinkd.metrics.history.book import LONGEST_TEXT, MOST_MARKS, HistoryBook, Mark, MarkKind
from minflinkd.metrics.history.series import JOB, TASK
from minflinkd.rest.history.marks import marks_of
from minflinkd.rest.history.measured import JobMeter
from minflinkd.rpc.jobs import ExecutionState, HotRestart, JobDetails, JobStatus, RecoveryRecord, RestartState
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import AttemptId, JobId
from tests.unit.rest.checkpoint_statistics import ORDINARY
from tests.unit.rest.parties import FAILURE, STARTED, details

NOW = STARTED + 60_000


def with_metrics(
    job: JobDetails, *, attempt: str = "c", state: ExecutionState | None = None, **values: Any
) -> JobDetails:
    first, *others = job.tasks
    changed = replace(
        first,
        metrics=replace(first.metrics, **values),
        attempt_id=AttemptId(attempt * 32),
        state=state or first.state,
    )
    return replace(job, tasks=(changed, *others))


def task(meter: JobMeter, job: JobDetails, now_ms: int) -> dict[str, float | None]:
    return meter.measure(job, None, now_ms).tasks_by_name()["flights"]


def test_rows_of_a_long_micro_batch_are_spread_over_it() -> None:
    """A batch of 15 s counts its rows at its end; a chart of 0, 0 and three times too much would say something else."""
    meter, job = JobMeter(), details()
    rates = []
    for step in range(10):
        rows = 300 * (step // 3)
        one = with_metrics(job, rows_in=rows, batch_ms=15_000.0, batch_id=step // 3)
        rates.append(task(meter, one, NOW + 5000 * step)["rows_in_per_second"])
    assert rates[0] is None
    assert rates[3:] == [20.0] * 7


def test_an_attempt_that_began_since_the_last_sample_counts_from_0() -> None:
    """It goes back to a checkpoint: its counters are smaller than those of the one before."""
    meter, job = JobMeter(), details()
    task(meter, with_metrics(job, rows_in=1000), NOW)
    stopped = with_metrics(job, state=ExecutionState.SCHEDULED)
    assert task(meter, stopped, NOW + 5000)["rows_in_per_second"] == 0.0
    assert task(meter, stopped, NOW + 5000)["state_rows"] is None
    found = task(meter, with_metrics(job, attempt="d", rows_in=50), NOW + 10_000)
    assert found["rows_in_per_second"] == 10.0


def test_nothing_is_known_of_tasks_that_are_still_looked_for() -> None:
    """After a takeover they run on, and nobody has heard of them: no 0 that is none."""
    meter, job = JobMeter(), replace(details(), status=JobStatus.RECONCILING)
    found = meter.measure(job, None, NOW)
    assert found.tasks == {}
    assert found.job_by_name()["rows_in_per_second"] is None
    running = replace(job, status=JobStatus.RUNNING)
    assert task(meter, running, NOW + 5000)["rows_in_per_second"] is None


def test_backpressure_is_a_share_of_the_time_also_while_nothing_is_told_of_it() -> None:
    meter, job = JobMeter(), details()
    told = [(False, 0.0), (True, 2000.0), (True, 2000.0), (False, 9500.0), (False, 9500.0)]
    shares = [
        task(meter, with_metrics(job, backpressured=held, backpressured_ms=ms), NOW + 5000 * n)["backpressured"]
        for n, (held, ms) in enumerate(told)
    ]
    assert shares == [None, 0.4, 1.0, 0.5, 0.0]


def test_values_stand_where_their_names_say() -> None:
    found = JobMeter().measure(details(), ORDINARY, NOW)
    assert len(found.job) == len(JOB.series)
    assert all(len(values) == len(TASK.series) for values in found.tasks.values())
    assert found.job_by_name()["restarts"] == 1
    last = ORDINARY.latest_completed
    assert last is not None
    assert found.job_by_name()["checkpoint_bytes"] == last.bytes_full


def test_what_happened_becomes_marks() -> None:
    """A restart with a phase `running` is over, and a job that grows has not failed."""
    job = replace(
        details(failures=(FAILURE,)),
        recoveries=(
            RecoveryRecord(failed_ms=NOW, cause="TaskManager lost", checkpoint_id=3, phases={"running": 1.5}),
            RecoveryRecord(failed_ms=NOW + 9000, cause="rescale: 2 -> 4", checkpoint_id=4),
        ),
        hot_restarts=(
            HotRestart(number=1, state=RestartState.COMPLETED, requested_ms=NOW + 20_000, phases={"running": 0.6}),
        ),
    )
    found = {(mark.kind.value, mark.at, mark.text) for mark in marks_of(job, CheckpointStatistics())}
    assert found == {
        ("submitted", STARTED, "carrier-delays was submitted"),
        ("exception", FAILURE.timestamp_ms, "flights -> delays: user-code: delays failed"),
        ("restart", NOW, "TaskManager lost"),
        ("recovered", NOW + 1500, "after 1.5 s from checkpoint 3"),
        ("rescale", NOW + 9000, "2 -> 4"),
        ("hot-restart", NOW + 20_000, "hot restart 1: completed, running after 0.6 s"),
    }


def test_failed_checkpoints_and_savepoints_are_marks() -> None:
    """A checkpoint that went well is none: there are too many, and they are on the chart."""
    done = CheckpointRecord(
        checkpoint_id=1, kind=CheckpointKind.PERIODIC, status=CheckpointStatus.COMPLETED, triggered_ms=NOW, num_tasks=0
    )
    savepoint = replace(done, checkpoint_id=2, kind=CheckpointKind.SAVEPOINT, triggered_ms=NOW + 1)
    failed = replace(
        done,
        checkpoint_id=3,
        status=CheckpointStatus.FAILED,
        failed_ms=NOW + 2,
        cause=FailureCause.EXPIRED,
        error=ErrorInfo(code="checkpoint-expired", message="it took longer than 10 s\nand so on"),
    )
    statistics = CheckpointStatistics(history=(failed, savepoint, done), latest_failed=failed)
    found = {(mark.at, mark.kind.value, mark.text) for mark in marks_of(details(), statistics)}
    assert {one for one in found if one[0] in (NOW, NOW + 1, NOW + 2)} == {
        (NOW + 1, "savepoint", "savepoint 2, 0.0 s"),
        (NOW + 2, "checkpoint-failed", "checkpoint 3: it took longer than 10 s"),
    }


def test_marks_are_bounded_and_the_last_word_on_one_counts() -> None:
    book = HistoryBook()
    past = book.heard_of(JobId("a" * 32), "a", NOW)
    assert past is not None
    for number in range(MOST_MARKS + 50):
        past.mark([Mark(number, MarkKind.EXCEPTION, "x" * 1000)], NOW)
    past.mark([Mark(MOST_MARKS, MarkKind.EXCEPTION, "better known")], NOW)
    marks = past.in_order()
    assert (len(marks), marks[0].at) == (MOST_MARKS, 50)
    assert {len(mark.text) for mark in marks if mark.at != MOST_MARKS} == {LONGEST_TEXT}
    assert next(mark for mark in marks if mark.at == MOST_MARKS).text == "better known"


def test_jobs_that_ended_make_room_and_are_forgotten_after_a_day() -> None:
    """Those that run stay, and what has no room is counted."""
    book, now = HistoryBook(most_tracks=4), NOW
    for name in "abcd":
        assert book.heard_of(JobId(name * 32), name, now)
        now += 1000
    assert book.heard_of(JobId("e" * 32), "e", now) is None
    now += 120_000
    assert book.heard_of(JobId("d" * 32), "d", now)
    assert book.heard_of(JobId("e" * 32), "e", now)
    assert {past.name for past in book.jobs.values()} == {"b", "c", "d", "e"}
    past = book.jobs[JobId("e" * 32)]
    book.put(past, now // 5000, [1.0] * len(JOB.series), {"t": [1.0] * len(TASK.series)})
    assert {past.name for past in book.jobs.values()} == {"c", "d", "e"}
    assert book.tracks == 4
    book.forget(now + 86_400_000 - 6000)
    assert book.tracks == 3
    book.forget(now + 86_400_000)
    assert (book.jobs, book.tracks) == ({}, 0)
