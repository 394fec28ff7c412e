"""The state machine pattern itself (A3)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec
import pytest

from minflinkd.runtime.machine import IllegalTransition, InvariantViolated, Machine, Step, move, table


class Open:
    pass


class Closed:
    pass


class Light(Enum):
    RED = "red"
    GREEN = "green"
    BROKEN = "broken"


LEGAL = table({Light.RED: {Light.GREEN, Light.BROKEN}, Light.GREEN: {Light.RED}, Light.BROKEN: set()})


def step(state: Light, event: Light, now: float) -> tuple[Light, tuple[str, ...]]:
    return move(LEGAL, state, event, what="the light"), (f"show {event.value} at {now:g}",)


def no_broken_light(state: Light) -> None:
    if state is Light.BROKEN:
        raise InvariantViolated("the light is broken", hint="change the bulb")


def test_a_step_gives_commands_and_moves_the_state() -> None:
    machine = Machine(Light.RED, step, no_broken_light, name="crossing")
    assert machine.feed(Light.GREEN, 2.5) == ("show green at 2.5",)
    assert machine.state is Light.GREEN


def test_an_illegal_move_says_who_wanted_what_and_tells_the_story() -> None:
    """The error reads like the test that will reproduce it (A3)."""
    machine = Machine(Light.RED, step, name="crossing")
    machine.feed(Light.GREEN, 1.0)
    with pytest.raises(IllegalTransition) as failed:
        machine.feed(Light.BROKEN, 2.0)
    text = str(failed.value)
    assert "crossing: the light: GREEN -> BROKEN; GREEN may become RED" in text
    assert [line.split() for line in text.splitlines()[1:]] == [
        ["1.000", "Light.GREEN"],
        ["2.000", "Light.BROKEN"],
    ]
    assert machine.state is Light.GREEN


def test_a_violated_invariant_leaves_the_state_as_it_was() -> None:
    """A3."""
    machine = Machine(Light.RED, step, no_broken_light, name="crossing")
    with pytest.raises(InvariantViolated, match="crossing: the light is broken") as failed:
        machine.feed(Light.BROKEN, 1.0)
    assert failed.value.hint == "change the bulb"
    assert machine.state is Light.RED


def test_a_decision_is_checked_before_the_state_is_moved() -> None:
    """For a driver that stores the new state first: it moves the state when that is durable (A3)."""
    machine = Machine(Light.RED, step, no_broken_light, name="crossing")
    assert machine.decide(Light.GREEN, 2.5) == (Light.GREEN, ("show green at 2.5",))
    assert machine.state is Light.RED
    with pytest.raises(InvariantViolated, match="crossing: the light is broken"):
        machine.decide(Light.BROKEN, 3.0)
    assert machine.story().count("Light.") == 2


def test_a_final_state_may_become_nothing() -> None:
    with pytest.raises(IllegalTransition, match="BROKEN may become nothing"):
        move(LEGAL, Light.BROKEN, Light.RED, what="the light")


def test_a_table_without_a_row_for_every_state_is_refused() -> None:
    """No state is forgotten (A3)."""
    with pytest.raises(InvariantViolated, match="Light has no row for GREEN, BROKEN"):
        table({Light.RED: {Light.GREEN}})


def test_classes_may_be_states_of_a_table_and_each_must_have_a_row() -> None:
    """A phase with facts of its own is a class (A3)."""
    with pytest.raises(InvariantViolated, match="the table has no row for Closed"):
        table({Open: {Closed}}, every=(Open, Closed))
    legal = table({Open: {Closed}, Closed: set()}, every=(Open, Closed))
    assert move(legal, Open, Closed, what="the door") is Closed
    with pytest.raises(IllegalTransition, match="the door: Closed -> Open; Closed may become nothing"):
        move(legal, Closed, Open, what="the door")


def test_the_story_keeps_the_last_events_only() -> None:
    machine = Machine(Light.RED, step, name="crossing")
    for i in range(3 * Machine.STORY):
        machine.feed(Light.GREEN if machine.state is Light.RED else Light.RED, float(i))
    lines = machine.story().splitlines()
    assert len(lines) == Machine.STORY
    assert lines[-1].split()[0] == f"{3 * Machine.STORY - 1}.000"


@dataclass(frozen=True)
class Count:
    number: int = 0


class StoredCount(msgspec.Struct, frozen=True):
    number: int = 0


@pytest.mark.parametrize("state", [Count(), StoredCount()])
def test_the_parts_of_a_step_change_one_state_and_add_to_one_list_of_commands(state: Any) -> None:
    """The state before the step stays as it was, also if the step fails half-way (A3)."""
    this: Step[Any, str] = Step(state, 2.5)
    for _ in range(2):
        this.set(number=this.state.number + 1)
        this.commands.append(f"show {this.state.number} at {this.now:g}")
    assert this.result() == (type(state)(2), ("show 1 at 2.5", "show 2 at 2.5"))
    assert state.number == 0
