"""When a job gets other slots (R62)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from minflinkd.autoscaler.readings import Change
from minflinkd.autoscaler.state import State, Verdict, refused
from tests.unit.autoscaler.jobs import LIMITS, Job


def test_more_rows_get_more_slots_within_half_a_minute() -> None:
    """1,500 rows/s of 2 ms need 3 slots, and 4.5 at the target."""
    job = Job()
    job.learn()
    began = job.now
    decision = job.looks([1500] * 20)
    assert decision.verdict is Verdict.UP
    assert decision.wanted == {"default": 5}
    assert job.now - began <= 45
    assert decision.why.startswith("t gets 1,5")
    assert decision.why.endswith("2 -> 5 slots")


def test_fewer_rows_give_slots_back_when_the_whole_delay_has_passed() -> None:
    """The largest need of 5 minutes counts, not the present one."""
    job = Job(slots=6)
    job.learn()
    job.looks([2000] * 8)
    high = job.now
    decision = job.looks([100] * 100)
    assert decision.verdict is Verdict.DOWN
    assert decision.wanted["default"] < 6
    assert job.now - high >= LIMITS.down_delay


def test_a_peak_within_the_delay_keeps_the_slots() -> None:
    """It comes every 4 minutes."""
    job = Job(slots=4)
    job.learn()
    for _ in range(3):
        assert not job.looks([100] * 40).wanted
        assert not job.looks([1200] * 8).wanted


def test_there_is_no_second_change_in_the_cool_down() -> None:
    """Even if the first one proves too small."""
    job = Job()
    job.learn()
    job.looks([1000] * 20)
    job.apply()
    changed, decision = job.now, job.looks([2500] * 30)
    assert decision.wanted
    assert job.now - changed >= LIMITS.cool_down


def test_the_cool_down_stands_under_another_leader() -> None:
    """Nothing is remembered but the job's last restart, which is in its versions."""
    job = Job(limits=replace(LIMITS, least=4), change=Change(number=7, at=1000.0))
    assert job.look(100).verdict is Verdict.WAITS
    job.looks([100] * 30)
    assert 1060 <= job.now <= 1070


def test_a_change_of_somebody_else_makes_it_begin_anew() -> None:
    """What was learned of another version does not count."""
    job = Job()
    job.learn()
    assert job.state.tracks
    job.change = Change(number=1, at=job.now)
    job.look(100)
    assert all(not track.batches for track in job.state.tracks.values())


def test_nothing_is_decided_while_the_job_must_be_left_alone() -> None:
    """And what was needed meanwhile does not count for the way down."""
    job = Job(slots=8)
    job.learn()
    job.looks([100] * 30)
    job.hold = "a savepoint is being made"
    decision = job.look(100)
    assert (decision.verdict, decision.why, decision.wanted) == (Verdict.WAITS, "a savepoint is being made", {})
    job.hold = ""
    since = job.now
    job.looks([100] * 100)
    assert job.now - since >= LIMITS.down_delay


def test_more_than_max_is_said_and_not_done() -> None:
    """`limited` is what the diagnosis reports."""
    job = Job(slots=8)
    job.learn()
    decision = job.looks([6000] * 10)
    assert decision.verdict is Verdict.LIMITED
    assert "max is 8" in decision.why


@pytest.mark.parametrize(("slots", "wanted"), [(1, 2), (8, 4)])
def test_a_job_outside_its_bounds_is_brought_within(slots: int, wanted: int) -> None:
    """Such as after a hot restart with another file."""
    job = Job(slots=slots, limits=replace(LIMITS, least=2, most=4))
    assert job.look(100).wanted == {"default": wanted}


def test_slots_that_did_not_help_are_not_followed_by_more() -> None:
    """A sink takes the time: with 4 slots instead of 2 the micro-batches take as long as before."""
    job = Job(costs=(0.4, 0.002))
    job.learn()
    job.looks([1000] * 20)
    before = job.slots
    job.apply()
    job.costs = (0.4, 0.002 * job.slots / before)  # of a slot: together they are as quick as before
    decision = job.looks([1000] * 60)
    assert decision.verdict is Verdict.LIMITED
    assert "should have saved" in decision.why


def test_slots_that_cannot_be_had_are_asked_for_again_later() -> None:
    """Until then it says what it wants and what it has."""
    job = Job()
    job.learn()
    decision = job.looks([1500] * 20)
    job.apply(error="no TaskManager has that many")
    asked = job.now
    told = job.look(1500)
    decision = job.looks([1500] * 20)
    assert decision.verdict is Verdict.LIMITED
    assert "wants 5, has 2: no more slots (no TaskManager has that many)" in decision.why
    assert told.wanted == {}
    assert job.looks([1500] * 100).wanted == {"default": 5}
    assert job.now - asked >= 300


def test_what_was_refused_is_not_asked_for_again_so_soon() -> None:
    """Nor are fewer slots, if the job does not take them: 5 minutes pass, and then 10."""
    job = Job(slots=8, limits=replace(LIMITS, most=4))
    asked = []
    for _ in range(200):
        if job.look(100).wanted:
            asked.append(job.now)
            job.state = refused(job.state, "the state does not fit", job.now)
    assert job.last is not None
    assert "not again yet: the state does not fit" in job.last.why
    assert [b - a for a, b in pairwise(asked)][:2] == [300, 600]


def test_slots_that_are_free_beside_its_own_are_taken_at_once() -> None:
    """It wants 5, and its TaskManager has one more than its two."""
    job = Job()
    job.learn()
    job.looks([1500] * 20)
    job.apply(error="no TaskManager has that many")
    job.room = {"default": 3}
    assert job.looks([1500] * 40).wanted == {"default": 3}


def test_a_width_that_was_too_narrow_is_not_tried_again_at_that_rate() -> None:
    """Micro-batches that are alike do not say so, but they did before."""
    job = Job(slots=4)
    job.learn()
    job.looks([300] * 70)
    job.apply()
    narrow = job.slots
    assert narrow < 4
    job.looks([1200] * 30)
    job.apply()
    floor = job.state.floors["default"]
    assert floor.slots == narrow
    job.state = replace(job.state, floors={"default": replace(floor, rate=300.0)})
    assert not job.looks([300] * 200).wanted.get("default", 9) <= narrow


def test_short_micro_batches_that_are_alike_are_tried_with_fewer_slots() -> None:
    """Nothing else can show what their rows cost."""
    job = Job(slots=4, costs=(0.4, 0.0001))
    decision = job.looks([100] * 80)
    assert (decision.verdict, decision.wanted) == (Verdict.DOWN, {"default": 3})
    idle = Job(slots=4, costs=(0.4, 0.0001))
    idle.more = {"held_back": True}
    assert not idle.looks([100] * 80).wanted


def test_a_refusal_before_anything_has_happened_is_one() -> None:
    """Nothing was asked for, so that there is nothing to remember."""
    assert refused(State(), "no", 1.0) == State()
