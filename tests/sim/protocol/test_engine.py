"""The simulation itself: time, processes and the network behave as described."""

from __future__ import annotations

from typing import Any

import pytest

from minflinkd.rpc import messages as m
from minflinkd.rpc.network import Address, RpcTimeout, Unreachable
from minflinkd.rpc.party import Answered, Ask, Outcome, Refused, Tell, Unknown
from minflinkd.runtime.errors import Conflict, RemoteError
from minflinkd.runtime.ids import JobId, LeaderId, ResourceId
from tests.sim.protocol.journal import Violation
from tests.sim.protocol.party import Party
from tests.sim.protocol.planted import FAULTS
from tests.sim.protocol.universe import Universe
from tests.sim.protocol.wire import Weather

HERE, THERE = Address("here"), Address("there")
QUESTION = m.ExitTaskManager(reason="why not")
NOTICE = m.TaskManagerLost(resource_id=ResourceId("tm-1"), reason="gone")


OTHER = m.TaskManagerLost(resource_id=ResourceId("tm-2"), reason="gone")


class Toy:
    """A core that remembers what happened to it, and when."""

    def __init__(self) -> None:
        self.commands: list[object] = []
        self.received: list[tuple[float, m.Message]] = []
        self.outcomes: list[tuple[float, object, Outcome]] = []
        self.ticks: list[float] = []
        self.wake: float | None = None
        self.refuses = False

    def receive(self, message: m.Message, fence: LeaderId | None, now: float) -> Any:
        self.received.append((now, message))
        if self.refuses:
            raise Conflict("no")
        return m.Done()

    def answered(self, about: object, outcome: Outcome, now: float) -> None:
        self.outcomes.append((now, about, outcome))

    def tick(self, now: float) -> None:
        self.ticks.append(now)
        if self.wake is not None and now >= self.wake:
            self.wake = None

    def next_wakeup(self) -> float | None:
        return self.wake

    def take_commands(self) -> tuple[object, ...]:
        taken, self.commands = tuple(self.commands), []
        return taken


def settle(party: Party[Toy]) -> None:
    """Have the party carry out the commands that its core holds."""
    party.step(lambda: None)


class Two:
    """Two parties on one network."""

    def __init__(self, seed: int = 1, **options: bool) -> None:
        self.universe = Universe(seed, **options)
        self.here = Party(self.universe, HERE, Toy())
        self.there = Party(self.universe, THERE, Toy())

    def ask(self, **options: Any) -> None:
        self.here.core.commands.append(Ask(THERE, QUESTION, 5.0, about="it", **options))
        settle(self.here)

    def tell(self) -> None:
        self.here.core.commands.append(Tell(THERE, NOTICE))
        settle(self.here)

    def tell_back(self) -> None:
        self.there.core.commands.append(Tell(HERE, NOTICE))
        settle(self.there)

    def outcome(self, within: float = 10.0) -> Outcome:
        """Return the only outcome."""
        self.universe.engine.run_until(self.universe.now + within)
        ((_, about, outcome),) = self.here.core.outcomes
        assert about == "it"
        return outcome


@pytest.mark.parametrize("encoded", [False, True])
def test_a_request_is_answered_once(encoded: bool) -> None:
    two = Two(encoded=encoded)
    two.ask()
    assert two.outcome() == Answered(m.Done())
    assert [message for _, message in two.there.core.received] == [QUESTION]


def test_a_refusal_comes_back_as_it_would_from_another_process() -> None:
    two = Two()
    two.there.core.refuses = True
    two.ask()
    outcome = two.outcome()
    assert isinstance(outcome, Refused)
    assert isinstance(outcome.error, RemoteError)
    assert outcome.error.info().code == "conflict"


def test_a_request_is_not_sent_before_its_time() -> None:
    two = Two()
    two.ask(after=3.0)
    two.universe.engine.run_until(2.9)
    assert two.there.core.received == []
    assert two.outcome() == Answered(m.Done())
    assert two.there.core.received[0][0] >= 3.0


def test_a_lost_request_times_out_with_an_unknown_outcome() -> None:
    two = Two()
    two.universe.wire.weather = Weather(drop=1.0)
    two.ask()
    outcome = two.outcome()
    assert isinstance(outcome, Unknown)
    assert isinstance(outcome.error, RpcTimeout)
    assert two.here.core.outcomes[0][0] == 5.0
    assert any(": LOST" in line for line in two.universe.journal.lines())


def test_a_doubled_request_is_handled_twice_and_answered_once() -> None:
    two = Two()
    two.universe.wire.weather = Weather(double=1.0)
    two.ask()
    assert two.outcome() == Answered(m.Done())
    assert len(two.there.core.received) == 2


def test_an_answer_after_the_timeout_says_nothing_any_more() -> None:
    two = Two(seed=3)
    two.universe.wire.weather = Weather(late=1.0, latest=60.0)
    two.ask()
    outcome = two.outcome(within=200.0)
    assert isinstance(outcome, Unknown)
    assert len(two.there.core.received) == 1


def test_a_party_that_is_not_there_is_unreachable_or_silent() -> None:
    two = Two()
    two.there.die()
    two.ask()
    outcome = two.outcome()
    assert isinstance(outcome, Unknown)
    assert isinstance(outcome.error, Unreachable)
    two.here.core.outcomes.clear()
    two.universe.wire.silent.add(THERE)
    two.ask()
    outcome = two.outcome()
    assert isinstance(outcome, Unknown)
    assert isinstance(outcome.error, RpcTimeout)


