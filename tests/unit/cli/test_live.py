"""What `minflinkd watch` shows: from events to lines of text (E16)."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace
from rich.console import Console, RenderableType

from minflinkd.cli import live_changes, live_view
from minflinkd.cli.live_state import KEPT, ClusterState, JobState, Rates
from minflinkd.rest.exceptions import exceptions_of
from minflinkd.rest.jobs import job_info
from minflinkd.rest.schemas import JobSummary, RepeatedRestarts, SummaryExtras, TaskCounts
from minflinkd.rpc.jobs import JobStatus
from tests.unit.rest.parties import FAILED, RUNNING, STARTED, details, failing

JOB = JobSummary(
    jid=RUNNING,
    name="carrier-delays",
    start_time=STARTED,
    end_time=-1,
    duration=9000,
    state="RUNNING",
    last_modification=STARTED,
    tasks=TaskCounts(total=2, running=2),
    minflinkd=SummaryExtras(on_trial=False, restarts=1),
)
BROKEN = replace(
    JOB,
    jid=FAILED,
    name="clicks-with-a-name-that-is-far-too-long-for-the-edge-of-a-narrow-terminal",
    start_time=STARTED - 1,
    minflinkd=SummaryExtras(
        on_trial=False,
        restarts=7,
        restarting_repeatedly=RepeatedRestarts(
            failures=7,
            since=STARTED,
            timestamp=STARTED,
            code="user-code",
            message="ValueError: seven is poison",
            task="out",
            task_name="out",
            taskmanager_id=None,
        ),
    ),
)


def fed(*events: tuple[str, object]) -> ClusterState:
    state = ClusterState()
    for name, value in events:
        state = state.after(name, msgspec.json.encode(value))
    return state


def drawn(picture: RenderableType, width: int = 80) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as text:
        console.print(picture)
    return [line.rstrip() for line in text.get().splitlines()]


def test_a_cluster_fits_into_80_columns_and_who_needs_somebody_comes_first() -> None:
    sample = {"at": 1, "cluster": {}, "jobs": {RUNNING: {"rows_in_per_second": 1500.0, "checkpoint_duration": 0.25}}}
    state = fed(("job", JOB), ("job", BROKEN), ("sample", sample))
    lines = drawn(live_view.of_cluster(state, url="http://a:8081", width=80, rows=24))
    assert max(map(len, lines)) <= 80
    assert lines[2].startswith("! clicks-with-a-name")
    table = next(i for i, line in enumerate(lines) if line.startswith("JOB "))
    assert lines[table].split() == ["JOB", "STATE", "TASKS", "ROWS/S", "CKPT", "RST"]
    assert lines[table + 1].startswith("clicks-with-a-name")
    assert lines[table + 2].split() == ["carrier-delays", "RUNNING", "2/2", "1.5k", "250", "ms", "1"]
    assert lines[-1] == "q: leave"


def test_a_wide_terminal_has_a_chart_and_a_low_one_leaves_jobs_out() -> None:
    many = [("job", replace(JOB, jid=f"{number:032x}", name=f"job-{number}")) for number in range(50)]
    lines = drawn(live_view.of_cluster(fed(*many), url="u", width=120, rows=20, note="no connection for 3 s"), 120)
    assert len(lines) <= 20
    assert any("LAST MINUTES" in line for line in lines)
    assert any(line.startswith("... and ") for line in lines)
    assert lines[-1].endswith("no connection for 3 s")


def test_the_complete_state_after_a_reset_replaces_what_was_known() -> None:
    state = fed(("job", JOB), ("reset", {}), ("job", BROKEN), ("of-a-later-version", {"x": 1}))
    assert list(state.jobs) == [FAILED]
    assert not fed(("job", JOB), ("job-gone", {"jid": RUNNING})).jobs


def test_only_the_last_rates_are_kept() -> None:
    rates = Rates()
    for number in range(3 * KEPT):
        rates = rates.and_then(float(number))
    assert (len(rates.values), rates.last) == (KEPT, 3 * KEPT - 1)


@pytest.mark.parametrize(
    ("values", "bars"),
    [((0.0, 5.0, 10.0), "▁▅█"), ((None, 10.0), " █"), ((0.0, None), "▁ "), ((), "")],
)
def test_a_chart_is_relative_to_its_largest_value(values: tuple[float | None, ...], bars: str) -> None:
    """What is not known is a gap, not a zero."""
    assert live_view.sparkline(Rates(values), 10) == bars


def of_job(job: object, exceptions: object) -> JobState:
    state = JobState().after("job", msgspec.json.encode(job)).after("exceptions", msgspec.json.encode(exceptions))
    sample = {"at": 1, "job": {}, "tasks": {"flights": {"rows_in_per_second": 12.0, "backpressured": 0.75}}}
    return state.after("sample", msgspec.json.encode(sample))


def test_a_job_shows_its_tasks_and_its_last_failure_in_80_columns() -> None:
    job = failing()
    state = of_job(job_info(job, STARTED + 9000), exceptions_of(job, limit=20))
    lines = drawn(live_view.of_job(state, url="u", width=80, rows=24))
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("carrier-delays  RUNNING  9.0 s")
    row = next(line for line in lines if line.startswith("flights -> delays"))
    assert row.split()[3:] == ["RUNNING", "12", "-", "75%", "-", "-"]
    assert any("7 failures in a row: user-code: ValueError: seven is poison" in line for line in lines)


def test_before_the_first_event_nothing_is_invented() -> None:
    assert "waiting for the daemon" in drawn(live_view.of_job(JobState(), url="u", width=80, rows=24))[0]
    assert "waiting for the daemon" in drawn(live_view.of_cluster(ClusterState(), url="u", width=80, rows=24))[0]


def test_without_a_terminal_each_change_is_a_line() -> None:
    before = fed(("job", JOB))
    after = before.after("job", msgspec.json.encode(replace(JOB, state="RESTARTING", tasks=TaskCounts(total=2))))
    assert list(live_changes.of_cluster(ClusterState(), before)) == [
        "carrier-delays (aaaaaaaa): RUNNING, tasks 2/2, restarts 1"
    ]
    assert list(live_changes.of_cluster(before, after)) == [
        "carrier-delays (aaaaaaaa): RESTARTING, tasks 0/2, restarts 1"
    ]
    same = after.after("job", msgspec.json.encode(replace(after.jobs[RUNNING], duration=99_999)))
    assert list(live_changes.of_cluster(after, same)) == [], "time passes for every job"


def test_a_failure_of_a_job_is_a_line_once() -> None:
    ended = details(FAILED, JobStatus.FAILED)
    job = job_info(failing(), STARTED + 9000)
    quiet = of_job(job, exceptions_of(ended, limit=20))
    failed = quiet.after("exceptions", msgspec.json.encode(exceptions_of(failing(), limit=20)))
    lines = list(live_changes.of_job(quiet, failed))
    assert all(line.startswith("failure") for line in lines)
    assert list(live_changes.of_job(failed, failed)) == []
