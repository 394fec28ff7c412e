"""Requests that are repeated until their outcome is known, or their time is over (A5)."""

from __future__ import annotations

from typing import Any

import pytest

from minflinkd.jobmaster.errands import Errand, Errands
from minflinkd.rpc.messages import CancelTask, Done
from minflinkd.rpc.network import Address, Fenced, RpcTimeout, Unreachable
from minflinkd.rpc.party import Answered, Ask, Outcome, Refused, Unknown
from minflinkd.runtime.ids import AttemptId, JobId, LeaderId

TM = Address("taskmanager/tm-1")
LEADER = LeaderId("0" * 32)
REQUEST = CancelTask(job_id=JobId("1" * 32), attempt_id=AttemptId("2" * 32))
NO_ANSWER = Unknown(RpcTimeout("no answer"))


def errand(about: Any = "a cancellation", deadline: float = 10.0) -> Errand:
    return Errand(TM, REQUEST, deadline, about)


def new_errands() -> Errands:
    return Errands(patience=2.5, fence=LEADER)


@pytest.mark.parametrize(("now", "timeout"), [(0.0, 2.5), (7.5, 2.5), (9.0, 1.0), (9.875, 0.125), (9.95, 0.1)])
def test_a_try_takes_no_longer_than_the_patience_or_the_time_that_is_left(now: float, timeout: float) -> None:
    """The last try still gets a tenth of a second."""
    assert new_errands().ask(errand(), now) == Ask(TM, REQUEST, timeout, LEADER, about=errand())


@pytest.mark.parametrize("outcome", [Answered(Done()), Refused(Fenced("a later leader"))])
def test_an_errand_ends_with_its_first_answer(outcome: Outcome) -> None:
    """A refusal is an answer, too."""
    errands = new_errands()
    assert errands.settled(errand(), outcome, 1.0)
    assert errands.next_due() is None


@pytest.mark.parametrize("outcome", [NO_ANSWER, Unknown(Unreachable("nobody there"))])
def test_an_errand_with_an_unknown_outcome_is_tried_again_after_half_a_second(outcome: Unknown) -> None:
    errands = new_errands()
    assert not errands.settled(errand("first"), outcome, 1.0)
    assert not errands.settled(errand("second"), outcome, 1.25)
    assert errands.next_due() == 1.5
    assert errands.take_due(1.4) == ()
    assert errands.take_due(1.5) == (errand("first"),)
    assert errands.next_due() == 1.75
    assert errands.take_due(2.0) == (errand("second"),)
    assert (errands.next_due(), errands.take_due(3.0)) == (None, ())


@pytest.mark.parametrize(("now", "ends"), [(9.25, False), (9.5, True), (12.0, True)])
def test_an_errand_ends_if_its_next_try_would_not_begin_before_its_deadline(now: float, ends: bool) -> None:
    assert new_errands().settled(errand(), NO_ANSWER, now) is ends


def test_a_pointless_errand_is_dropped_and_the_others_are_tried_when_they_are_due() -> None:
    errands = new_errands()
    for about, now in (("old", 1.0), ("new", 2.0)):
        errands.settled(errand(about), NO_ANSWER, now)
    assert errands.drop(lambda e: e.about == "old") == (errand("old"),)
    assert errands.next_due() == 2.5
    assert errands.drop(lambda e: e.about == "old") == ()
    assert errands.take_due(2.5) == (errand("new"),)
