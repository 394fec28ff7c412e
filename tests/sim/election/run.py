"""One seed of the election, from its plan to its verdict."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace

from tests.sim.election.drawing import drawn
from tests.sim.election.plan import ElectionPlan
from tests.sim.election.world import ElectionWorld
from tests.sim.planting import Planted, patched
from tests.sim.protocol import run as protocol
from tests.sim.protocol.run import Verdict


def run(seed: int, planted: Planted = nullcontext) -> Verdict:
    """Run a seed. The story of a violation is that of the smallest plan that breaks the same rule."""
    verdict = attempt(drawn(seed), planted)
    return reduced(drawn(seed), verdict, planted) if verdict.violation else verdict


def attempt(plan: ElectionPlan, planted: Planted = nullcontext, *, told: bool = False) -> Verdict:
    with _repeatable(plan.seed):
        return protocol.attempt(plan, planted, told=told, new_world=ElectionWorld)


def reduced(plan: ElectionPlan, verdict: Verdict, planted: Planted = nullcontext) -> Verdict:
    return protocol.reduced(plan, verdict, planted, play=attempt, smaller=_smaller)


def _smaller(plan: ElectionPlan) -> Iterator[ElectionPlan]:
    for i in range(len(plan.troubles)):
        yield replace(plan, troubles=plan.troubles[:i] + plan.troubles[i + 1 :])
    yield from protocol.smaller(plan)


@contextmanager
def _repeatable(seed: int) -> Iterator[None]:
    """Let libraries that draw by themselves draw the same in each run: pauses between retries, and random names."""
    before, rng = random.getstate(), random.Random(seed)
    random.seed(seed)
    with ExitStack() as stack:
        stack.enter_context(patched(secrets, "token_hex", lambda _: lambda n=32: rng.randbytes(n).hex()))
        stack.enter_context(patched(secrets, "token_bytes", lambda _: lambda n=32: rng.randbytes(n)))
        try:
            yield
        finally:
            random.setstate(before)