@pytest.mark.parametrize(("noticed", "error"), [(True, Unreachable), (False, RpcTimeout)])
def test_a_cut_is_one_way_until_it_is_healed(noticed: bool, error: type[Exception]) -> None:
    two = Two()
    two.universe.wire.cut(HERE, THERE, noticed=noticed)
    two.ask()
    outcome = two.outcome()
    assert isinstance(outcome, Unknown)
    assert isinstance(outcome.error, error)
    assert two.there.core.received == []
    two.universe.wire.heal(HERE, THERE, noticed=noticed)
    two.here.core.outcomes.clear()
    two.ask()
    assert two.outcome() == Answered(m.Done())


def test_what_a_cut_holds_up_arrives_soon_after_it() -> None:
    two = Two()
    two.universe.wire.cut(HERE, THERE, noticed=False, late_until=6.0)
    two.universe.engine.after(5.5, lambda: two.universe.wire.heal(HERE, THERE, noticed=False))
    two.ask()
    two.tell()
    outcome = two.outcome()
    assert isinstance(outcome, Unknown)
    assert isinstance(outcome.error, RpcTimeout)
    assert {message for _, message in two.there.core.received} == {QUESTION, NOTICE}
    assert all(5.5 <= at <= 6.0 for at, _ in two.there.core.received)


def test_an_ambush_decides_when_the_copies_of_a_message_arrive() -> None:
    two = Two()
    two.universe.wire.spies.append(lambda pair, message: (1.0, 4.0) if message is NOTICE else None)
    two.ask()
    assert two.outcome() == Answered(m.Done())
    two.tell()
    two.universe.engine.run_until(20.0)
    assert [at for at, message in two.there.core.received if message is NOTICE] == [11.0, 14.0]


def test_what_comes_to_a_stopped_process_waits_for_it() -> None:
    two = Two()
    two.there.stop()
    two.there.core.wake = 1.0
    settle(two.there)
    two.tell()
    two.universe.engine.run_until(4.0)
    assert two.there.core.received == []
    assert two.there.core.ticks == []
    two.there.go_on()
    two.universe.engine.run_until(5.0)
    assert [message for _, message in two.there.core.received] == [NOTICE]
    assert len(two.there.core.ticks) == 1


def test_nothing_happens_to_a_dead_process() -> None:
    two = Two()
    two.ask()
    two.here.core.wake = 0.5
    settle(two.here)
    two.here.die()
    two.universe.engine.run_until(20.0)
    assert two.here.core.outcomes == []
    assert two.here.core.ticks == []


def test_a_core_is_woken_when_it_wants_to_be_and_not_before() -> None:
    two = Two()
    two.here.core.wake = 7.0
    settle(two.here)
    two.here.core.wake = 3.0  # earlier than before
    settle(two.here)
    two.universe.engine.run_until(20.0)
    assert two.here.core.ticks == [3.0]


def test_a_core_that_spins_is_found() -> None:
    class Spinning(Toy):
        def next_wakeup(self) -> float | None:
            return 0.0

    universe = Universe(1)
    settle(Party(universe, HERE, Spinning()))
    with pytest.raises(Violation, match="again and again"):
        universe.engine.run_until(10.0)


def test_the_story_shows_what_messages_say() -> None:
    two = Two()
    two.here.core.commands.append(
        Tell(THERE, m.JobMasterChanged(job_id=JobId("ab" * 16), leader_id=LeaderId("00000001" + "0000000b" + "c" * 16)))
    )
    settle(two.here)
    (line,) = two.universe.journal.lines()
    assert line == ("    0.000  here -> there #1 JobMasterChanged(job_id=ababab, leader_id=leader-1.11)")


def test_what_a_core_decided_before_it_refused_is_carried_out() -> None:
    """The same `CoreSteps` run in production: a refusal answers one message, and takes no command back."""
    two = Two()
    two.there.core.refuses = True
    two.there.core.commands.append(Tell(HERE, NOTICE))
    two.ask()
    assert isinstance(two.outcome(), Refused)
    assert [message for _, message in two.here.core.received] == [NOTICE]


def test_a_core_that_refuses_an_outcome_breaks_a_rule() -> None:
    """In production it crashes: it has lost the outcome of its request, and nobody would learn of it."""
    two = Two()

    def refuse(about: object, outcome: Outcome, now: float) -> None:
        raise Conflict("no")

    two.here.core.answered = refuse  # type: ignore[method-assign]
    two.ask()
    with pytest.raises(Violation, match="here failed: Conflict"):
        two.universe.engine.run_until(10.0)


@pytest.mark.parametrize("fault", ["commands overtake one another", "commands are lost after a refusal"])
def test_commands_that_are_not_carried_out_in_order_break_a_rule(fault: str) -> None:
    two = Two()
    two.there.core.refuses = True
    two.there.core.commands += [Tell(HERE, NOTICE), Tell(HERE, OTHER)]
    two.ask()
    two.universe.engine.after(1.0, two.tell_back)
    with FAULTS[fault](), pytest.raises(Violation, match="comes first"):
        two.universe.engine.run_until(2.0)
