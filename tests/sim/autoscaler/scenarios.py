"""Queries under loads, one at a time, with what must become of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from tests.sim.autoscaler import curves
from tests.sim.autoscaler.query import Costs, Rate
from tests.sim.autoscaler.run import LIMITS, Story, play

KINDS = (
    Costs(),
    Costs(tells_backlog=False),
    Costs(interval=5.0),
    Costs(bound=4000.0),
    Costs(noise=0.2),
    Costs(fixed=1.5),
)
PEAK = 2000.0  # rows per second


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """`settled`: seconds after which it must be near to what it needs. `near`: slots by which it may be off."""

    rate: Rate
    costs: Costs = field(default_factory=Costs)
    seed: int = 0
    slots: int = 2
    lasts: float = 3600.0
    in_place: bool = True
    waiting: float = 0.0  # rows that wait at the begin
    settled: float = 0.0
    near: float = 1.0
    most_changes: int = 15
    most_lag: float = float("inf")
    most_slots: int = LIMITS.most
    hopeless: bool = False  # no slot helps

    def play(self) -> Story:
        return play(
            self.rate,
            self.costs,
            seed=self.seed,
            slots=self.slots,
            lasts=self.lasts,
            in_place=self.in_place,
            waiting=self.waiting,
        )


def _tripled(**more: object) -> Scenario:
    """600 rows/s become 1,800 after 15 minutes, and 600 again after 30."""
    known = {"most_changes": 6, "near": 1.0, **more}
    rate = curves.steps((0, 600), (900, 1800), (1800, 600))
    return Scenario(rate=rate, slots=2, settled=300, most_lag=150, **known)  # type: ignore[arg-type]


def recorded(number: int, day: str) -> Scenario:
    """Return the replay of a day, with one kind of query after the other."""
    return Scenario(
        rate=curves.recorded(day, PEAK), costs=KINDS[number % len(KINDS)], seed=number, lasts=curves.DAY, near=1.2
    )


def drawn(seed: int) -> Scenario:
    """Return a curve that a seed draws. Its spikes may be shorter than a cool-down."""
    kind = KINDS[seed % len(KINDS)]
    return Scenario(rate=curves.drawn(seed, PEAK), costs=kind, seed=seed, slots=4, lasts=curves.DAY, near=1.5)


_constant = partial(Scenario, settled=1500, most_changes=3, lasts=5400)

SCENARIOS = {
    "the load triples and falls again": _tripled(),
    "it does without telling what waits": _tripled(costs=Costs(tells_backlog=False)),
    "it does with micro-batches that are bounded": _tripled(costs=Costs(bound=4000.0)),
    "it does with a pause between micro-batches": _tripled(costs=Costs(interval=5.0)),
    "it does with bounded micro-batches and without telling what waits": _tripled(
        costs=Costs(bound=1500.0, tells_backlog=False, per_row=0.001),
        most_changes=9,  # nobody knows how much comes in: it feels its way
        near=1.5,
    ),
    "it does with a state of eight partitions": _tripled(costs=Costs(partitions=8, tells_partitions=True), near=1.7),
    "it does, and each change restarts the job": _tripled(in_place=False),
    "hardly a row comes in": _constant(rate=curves.constant(20), slots=4, most_changes=4),
    "a constant load with noise": _constant(rate=curves.constant(900), slots=3, costs=Costs(noise=0.2)),
    "a constant load with noise and a pause": _constant(
        rate=curves.constant(900), slots=3, costs=Costs(noise=0.2, interval=5.0)
    ),
    "a load at the edge of a number of slots": _constant(rate=curves.constant(1008), slots=3, costs=Costs(noise=0.1)),
    "much waits at the begin": Scenario(
        rate=curves.constant(900),
        costs=Costs(bound=4000.0),
        slots=3,
        waiting=600_000,
        settled=900,
        most_lag=60,
        near=2.0,
        most_changes=6,
    ),
    "a sink that takes the time": Scenario(
        rate=curves.constant(900),
        costs=Costs(per_row=0.0005, serial=0.0011, bound=5000.0),
        slots=2,
        most_slots=4,
        most_changes=4,
        hopeless=True,
    ),
    "fewer partitions than slots": Scenario(
        rate=curves.constant(1500),
        costs=Costs(partitions=2, bound=5000.0),
        slots=2,
        most_slots=6,
        most_changes=4,
        hopeless=True,
    ),
}
