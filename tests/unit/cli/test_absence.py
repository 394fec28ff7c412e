"""Whether a drained TaskManager that is not listed has ended (A15b)."""

from __future__ import annotations

import pytest

from minflinkd.cli.absence import Look, Verdict, Watch, look_at

PATIENCE = 10.0
SEEN = Watch(epoch=1, asked=1)


def told(watch: Watch, *looks: tuple[float, Look]) -> list[Verdict]:
    verdicts = []
    for now, look in looks:
        watch, verdict = look_at(watch, look, now, PATIENCE)
        verdicts.append(verdict)
    return verdicts


def test_it_has_ended_when_the_leader_that_listed_it_does_not_list_it_any_more() -> None:
    """That leader has taken its end to notice (A15b)."""
    assert told(SEEN, (0, Look(1, drained=True)), (1, Look(1, None))) == [Verdict.THERE, Verdict.ENDED]


def test_under_a_later_leader_it_has_ended_if_it_does_not_register_in_time() -> None:
    """It does not know this leader yet, or is gone: only time tells (A15b)."""
    absent = Look(2, None)
    assert told(SEEN, (0, absent), (10, absent), (10.1, absent)) == [Verdict.UNKNOWN, Verdict.UNKNOWN, Verdict.ENDED]


def test_each_leader_gives_it_the_whole_time() -> None:
    """Leaders may change in quick succession (A15b, A11)."""
    found = told(SEEN, (0, Look(2, None)), (9, Look(3, None)), (18, Look(3, None)), (20, Look(3, None)))
    assert found == [Verdict.UNKNOWN, Verdict.UNKNOWN, Verdict.UNKNOWN, Verdict.ENDED]


def test_a_later_leader_that_has_listed_it_decides_alone() -> None:
    """From then on its word is enough (A15b)."""
    assert told(SEEN, (0, Look(2, None)), (1, Look(2, drained=True)), (2, Look(2, None)))[-1] is Verdict.ENDED


def test_it_is_there_as_long_as_its_process_is() -> None:
    """Also if it has left the leader, or has yet to register with the next one (A15b)."""
    lives = [(now, Look(epoch, None, lives=True)) for now, epoch in ((0, 1), (5, 2), (50, 2))]
    assert told(SEEN, *lives) == [Verdict.UNKNOWN] * 3
    assert told(SEEN, *lives, (51, Look(2, None)), (62, Look(2, None)))[3:] == [Verdict.UNKNOWN, Verdict.ENDED]


@pytest.mark.parametrize(
    ("asked", "verdict"), [(1, Verdict.DRAIN), (0, Verdict.DRAIN), (2, Verdict.UNDONE)], ids=["before", "never", "now"]
)
def test_one_that_is_not_drained_is_asked_for_again_unless_somebody_has_undone_it(asked: int, verdict: Verdict) -> None:
    """The leader that took the request may have died before it told the TaskManager (A15b)."""
    assert told(Watch(epoch=1, asked=asked), (0, Look(2, drained=False))) == [verdict]


def test_every_watch_ends_if_leaders_do_not_change_for_ever() -> None:
    """Whatever it has seen before, absence under one leader ends it after the patience (A15b)."""
    for watch in (SEEN, Watch(5, 0), Watch(1, 1, missing=(2, 0.0)), Watch(0, 0, missing=(7, 100.0))):
        assert told(watch, (100, Look(7, None)), (110.1, Look(7, None)))[-1] is Verdict.ENDED
