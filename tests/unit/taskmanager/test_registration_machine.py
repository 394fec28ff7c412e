"""A TaskManager's registration, tested with lists of events (m4 - m6, R9, R10, R15)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as copy

from minflinkd.runtime.machine import InvariantViolated
from minflinkd.taskmanager.slots.registration import (
    Accepted,
    Beat,
    BeatAnswered,
    BeatLost,
    BeatRefused,
    Command,
    Event,
    GiveUp,
    NotAccepted,
    Phase,
    Register,
    Registration,
    Tick,
    check_invariants,
    next_wakeup,
    step,
)
from tests.unit.taskmanager.core_world import leader, registered


def run(*story: tuple[float, Event], state: Registration | None = None) -> tuple[Registration, list[Command]]:
    state = state or Registration(since=0.0, due=0.0)
    commands: list[Command] = []
    for now, event in story:
        state, more = step(state, event, now)
        check_invariants(state)
        commands += more
    return state, commands


REGISTERED = run((0.0, Tick()), (0.1, Accepted(1, registered(2))))[0]


def beat(number: int = 1, instance: int = 2) -> Beat:
    answer = registered(instance)
    return Beat(number, answer.instance_id, answer.leader_id, 2.0)


def test_it_registers_and_beats_each_interval_whether_it_is_answered_or_not() -> None:
    """One lost heartbeat must not cost two (m4, R10)."""
    state, commands = run((0.0, Tick()), (0.1, Accepted(1, registered(2))), (1.0, Tick()), (1.1, Tick()), (2.2, Tick()))
    assert state.phase is Phase.REGISTERED
    assert commands == [Register(1), beat(), beat()]
    assert next_wakeup(REGISTERED) == 1.1
    rare = copy(registered(2), heartbeat_interval=3.0, heartbeat_timeout=15.0)
    state, commands = run((0.0, Tick()), (0.1, Accepted(1, rare)), (3.0, Tick()), (3.1, Tick()), (6.0, Tick()))
    assert commands == [Register(1), Beat(1, rare.instance_id, rare.leader_id, timeout=6.0)]


def test_a_try_that_fails_is_repeated_with_growing_pauses() -> None:
    """Only one try is under way at a time (m4)."""
    state, commands = run((0.0, Tick()), (5.0, NotAccepted(1, "no answer")), (5.05, Tick()), (5.1, Tick()))
    assert commands == [Register(1), Register(2)]
    state, _ = run((10.0, NotAccepted(2, "no answer")), state=state)
    assert next_wakeup(state) == 10.2


def test_an_earlier_leader_than_one_seen_before_is_not_followed() -> None:
    """The earlier leader's answer was late, or that leader has not yet learnt that it was replaced (R1)."""
    lost = run((1.0, BeatRefused(1, "unknown-task-manager")), (1.0, Tick()), state=REGISTERED)[0]
    state, _ = run((1.1, Accepted(2, registered(1))), state=lost)
    assert (state.phase, state.leader) == (Phase.UNREGISTERED, leader(2))
    assert state.why == f"the ResourceManager {leader(1)} was replaced"
    for number in (2, 3):
        state, _ = run((1.1, Accepted(2, registered(number))), state=lost)
        assert (state.phase, state.leader) == (Phase.REGISTERED, leader(number))


def test_two_failing_connections_in_a_row_or_silence_end_a_registration() -> None:
    """R10."""
    gone = BeatLost(1, "no connection", unreachable=True)
    slow = BeatLost(1, "no answer", unreachable=False)
    assert run((2.0, gone), (2.1, gone), state=REGISTERED)[0].phase is Phase.UNREGISTERED
    assert run((2.0, gone), (2.1, slow), (2.2, gone), state=REGISTERED)[0].phase is Phase.REGISTERED
    assert run((2.0, gone), (2.1, BeatAnswered(1)), (2.2, gone), state=REGISTERED)[0].phase is Phase.REGISTERED
    assert run((5.0, Tick()), state=REGISTERED)[0].phase is Phase.REGISTERED
    state = run((5.1, Tick()), state=REGISTERED)[0]
    assert state.phase is Phase.UNREGISTERED
    assert state.why == "the ResourceManager is silent for 5.0 s"
    assert next_wakeup(state) == 5.1


def test_each_registration_begins_anew() -> None:
    """Neither failed tries nor failed heartbeats before it count (R10)."""
    gone = BeatLost(1, "no connection", unreachable=True)
    lost = run((2.0, gone), (2.1, gone), state=REGISTERED)[0]
    again = run(
        *((3.0, Tick()), (3.0, NotAccepted(2, "?")), (4.0, Tick()), (4.0, NotAccepted(3, "?"))),
        *((5.0, Tick()), (5.0, Accepted(4, registered(2)))),
        state=lost,
    )[0]
    assert run((5.5, replace(gone, number=4)), state=again)[0].phase is Phase.REGISTERED
    failed = run((6.0, BeatRefused(4, "?")), (6.0, Tick()), (6.0, NotAccepted(5, "?")), state=again)[0]
    assert next_wakeup(failed) == 6.1


def test_a_short_time_to_give_up_counts_too() -> None:
    """R15."""
    limited = Registration(since=0.0, due=0.0, give_up_after=0.5)
    assert run((0.0, Tick()), (0.4, NotAccepted(1, "no answer")), state=limited)[1] == [Register(1)]
    assert isinstance(run((0.0, Tick()), (0.5, NotAccepted(1, "no answer")), state=limited)[1][-1], GiveUp)


