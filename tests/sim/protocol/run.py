"""One seed, from its plan to its verdict.

A failing run is reduced to the faults that it needs, and its story is told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import structlog

from tests.sim.planting import Planted
from tests.sim.protocol.drawing import drawn
from tests.sim.protocol.journal import Violation
from tests.sim.protocol.plan import Plan
from tests.sim.protocol.rest import standing
from tests.sim.protocol.world import World

P = TypeVar("P", bound=Plan)
NewWorld = Callable[[Any], World]  # makes the world of a plan


@dataclass(frozen=True)
class Verdict:
    seed: int
    violation: str = ""  # empty: everything held
    story: tuple[str, ...] = ()  # of a violation: settings, journal, what broke
    virtual: float = 0.0  # seconds that passed in the run
    served_in: float = 0.0  # seconds from the last fault until every job ran
    gone_in: float = 0.0  # seconds from the end of the jobs until nothing was left
    messages: int = 0


def run(seed: int, planted: Planted = nullcontext) -> Verdict:
    """Run a seed. The story of a violation is that of the smallest plan that breaks the same rule."""
    verdict = attempt(drawn(seed), planted)
    return reduced(drawn(seed), verdict, planted) if verdict.violation else verdict


def attempt(plan: Plan, planted: Planted = nullcontext, *, told: bool = False, new_world: NewWorld = World) -> Verdict:
    """Run a plan. With `told`, the verdict has the story even if nothing broke."""
    violation = ""
    with planted(), _quiet():
        world = new_world(plan)
        try:
            world.run()
        except Violation as error:
            violation = str(error)
        finally:
            world.close()
    story: tuple[str, ...] = ()
    if violation or told:
        story = (*plan.lines(), "", *world.universe.journal.lines(), "", *standing(world), "")
        story = (*story, f"broken: {violation}" if violation else "everything held")
    times = (world.universe.now, world.served_in, world.gone_in)
    return Verdict(plan.seed, violation, story, *times, world.universe.wire.sent)


@contextmanager
def _quiet() -> Iterator[None]:
    """Switch logging off. What the cores log is in the journal."""
    configured, before = structlog.is_configured(), structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        if configured:
            structlog.configure(**before)
        else:
            structlog.reset_defaults()


def smaller(plan: P) -> Iterator[P]:
    """Yield the plan without one of its faults or jobs."""
    for i in range(len(plan.faults)):
        yield replace(plan, faults=plan.faults[:i] + plan.faults[i + 1 :])
    if len(plan.jobs) > 1:
        for i in range(len(plan.jobs)):
            yield replace(plan, jobs=plan.jobs[:i] + plan.jobs[i + 1 :])


def reduced(
    plan: Any,
    verdict: Verdict,
    planted: Planted = nullcontext,
    *,
    play: Callable[[Any, Planted], Verdict] = attempt,
    smaller: Callable[[Any], Iterator[Any]] = smaller,
) -> Verdict:
    """Leave out faults and jobs, one after another, while the same rule breaks."""
    found = True
    while found:
        found = False
        for less in smaller(plan):
            tried = play(less, planted)
            if tried.violation and kind(tried.violation) == kind(verdict.violation):
                plan, verdict, found = less, tried, True
                break
    return verdict


def kind(violation: str) -> str:
    """Return the words with which violations of this rule begin, whoever broke it."""
    return " ".join(word for word in violation.split("\n")[0].split() if not any(map(str.isdigit, word)))[:60]
