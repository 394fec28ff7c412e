"""When a session child that is not ready yet is given up."""

from __future__ import annotations

import pytest

from minflinkd.taskmanager.child.start import LONGEST, Starting, Work, begun, observed, slow, unwatched, verdict

MIB = 1 << 20


def working(start: Starting, until: int) -> Starting:
    """Let the child use one second of processor time in every ten seconds."""
    for now in range(int(start.began) + 10, until + 1, 10):
        start = observed(start, Work(cpu=now / 10), now)
    return start


def test_a_child_that_does_nothing_is_given_up_after_the_timeout() -> None:
    """R5."""
    start = begun(90, 0, now=0)
    assert verdict(start, 0.5, 89) is None
    assert verdict(start, 0.5, 90) == "the session was not ready within 90 s, and did nothing for 90 s"


def test_a_child_that_gets_on_is_waited_for_and_told_of() -> None:
    """Starting it anew would only make a busy machine busier (R5)."""
    start = working(begun(90, 0, now=0), until=300)
    assert verdict(start, 1.0, 300) is None
    assert slow(start, 1.0, 89) == ""
    assert "starting for 300 s, longer than 90 s" in slow(start, 3.2, 300)
    assert "3.2 processes want each processor" in slow(start, 3.2, 300)


def test_a_child_that_is_busy_for_ever_is_given_up_in_the_end() -> None:
    """A child that is always busy may be in an endless loop (R5)."""
    start = working(begun(90, 0, now=0), until=900)
    assert verdict(start, 1.0, int(90 * LONGEST) - 1) is None
    assert "busy all the time" in str(verdict(start, 1.0, 90 * LONGEST))


def test_reading_is_progress_and_a_process_that_ended_is_none() -> None:
    """A cold disk leaves the processor idle. When a worker ends, its processor time leaves the sum (R5)."""
    start = observed(begun(90, 0, now=0), Work(cpu=0.1, read=MIB), 50)
    assert (start.got_on, start.steps) == (50, 1)
    start = observed(start, Work(cpu=0.05, read=0), 60)
    assert (start.got_on, start.steps) == (50, 1)


@pytest.mark.parametrize(
    ("work", "step"),
    [
        (Work(10.0, 11 * MIB), True),
        (Work(10.5, 10 * MIB), True),
        (Work(10.4, 11 * MIB - 1), False),  # too little, and it is not forgotten: it counts with the next
        (Work(9.9, 20 * MIB), None),
        (Work(20.0, 10 * MIB - 1), None),
    ],
)
def test_half_a_second_of_work_or_a_mebibyte_read_is_a_step(work: Work, step: bool | None) -> None:
    """Work counts from the last step, or from the last process that ended (None): that is no step (R5)."""
    before = Starting(90, began=1000, got_on=1010, done=Work(10.0, 10 * MIB), steps=2)
    after = {
        True: Starting(90, began=1000, got_on=1050, done=work, steps=3),
        False: before,
        None: Starting(90, began=1000, got_on=1010, done=work, steps=2),
    }
    assert observed(before, work, 1050) == after[step]


def test_times_count_from_the_begin_of_the_start() -> None:
    """The clock may show anything then (R5)."""
    start = begun(90, 0, now=1000)
    assert verdict(start, 1.0, 1089) is None
    assert verdict(start, 1.0, 1090) == "the session was not ready within 90 s, and did nothing for 90 s"
    busy = working(start, until=1900)
    assert verdict(busy, 1.0, 1899) is None
    assert verdict(busy, 1.0, 1900) == "the session was not ready within 900 s, though it was busy all the time"
    assert slow(start, 1.0, 1089) == ""
    assert slow(start, 1.0, 1090).startswith("the session has been starting for 90 s, longer than 90 s ")
    assert slow(start, 1.0, 1090).endswith("and is waited for")
    assert slow(start, 1.1, 1090).endswith("and is waited for; 1.1 processes want each processor")


def test_load_and_failed_starts_lengthen_the_timeout_within_bounds() -> None:
    """If processes queue for the processors, each of them stands still for longer (R5)."""
    assert verdict(begun(90, 0, now=0), 2.0, 179) is None
    assert verdict(begun(90, 0, now=0), 2.0, 180) is not None
    assert verdict(begun(90, 0, now=0), 50.0, 360) is not None
    assert begun(90, 1, now=0).timeout == 180
    assert begun(90, 20, now=0).timeout == 720


def test_a_time_in_which_nobody_looked_is_not_the_childs() -> None:
    """For example, the supervisor itself was stopped (R5)."""
    assert verdict(unwatched(begun(90, 0, now=0), 60), 1.0, 140) is None
    assert unwatched(begun(90, 0, now=1000), 60) == Starting(90, began=1060, got_on=1060)