def test_the_time_to_give_up_begins_when_no_task_runs_any_more() -> None:
    """Tasks run on without a ResourceManager, for as long as the orphan timeout says (A14, R15)."""
    limited = Registration(since=0.0, due=0.0, give_up_after=5.0)
    story = ((0.0, Tick(busy=True)), (4.0, NotAccepted(1, "?")), (7.0, Tick(busy=True)), (8.0, NotAccepted(2, "?")))
    alone, commands = run(*story, (9.0, Tick()), (11.9, NotAccepted(3, "?")), state=limited)
    assert commands == [Register(1), Register(2), Register(3)]
    (_, given_up) = run((12.4, Tick()), (12.5, NotAccepted(4, "no answer")), state=alone)[1]
    assert given_up == GiveUp("no ResourceManager took the registration for 6 s: no answer")


def test_outcomes_of_an_earlier_registration_change_nothing() -> None:
    """Outcomes of an earlier registration arrive late and change nothing (R8)."""
    again = run(
        (2.0, BeatRefused(1, "unknown-task-manager")),
        (2.0, Tick()),
        (2.1, Accepted(2, registered(2))),
        state=REGISTERED,
    )[0]
    late = (BeatRefused(1, "?"), BeatAnswered(1), BeatLost(1, "?", unreachable=True), Accepted(1, registered(3)))
    for event in (*late, NotAccepted(1, "?")):
        assert run((3.0, event), state=again)[0] == again


def test_a_try_without_an_outcome_is_followed_by_the_next_one() -> None:
    """Whoever carries it out may fail to report. The try counts as failed (m4, R15)."""
    state, commands = run((0.0, Tick()), (5.95, Tick()))
    assert (commands, next_wakeup(state)) == ([Register(1)], 6.0)
    state, commands = run((6.0, Tick()), (6.1, Tick()), (6.2, Accepted(1, registered(1))), state=state)
    assert (state.phase, commands) == (Phase.REGISTERING, [Register(2)])
    limited, commands = run((0.0, Tick()), (6.0, Tick()), state=Registration(since=0.0, due=0.0, give_up_after=6.0))
    assert limited.phase is Phase.GIVEN_UP
    assert commands[-1] == GiveUp("no ResourceManager took the registration for 6 s: the last try has no outcome")


def tries_answered(*stories: tuple[float, int | None]) -> tuple[Registration, list[Command]]:
    """Lose the registration with leader 2 at 100 s, then answer tries at once as `stories` say.

    A story is a number of seconds and the leader that answers in them, or None if nobody does.
    """
    state, commands = run((100.0, BeatRefused(1, "no")), state=REGISTERED)
    now = 100.0
    for seconds, number in stories:
        end = now + seconds
        while (due := next_wakeup(state)) is not None and due <= end:
            now = due
            state, asked = run((now, Tick()), state=state)
            commands += asked
            if state.phase is Phase.REGISTERING:
                answer = (
                    NotAccepted(state.number, "?") if number is None else Accepted(state.number, registered(number))
                )
                state, more = run((now, answer), state=state)
                commands += more
    return state, [c for c in commands if isinstance(c, GiveUp)]


def test_it_ends_where_nobody_but_an_earlier_leader_answers_for_long() -> None:
    """The daemon lost its state, and the epoch with it.

    The next process of this TaskManager follows any leader (R1).
    """
    assert tries_answered((59.0, 1))[1] == []
    state, given_up = tries_answered((63.0, 1))
    assert state.phase is Phase.GIVEN_UP
    (command,) = given_up
    assert isinstance(command, GiveUp)
    assert command.reason.startswith("the ResourceManager has lost its state: for 6")
    assert command.reason.endswith(f" s only {leader(1)} answers, which is earlier than {leader(2)}")


def test_an_earlier_leader_that_answers_now_and_then_ends_nothing() -> None:
    """The later leader may exist, and only its answers get lost (R1)."""
    assert tries_answered((50.0, 1), (5.0, None), (50.0, 1))[1] == []
    assert tries_answered((50.0, 1), (5.0, 2))[0].phase is Phase.REGISTERED
    again = tries_answered((50.0, 1), (5.0, 2))[0]
    assert again.earlier_since is None


def test_it_gives_up_only_where_a_time_is_set() -> None:
    """The time counts from the loss of the last ResourceManager (R15)."""
    lost = run((100.0, BeatRefused(1, "no")), (100.0, Tick()), state=REGISTERED)[0]
    assert run((1e9, NotAccepted(2, "no answer")), state=lost)[1] == []
    limited = run(
        (0.0, Tick()),
        (0.1, Accepted(1, registered(2))),
        (100.0, BeatRefused(1, "no")),
        (100.0, Tick()),
        (129.0, NotAccepted(2, "no answer")),
        (130.0, Tick()),
        (135.0, NotAccepted(3, "no answer")),
        state=Registration(since=0.0, due=0.0, give_up_after=30.0),
    )
    assert limited[0].phase is Phase.GIVEN_UP
    assert limited[1][-1] == GiveUp("no ResourceManager took the registration for 35 s: no answer")
    assert next_wakeup(limited[0]) is None


def test_a_registration_that_contradicts_itself_is_found() -> None:
    """It is registered exactly if it knows with whom, and that is the leader that it follows."""
    for phase in (Phase.UNREGISTERED, Phase.REGISTERING, Phase.GIVEN_UP):
        with pytest.raises(InvariantViolated, match=f"{phase.name} with Registered"):
            check_invariants(replace(REGISTERED, phase=phase))
    with pytest.raises(InvariantViolated, match="REGISTERED with None"):
        check_invariants(replace(REGISTERED, registered=None))
    with pytest.raises(InvariantViolated, match=f"registered with {leader(2)}, but {leader(3)} is followed"):
        check_invariants(replace(REGISTERED, leader=leader(3)))
