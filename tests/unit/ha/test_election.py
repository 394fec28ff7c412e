"""The election as one daemon sees it: the pure machine (A11)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minflinkd.ha import election as e
from minflinkd.ha.election import Election, Phase, Timing
from minflinkd.runtime.machine import InvariantViolated

TIMING = Timing(lease=4.0, renewal=1.0)


class Daemon:
    """One machine, with what it has commanded."""

    def __init__(self) -> None:
        self.state = Election(TIMING)
        self.commands: list[e.Command] = []

    def feed(self, event: e.Event, now: float) -> tuple[e.Command, ...]:
        self.state, commands = e.step(self.state, event, now)
        e.check_invariants(self.state)
        self.commands += commands
        return commands

    def tick(self, now: float) -> tuple[e.Command, ...]:
        return self.feed(e.Tick(), now)


def leading(at: float = 10.0) -> Daemon:
    """Return a daemon that leads with epoch 7, as the service confirmed to a question sent at `at`."""
    one = Daemon()
    one.tick(0.0)
    one.feed(e.Joined(1), 1.0)
    one.feed(e.First(1), 2.0)
    assert one.feed(e.Recorded(1, 7, asked_at=at), at) == (e.Lead(7),)
    return one


def test_a_daemon_joins_waits_for_its_turn_and_leads() -> None:
    """The way from outside to the lead, one request at a time (A11)."""
    one = Daemon()
    assert one.tick(0.0) == (e.Join(1),)
    assert one.feed(e.Joined(1), 0.5) == ()
    assert (one.state.phase, one.state.next_due) == (Phase.STANDBY, None)
    assert one.feed(e.First(1), 9.0) == (e.Record(1),)
    assert one.feed(e.Recorded(1, 3, asked_at=9.0), 9.1) == (e.Lead(3),)
    assert (one.state.may_act(9.2), one.state.epoch) == (True, 3)


def test_a_lease_counts_from_the_sending_of_the_question() -> None:
    """The service may have heard it at once, and have waited since then. The answer says nothing of later (A11)."""
    one = leading(at=10.0)
    one.tick(11.0)
    one.feed(e.Confirmed(1, asked_at=11.0), 13.9)
    assert (one.state.may_act(14.9), one.state.may_act(15.0)) == (True, False)


def test_a_record_that_took_longer_than_a_lease_is_asked_for_again() -> None:
    """At the end of such a wait another daemon may lead already (A11)."""
    one = Daemon()
    one.tick(0.0)
    one.feed(e.Joined(1), 1.0)
    one.feed(e.First(1), 2.0)
    assert one.feed(e.Recorded(1, 3, asked_at=2.0), 6.0) == (e.Record(1),)
    assert (one.state.phase, one.state.may_act(6.0)) == (Phase.CANDIDATE, False)


def test_a_connection_that_comes_back_in_time_costs_nothing() -> None:
    """Unknown is not lost (A11)."""
    one = leading(at=10.0)
    assert one.feed(e.Disconnected(), 10.5) == ()
    assert (one.state.phase, one.state.may_act(13.9)) == (Phase.SUSPENDED, True)
    one.tick(11.0)
    one.feed(e.Unanswered(1), 11.5)
    assert one.tick(12.5) == (e.Confirm(1),)
    assert one.feed(e.Confirmed(1, asked_at=12.5), 12.6) == ()
    assert (one.state.phase, one.state.may_act(16.0)) == (Phase.LEADING, True)


def test_a_leader_whose_question_is_not_answered_asks_again_soon() -> None:
    """Its lease counts from the question before, so a whole renewal interval is too long to wait (A11)."""
    one = leading(at=10.0)
    one.tick(11.0)
    one.feed(e.Unanswered(1), 13.0)
    assert one.state.next_due == 13.25
    assert one.tick(13.25) == (e.Confirm(1),)
    one.feed(e.Confirmed(1, asked_at=13.25), 13.5)
    assert one.state.may_act(17.0)


def test_a_leader_without_answers_stops_when_its_lease_ends() -> None:
    """Unknown is not held either. The machine wants to be woken at that moment (A11)."""
    one = leading(at=10.0)
    one.tick(11.0)
    assert one.state.next_due == 14.0
    down, leave = one.tick(14.0)
    assert isinstance(down, e.StepDown)
    assert leave == e.Leave(1)  # nobody has to wait until it has closed everything
    assert "has not answered for 4.0 s" in down.reason
    assert not one.state.may_act(14.0)


def test_a_process_that_wakes_up_after_its_lease_does_not_act_on_a_late_answer() -> None:
    """It was stopped for a minute. The answer that it finds first was true a minute ago (A11)."""
    one = leading(at=10.0)
    one.tick(11.0)
    assert not one.state.may_act(71.0)
    down, leave = one.feed(e.Confirmed(1, asked_at=11.0), 71.0)
    assert isinstance(down, e.StepDown)
    assert leave == e.Leave(1)
    assert one.state.phase is Phase.LOST


@pytest.mark.parametrize(
    ("event", "now", "commands"),
    [
        (e.Tick(), 14.0, (e.StepDown("the coordination service has not answered for 4.0 s"), e.Leave(1))),
        (e.Gone(1, "expired"), 12.0, (e.StepDown("expired"),)),
        (e.Resigned("handover"), 12.0, (e.StepDown("handover"), e.Leave(1))),
    ],
)
def test_a_leader_without_a_connection_stops_like_any_other(
    event: e.Event, now: float, commands: tuple[e.Command, ...]
) -> None:
    """It acts until its lease ends, and no longer than it may or wants to (A11)."""
    one = leading(at=10.0)
    one.feed(e.Disconnected(), 10.5)
    assert one.state.next_due == 11.0
    one.tick(11.0)
    assert (one.state.next_due, one.state.may_act(13.9)) == (14.0, True)
    assert one.feed(event, now) == commands
    assert (one.state.phase, one.state.may_act(now)) == (Phase.LOST, False)


def test_an_expired_session_ends_a_leadership_at_once() -> None:
    """Another daemon may lead already (A11)."""
    one = leading()
    assert one.feed(e.Gone(1, "expired"), 10.1) == (e.StepDown("expired"),)
    assert one.feed(e.SteppedDown(), 10.2) == ()
    assert one.tick(10.3) == ()  # others first
    assert one.tick(11.2) == (e.Join(2),)


def test_nobody_joins_again_before_it_has_stepped_down() -> None:
    """What ran as a leader must be closed before the next leadership begins (A11)."""
    one = leading()
    one.feed(e.Gone(1, "expired"), 10.1)
    assert one.tick(100.0) == ()
    assert one.state.next_due is None


def test_a_leader_that_resigns_lets_others_lead() -> None:
    """A part of it did not start, for example. They need not wait until it has closed the others."""
    one = leading()
    assert one.feed(e.Resigned("no disk"), 10.1) == (e.StepDown("no disk"), e.Leave(1))


def test_what_is_said_of_an_earlier_claim_changes_nothing() -> None:
    """Answers may come late."""
    one = leading()
    one.feed(e.Gone(1, "expired"), 10.1)
    one.feed(e.SteppedDown(), 10.2)
    one.tick(12.0)
    one.feed(e.Joined(2), 12.1)
    before = one.state
    for late in (e.First(1), e.Recorded(1, 9, 12.0), e.Gone(1, "expired"), e.Joined(1), e.Unanswered(1)):
        assert one.feed(late, 12.2) == ()
    assert one.state == before


def test_a_failed_request_is_repeated_after_a_pause_in_every_phase() -> None:
    """The service may be away at the start, and at any time later."""
    one = Daemon()
    one.tick(0.0)
    one.feed(e.Unanswered(1), 1.0)
    assert (one.tick(1.9), one.tick(2.0)) == ((), (e.Join(2),))
    one.feed(e.Joined(2), 3.0)
    one.feed(e.First(2), 4.0)
    one.feed(e.Unanswered(2), 5.0)
    assert one.tick(6.0) == (e.Record(2),)


def test_a_leader_asks_once_in_each_renewal_interval_whether_it_still_leads() -> None:
    """The first time one interval after it began to lead, then one interval after each answer (A11)."""
    one = leading(at=10.0)
    assert (one.state.next_due, one.tick(10.9), one.tick(11.0)) == (11.0, (), (e.Confirm(1),))
    assert one.tick(11.3) == (), "one question at a time"
    one.feed(e.Confirmed(1, asked_at=11.0), 11.4)
    assert (one.state.next_due, one.tick(12.3), one.tick(12.4)) == (12.4, (), (e.Confirm(1),))


def test_an_answer_to_an_earlier_question_does_not_shorten_a_lease() -> None:
    """Answers may overtake each other (A11)."""
    one = leading(at=10.0)
    one.tick(11.0)
    one.feed(e.Confirmed(1, asked_at=11.0), 11.2)
    one.feed(e.Confirmed(1, asked_at=10.5), 11.3)
    assert one.state.lease_ends == 15.0


@pytest.mark.parametrize("first", [False, True], ids=["standing by", "first, but not recorded"])
@pytest.mark.parametrize("event", [e.Gone(1, "expired"), e.Resigned("no disk")], ids=["gone", "resigned"])
def test_a_daemon_without_its_claim_joins_again_after_a_pause(first: bool, event: e.Event) -> None:
    """Nothing is to be closed, as it did not lead (A11)."""
    one = Daemon()
    one.tick(0.0)
    one.feed(e.Joined(1), 1.0)
    if first:
        one.feed(e.First(1), 2.0)
    assert one.feed(event, 3.0) == ()
    assert (one.state.phase, one.tick(3.9), one.tick(4.0)) == (Phase.OUTSIDE, (), (e.Join(2),))


@pytest.mark.parametrize("event", [e.Gone(1, "expired"), e.Resigned("no disk")], ids=["gone", "resigned"])
def test_a_leadership_ends_only_once(event: e.Event) -> None:
    """What ran for it is being closed already, and the pause before the next claim begins after that (A11)."""
    one = leading()
    one.feed(e.Gone(1, "expired"), 10.1)
    assert (one.feed(event, 10.2), one.state.phase) == ((), Phase.LOST)


@pytest.mark.parametrize(
    ("state", "wrong"),
    [
        (Election(TIMING, Phase.LEADING, due=1.0), "a leader has no epoch"),
        (Election(TIMING, Phase.SUSPENDED, due=1.0), "a leader has no epoch"),
        (Election(TIMING, Phase.OUTSIDE, due=None), "OUTSIDE waits for nothing"),
        (Election(TIMING, Phase.CANDIDATE, due=None), "CANDIDATE waits for nothing"),
        (Election(TIMING, Phase.LEADING, epoch=1, due=None), "LEADING waits for nothing"),
        (Election(TIMING, Phase.LEADING, epoch=1, asking=True, due=1.0), "LEADING asks, and is to ask again"),
        (Election(TIMING, Phase.STANDBY, due=1.0), "STANDBY asks for something"),
        (Election(TIMING, Phase.STANDBY, asking=True, due=None), "STANDBY asks for something"),
        (Election(TIMING, Phase.LOST, epoch=1, due=1.0), "LOST asks for something"),
        (Election(TIMING, Phase.LOST, epoch=1, asking=True, due=None), "LOST asks for something"),
    ],
)
def test_a_state_that_must_not_be_is_named(state: Election, wrong: str) -> None:
    """Each would end in a daemon that waits for ever, or asks for what it is not to have (A3)."""
    with pytest.raises(InvariantViolated, match=wrong):
        e.check_invariants(state)


events = st.lists(
    st.tuples(
        st.sampled_from(["tick", "joined", "first", "recorded", "confirmed", "unanswered", "cut", "gone", "down"]),
        st.floats(0, 5),
        st.floats(0, 5),
    ),
    max_size=60,
)


@given(events)
def test_no_order_of_events_breaks_an_invariant(steps: list[tuple[str, float, float]]) -> None:
    """It never acts outside of the lease of an answered question, and always waits for something (A11)."""
    one, now, epoch = Daemon(), 0.0, 0
    for what, pause, age in steps:
        now += pause
        claim, asked = one.state.claim, max(0.0, now - age)
        match what:
            case "recorded":
                epoch += 1
                one.feed(e.Recorded(claim, epoch, asked), now)
            case "confirmed":
                one.feed(e.Confirmed(claim, asked), now)
            case "gone":
                one.feed(e.Gone(claim, "expired"), now)
            case "unanswered":
                one.feed(e.Unanswered(claim), now)
            case "joined":
                one.feed(e.Joined(claim), now)
            case "first":
                one.feed(e.First(claim), now)
            case "cut":
                one.feed(e.Disconnected(), now)
            case "down":
                one.feed(e.SteppedDown(), now)
            case _:
                one.tick(now)
        assert not one.state.may_act(one.state.confirmed_at + TIMING.lease)
    leads = [command for command in one.commands if isinstance(command, e.Lead | e.StepDown)]
    assert all(isinstance(a, e.Lead) != isinstance(b, e.Lead) for a, b in pairwise(leads))
