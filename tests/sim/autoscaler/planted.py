"""Faults that are planted in the autoscaler, and the stories in which the rules must find them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from minflinkd.autoscaler import decision, demand
from minflinkd.autoscaler.cost import Cost
from minflinkd.autoscaler.state import State
from tests.sim.autoscaler.rules import Rule
from tests.sim.autoscaler.rules import broken as rules_broken
from tests.sim.autoscaler.scenarios import SCENARIOS
from tests.sim.planting import patched


def _no_cool_down() -> AbstractContextManager[None]:
    return patched(decision, "ready_from", lambda _: lambda *_: 0.0)


def _backlog_is_ignored() -> AbstractContextManager[None]:
    def made(flow: Any) -> Any:
        return lambda task, track, reading: flow(replace(task, backlog=0), track, reading)

    return patched(demand, "_flow", made)


def _wall_time() -> AbstractContextManager[None]:
    """All of the time in micro-batches is taken for work on rows."""

    def made(cost_of: Any) -> Any:
        def wall_time(*arguments: Any) -> Cost | None:
            found = cost_of(*arguments)
            batches = [b for b in arguments[0] if b.batches][-6:]
            if found is None or not batches:
                return None
            rows, seconds = sum(b.load for b in batches), sum(b.seconds for b in batches)
            return Cost(0.0, seconds / rows if rows else 0.0, 0.0, sure=True)

        return wall_time

    return patched(demand, "cost_of", made)


def _down_at_once() -> AbstractContextManager[None]:
    """The latest need counts, not the largest of the window."""

    def made(down: Any) -> Any:
        def at_once(state: State, reading: Any, each: Any, limits: Any) -> Any:
            return down(state, reading, each, replace(limits, down_delay=1.0))

        return at_once

    return patched(decision, "_down", made)


def _no_band() -> AbstractContextManager[None]:
    return patched(decision, "BAND", lambda _: 0.5)


def _never_up() -> AbstractContextManager[None]:
    return patched(decision, "SUSTAINED", lambda _: 120.0)


def _never_down() -> AbstractContextManager[None]:
    return patched(
        decision,
        "_down",
        lambda _: (
            lambda state, reading, each, limits: decision.Decision(
                verdict=decision.Verdict.STAYS, why="it never gives slots back"
            )
        ),
    )


def _no_ceiling() -> AbstractContextManager[None]:
    return patched(decision, "judged", lambda _: lambda state, reading: state)


def _unknown_is_nothing() -> AbstractContextManager[None]:
    """A source whose backlog nobody knows is taken for one that keeps up."""
    return patched(demand, "_behind", lambda _: lambda *_, **__: "")


FAULTS: dict[str, tuple[Callable[[], AbstractContextManager[None]], Rule]] = {
    "there is no cool-down": (_no_cool_down, Rule.COOL_DOWN),
    "what waits is ignored": (_backlog_is_ignored, Rule.LAG),
    "the time in micro-batches is taken for work": (_wall_time, Rule.ORACLE),
    "the latest need counts on the way down": (_down_at_once, Rule.FLAPPING),
    "slots are added before they are too few": (_no_band, Rule.ORACLE),
    "it waits for two minutes before it adds slots": (_never_up, Rule.SHORTAGE),
    "slots are never given back": (_never_down, Rule.ORACLE),
    "a backlog that nobody knows is taken for none": (_unknown_is_nothing, Rule.LAG),
    "slots that did not help are not noticed": (_no_ceiling, Rule.WASTE),
}


def find(fault: str) -> str:
    """Play the scenarios with a planted fault. Return the name of the first that breaks the fault's rule, or ""."""
    plant, rule = FAULTS[fault]
    with plant():
        return next((name for name, scenario in SCENARIOS.items() if rule in rules_broken(scenario)), "")
