"""Plays the autoscaler's decisions against the model of a query, in virtual time."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean

from minflinkd.autoscaler import decision
from minflinkd.autoscaler.readings import Change, JobReading, effective
from minflinkd.autoscaler.state import Decision, Limits, State, accepted
from tests.sim.autoscaler.query import Costs, Query, Rate

EVERY = 5.0  # seconds between two readings
LIMITS = Limits(target=0.7, least=1, most=8, cool_down=60.0, down_delay=300.0, catch_up=300.0)
PATIENCE = 60.0  # seconds for which it may have too few slots
PAUSE = 6.0  # seconds for which a restart stops the job


@dataclass
class Story:
    """What a run has shown."""

    limits: Limits
    widths: list[tuple[float, int, float, float]] = field(default_factory=list)  # time, slots, rate, rows that wait
    changes: list[tuple[float, int, int, str]] = field(default_factory=list)  # time, before, after, why
    decisions: list[Decision] = field(default_factory=list)
    costs: Costs = field(default_factory=Costs)

    def needed(self, rate: float) -> float:
        """Return how many slots are fully used by so many rows per second."""
        per_row = self.costs.per_row / max(1e-9, 1 - self.costs.serial * rate)
        return rate * per_row

    def oracle(self, rate: float) -> int:
        """Return how many slots it should have for so many rows per second."""
        usable = 1 - self.costs.fixed / 10.0
        wanted = -int(-(self.needed(rate) / self.limits.target / usable) // 1)
        return min(max(wanted, self.limits.least), self.limits.most)

    @property
    def final(self) -> int:
        return self.widths[-1][1]

    def lag(self, since: float = 0.0) -> float:
        """Return the longest lag, in seconds of what came in."""
        return max((rows / rate for at, _, rate, rows in self.widths if at >= since and rate > 0), default=0.0)

    def shortest_pause(self) -> float:
        """Return the shortest time between two changes."""
        times = [at for at, *_ in self.changes]
        return min((b - a for a, b in pairwise(times)), default=float("inf"))

    def longest_shortage(self) -> float:
        """Return for how long at most it had fewer slots than the rows need, and more could have been had.

        The cool-down after a change does not count, nor what no slot helps against.
        """
        longest, since, changed = 0.0, None, iter(self.changes)
        upcoming, last = next(changed, None), -self.limits.cool_down
        for at, slots, rate, _ in self.widths:
            while upcoming is not None and upcoming[0] <= at:
                last, upcoming = upcoming[0], next(changed, None)
            worth = effective(slots, self.costs.partitions)
            short = worth < min(self.needed(rate), effective(self.limits.most, self.costs.partitions))
            if not short or at < last + self.limits.cool_down:
                since = None
            else:
                since = at if since is None else since
                longest = max(longest, at - since)
        return longest

    def slots_used(self, since: float = 0.0) -> float:
        return fmean(slots for at, slots, *_ in self.widths if at >= since)

    def slots_of_oracle(self, since: float = 0.0) -> float:
        """Return the mean of what it should have had: at each moment, for the most rows of the scale-down window."""
        rates = [(at, rate) for at, _, rate, _ in self.widths]
        window = round(self.limits.down_delay / EVERY)
        wanted = [max(r for _, r in rates[max(0, i - window) : i + 1]) for i in range(len(rates))]
        return fmean(self.oracle(rate) for (at, _), rate in zip(rates, wanted, strict=True) if at >= since)

    def __str__(self) -> str:
        lines = [f"{at:6.0f} s  {before} -> {after}  {why}" for at, before, after, why in self.changes]
        return "\n".join([str(self.costs), *lines, f"in the end {self.final}: {self.decisions[-1].why}"])


def play(
    rate: Rate,
    costs: Costs,
    *,
    seed: int = 0,
    slots: int = 1,
    lasts: float = 3600.0,
    limits: Limits = LIMITS,
    in_place: bool = True,
    waiting: float = 0.0,
) -> Story:
    """Let the autoscaler look after a query for `lasts` seconds. `in_place`: a change does not restart it.

    `waiting`: rows that wait at the begin.
    """
    query = Query(costs, rate, random.Random(seed), slots, waiting=waiting)
    state, story, change, since = State(), Story(limits, costs=costs), None, 0.0
    now = 0.0
    while now < lasts:
        now += EVERY
        query.advance(now)
        reading = JobReading(at=now, tasks=(query.reading(),), interval=costs.interval, since=since, last_change=change)
        state, decided = decision.decide(state, reading, limits)
        story.decisions.append(decided)
        story.widths.append((now, query.slots, rate(now), query.waiting))
        if not decided.wanted:
            continue
        number = 1 if change is None else change.number + 1
        wanted = decided.wanted["default"]
        story.changes.append((now, query.slots, wanted, decided.why))
        state, change = accepted(state, number), Change(number=number, at=now)
        if in_place:
            query.resize(wanted)
        else:
            query.restart(wanted, PAUSE)
            since = now + PAUSE
    return story
