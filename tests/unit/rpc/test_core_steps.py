"""What every driver of a core does, in production and in the simulation: order, refusals, crashes (A1, R30)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from minflinkd.rpc.party import CoreSteps
from minflinkd.runtime.errors import Conflict
from minflinkd.runtime.machine import IllegalTransition, InvariantViolated
from tests.unit.rpc.parties import ScriptedCore


class Fallen(Exception):
    """What the caller gets after a crash."""


class Party:
    """Notes what is carried out. `on` says what else happens when a command is carried out."""

    def __init__(self) -> None:
        self.core = ScriptedCore()
        self.done: list[object] = []
        self.on: dict[object, Callable[[], object]] = {}
        self.crashes: list[Exception] = []
        self.steps = CoreSteps(
            self.core, carry_out=self._carry_out, crash=self._crash, decided=lambda: self.done.append("decided")
        )

    def _carry_out(self, command: object) -> None:
        self.done.append(command)
        self.on.get(command, lambda: None)()

    def _crash(self, error: Exception) -> Exception:
        self.crashes.append(error)
        return Fallen(str(error))


def test_commands_are_carried_out_in_the_order_in_which_they_were_decided() -> None:
    party = Party()
    assert party.steps.decide(party.core.decides(1, 2)) == "decided"
    assert party.steps.inform(party.core.decides(3)) == "decided"
    assert party.done == ["decided", 1, 2, "decided", 3]


def test_a_decision_that_a_command_leads_to_does_not_overtake_the_commands_before_it() -> None:
    """A TaskManager that replaces its session is told about it at once. Its second report must not be sent first."""
    party = Party()
    party.on[1] = lambda: party.steps.inform(party.core.decides(3, 4))
    party.on[3] = lambda: party.steps.inform(party.core.decides(5))
    party.steps.decide(party.core.decides(1, 2))
    assert [c for c in party.done if c != "decided"] == [1, 2, 3, 4, 5]
    assert not party.steps.busy


def test_commands_are_carried_out_after_a_refusal_too() -> None:
    """A refusal answers one message. What the core noted before it refused stays, so its commands must be done."""
    party = Party()
    with pytest.raises(Conflict):
        party.steps.decide(party.core.decides(1, 2, refuses=Conflict("no")))
    assert party.done == ["decided", 1, 2]
    assert party.crashes == []


def test_a_refusal_while_a_command_is_carried_out_keeps_the_order() -> None:
    party = Party()

    def refused() -> None:
        with pytest.raises(Conflict):
            party.steps.decide(party.core.decides(3, refuses=Conflict("no")))

    party.on[1] = refused
    party.steps.decide(party.core.decides(1, 2))
    assert [c for c in party.done if c != "decided"] == [1, 2, 3]


@pytest.mark.parametrize("bug", [ValueError("broken"), InvariantViolated("held twice"), IllegalTransition("never")])
def test_any_other_error_of_a_decision_is_a_crash_and_nothing_is_carried_out(bug: Exception) -> None:
    """The state cannot be trusted any more, and neither can the commands (A1)."""
    party = Party()
    with pytest.raises(Fallen):
        party.steps.decide(party.core.decides(1, refuses=bug))
    assert (party.done, party.crashes) == ([], [bug])


def test_an_event_cannot_be_refused() -> None:
    """Nobody asked, so nobody would learn of it, and the core has lost an event: it crashes."""
    party = Party()
    with pytest.raises(Fallen):
        party.steps.inform(party.core.decides(1, refuses=(error := Conflict("no"))))
    assert (party.done, party.crashes) == ([], [error])


@pytest.mark.parametrize("error", [OSError("too many open files"), Conflict("the callee refuses")])
def test_a_command_that_fails_is_a_crash_and_those_after_it_are_dropped(error: Exception) -> None:
    """The state records steps that were never carried out. An error of the project's own makes no difference."""
    party = Party()

    def fail() -> None:
        raise error

    party.on[1] = fail
    with pytest.raises(Fallen):
        party.steps.decide(party.core.decides(1, 2))
    assert [c for c in party.done if c != "decided"] == [1]
    assert party.crashes == [error]
    assert not party.steps.busy


def test_a_crash_in_a_later_decision_drops_the_commands_of_the_earlier_one() -> None:
    party = Party()

    def crashing() -> None:
        with pytest.raises(Fallen):
            party.steps.inform(party.core.decides(refuses=ValueError("broken")))

    party.on[1] = crashing
    party.steps.decide(party.core.decides(1, 2))
    assert [c for c in party.done if c != "decided"] == [1]


def test_after_a_stop_decisions_have_no_commands() -> None:
    """A party that closes still notes what ends in it. Nobody is left to carry anything out."""
    party = Party()
    party.on[1] = party.steps.stop
    party.steps.decide(party.core.decides(1, 2))
    assert party.steps.inform(party.core.decides(3)) == "decided"
    assert [c for c in party.done if c != "decided"] == [1]
    assert party.core.commands == []
