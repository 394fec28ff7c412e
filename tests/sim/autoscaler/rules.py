"""The rules that a story must keep."""

from __future__ import annotations

from enum import StrEnum

from tests.sim.autoscaler.run import PATIENCE, Story
from tests.sim.autoscaler.scenarios import Scenario


class Rule(StrEnum):
    COOL_DOWN = "there are never two changes in a cool-down"
    SHORTAGE = "it never has too few slots for longer than a minute, but in a cool-down"
    FLAPPING = "it does not change more often than the load"
    ORACLE = "it has about as many slots as it needs"
    LAG = "what waits is processed in time"
    WASTE = "slots that do not help are not added"


def broken(scenario: Scenario) -> dict[Rule, str]:
    """Play a scenario, and return the rules that its story breaks, with the figures."""
    story: Story = scenario.play()
    found: dict[Rule, str] = {}
    if (pause := story.shortest_pause()) < story.limits.cool_down:
        found[Rule.COOL_DOWN] = f"{pause:.0f} s between two changes"
    if not scenario.hopeless and (short := story.longest_shortage()) > PATIENCE:
        found[Rule.SHORTAGE] = f"too few slots for {short:.0f} s"
    if len(story.changes) > scenario.most_changes:
        found[Rule.FLAPPING] = f"{len(story.changes)} changes"
    used, wanted = story.slots_used(scenario.settled), story.slots_of_oracle(scenario.settled)
    if not scenario.hopeless and not wanted - scenario.near <= used <= wanted + scenario.near:
        found[Rule.ORACLE] = f"{used:.2f} slots on average, and {wanted:.2f} would do"
    if (lag := story.lag(scenario.settled)) > scenario.most_lag:
        found[Rule.LAG] = f"{lag:.0f} s behind"
    if story.final > scenario.most_slots:
        found[Rule.WASTE] = f"{story.final} slots in the end"
    return found
