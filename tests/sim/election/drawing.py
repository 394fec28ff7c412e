"""What a seed stands for: draws the plan of a run."""

from __future__ import annotations

import random

from tests.sim.election.aimed import AIMED
from tests.sim.election.plan import ALL, QUIET, ElectionPlan, Trouble
from tests.sim.protocol.faults import faults
from tests.sim.protocol.plan import JobPlan

SLOWEST = 0.85  # of a clock: what the lease leaves of the session timeout


def drawn(seed: int) -> ElectionPlan:
    """Return the plan of a seed. Some are aimed at what chance alone brings about too rarely."""
    rng = random.Random(f"election {seed}")
    plan = _any(rng, seed)
    return rng.choice(AIMED)(rng, plan) if rng.random() < 0.3 else plan


def _any(rng: random.Random, seed: int) -> ElectionPlan:
    quiet = rng.random() < 0.4
    timeout, renewal = rng.choice(((2.0, 0.4), (4.0, 1.0), (6.0, 1.0)))
    crowd = rng.random() < 0.04
    slots = rng.choice((2, 3, 4))
    jobs = tuple(_job(rng, slots, quiet) for _ in range(rng.choice((6,)) if crowd else rng.choice((1, 1, 2))))
    rich = sum(len(job.groups) for job in jobs)
    until = rng.choice((8.0, 14.0))
    return ElectionPlan(
        seed=seed,
        slots_per_tm=slots,
        standby=rng.choice((0, 1)),
        max=20 if crowd else rich + 2,
        standalone=0,
        heartbeat_interval=1.0,
        heartbeat_timeout=rng.choice((3.0, 5.0)),
        taskmanager_timeout=rng.choice((5.0, 8.0)),
        start_time=(0.1, 0.5),
        task_time=rng.choice((0.05, 0.3, 1.0)),
        task_failures=0.0 if quiet else rng.choice((0.0, 0.0, 0.1)),
        encoded=rng.random() < 0.03,
        jobs=jobs,
        faults=() if quiet else faults(rng),
        session_timeout=timeout,
        renewal=renewal,
        paces=tuple(rng.choice((1.0, 1.0, SLOWEST, 1.1)) for _ in range(3)),
        storage_delay=rng.choice((0.02, 0.3)),
        checkpoint_interval=rng.choice((0.5, 1.0, 2.0)),
        troubles=_troubles(rng, until, timeout, QUIET if quiet else ALL),
        quiet=quiet,
    )


def _job(rng: random.Random, slots: int, quiet: bool) -> JobPlan:
    at = rng.uniform(0.5, 3.0)
    return JobPlan(
        at=at,
        groups=tuple(rng.randint(1, slots) for _ in range(rng.choice((1, 1, 2)))),
        connected=rng.random() < 0.5,
        adaptive=not quiet and rng.random() < 0.2,
        ends=at + rng.uniform(8.0, 15.0) if rng.random() < 0.25 else None,
        bounded=rng.random() < 0.4,
        narrows=rng.random() < 0.3,
    )


def _troubles(rng: random.Random, until: float, timeout: float, kinds: tuple[str, ...]) -> tuple[Trouble, ...]:
    drawn = []
    for _ in range(rng.choice((1, 2, 3, 4))):
        began = rng.uniform(3.0, until)
        for _ in range(rng.choice((1, 1, 2))):  # close together
            at = began + rng.choice((0.0, 0.05, 0.5, timeout)) * rng.random()
            lasts = timeout * rng.choice((0.3, 0.9, 1.2, 1.6, 2.5)) * rng.uniform(0.8, 1.2)
            drawn.append(Trouble(at, lasts, rng.choice(kinds), rng.choice((0, 0, 0, 1, 2, 3))))
    return tuple(sorted(drawn, key=lambda trouble: trouble.at))
