"""Which lines of a shared TaskManager's log belong to a job."""

from __future__ import annotations

import json

from minflinkd.cli.job_lines import JobLines

JOB, OTHER = "a" * 32, "b" * 32
ATTEMPT, LATER, FOREIGN = "1" * 32, "2" * 32, "3" * 32


def record(event: str, **fields: str) -> bytes:
    return json.dumps({**fields, "event": event, "timestamp": "2026-01-01T00:00:00Z"}).encode() + b"\n"


def test_a_line_concerns_the_job_that_it_names() -> None:
    lines = [record("one", job=JOB), record("two", job=OTHER), record("the session is ready")]
    assert list(JobLines(JOB).concern(lines)) == lines[:1]


def test_a_deployment_tells_whose_the_attempts_are() -> None:
    """Earlier attempts are known from their deployments; the job's details no longer name them."""
    lines = [
        record("a task is deployed", job=JOB, attempt=ATTEMPT),
        record("a task is deployed", job=OTHER, attempt=FOREIGN),
        record("a snapshot failed", attempt=ATTEMPT),
        record("a snapshot failed", attempt=FOREIGN),
        record("a task ends", attempt=LATER),
    ]
    own = JobLines(JOB, [LATER])
    assert list(own.concern(lines)) == [lines[0], lines[2], lines[4]]
    assert own.attempts == {ATTEMPT, LATER}


def test_a_stack_trace_goes_with_the_line_before_it() -> None:
    lines = [
        b"2026-01-01T00:00:00.123Z WARN Query: attempts/" + ATTEMPT.encode() + b"/checkpoint failed\n",
        b"java.lang.RuntimeException: ours\n",
        b"\tat Foo.bar\n",
        b"2026-01-01T00:00:01.000Z WARN Query: attempts/" + FOREIGN.encode() + b"/checkpoint failed\n",
        b"java.lang.RuntimeException: theirs\n",
    ]
    assert list(JobLines(JOB, [ATTEMPT]).concern(lines)) == lines[:3]


def test_what_user_code_prints_is_shown() -> None:
    """User code's output names no job; without it, a job's own output would be missing from its log."""
    lines = [b"printed at first\n", record("two", job=OTHER), b"printed later\n"]
    assert list(JobLines(JOB).concern(lines)) == [lines[0], lines[2]]


def test_a_log_for_people_is_read_as_well() -> None:
    """Logs in `log.format: console` are read too, in colour and without."""
    plain = b"2026-01-01T00:00:00.000000Z [info     ] a task is deployed attempt=%s job=%s task=out\n"
    time, attempt = b"\x1b[2m2026-01-01T00:00:00.000000Z\x1b[0m", b"\x1b[36mattempt\x1b[0m=\x1b[35m%s\x1b[0m"
    coloured = time + b" [\x1b[33mwarning\x1b[0m] a snapshot failed " + attempt + b"\n"
    lines = [
        plain % (ATTEMPT.encode(), JOB.encode()),
        plain % (FOREIGN.encode(), OTHER.encode()),
        coloured % ATTEMPT.encode(),
        coloured % FOREIGN.encode(),
    ]
    assert list(JobLines(JOB).concern(lines)) == [lines[0], lines[2]]
