"""What a seed stands for: draws the plan of a run. Half of the plans are aimed (`aimed.py`)."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.sim.protocol.aimed import AIMED, slots_change_under_running_tasks, small_jobs_come_before_a_large_one
from tests.sim.protocol.faults import faults
from tests.sim.protocol.plan import JobPlan, Plan
from tests.sim.protocol.profiles import with_sizes


def drawn(seed: int) -> Plan:
    """Return the plan of a seed. Half of them are aimed at something that chance alone brings about too rarely."""
    rng = random.Random(f"plan {seed}")
    plan = _any(rng, seed)
    drawn_plan = rng.choice(AIMED)(rng, plan) if rng.random() < 0.5 else plan
    late = random.Random(f"what later came to the plan {seed}")  # so that seeds still stand for what they stood for
    if late.random() < 0.08:
        return _sized(seed, slots_change_under_running_tasks(late, drawn_plan))
    jobs = tuple(replace(job, runs_on=late.random() < 0.3) for job in drawn_plan.jobs)
    return _sized(seed, replace(drawn_plan, jobs=jobs))


def _sized(seed: int, plan: Plan) -> Plan:
    """Return the plan, a third of them with slots of several sizes. That came to the plans later still."""
    rng = random.Random(f"the sizes in the plan {seed}")
    if rng.random() < 0.05:
        return small_jobs_come_before_a_large_one(rng, plan)
    return with_sizes(rng, plan) if rng.random() < 0.3 else plan


def _any(rng: random.Random, seed: int) -> Plan:
    slots_per_tm = rng.choice((2, 3, 4))
    jobs = tuple(_job(rng, slots_per_tm) for _ in range(rng.choice((1, 2, 2, 3, 3, 4))))
    rich = sum(len(job.groups) for job in jobs)
    standby = rng.choice((0, 0, 1, 2))
    tight = rng.random() < 0.25
    most = max(len(job.groups) for job in jobs) if tight else rich + standby + rng.choice((0, 1, 2))
    can_start = rng.random() < 0.92
    interval, timeout = rng.choice(((1.0, 3.0), (1.0, 5.0), (2.0, 5.0), (2.0, 5.0), (2.0, 6.0)))
    return Plan(
        seed=seed,
        slots_per_tm=slots_per_tm,
        min=rng.choice((0, 0, 1)),
        standby=standby,
        max=most,
        standalone=rng.choice((0, 0, 0, 1, 2)) if can_start else most,
        can_start=can_start,
        heartbeat_interval=interval,
        heartbeat_timeout=timeout,
        hold_timeout=rng.choice((4.0, 8.0)),
        taskmanager_timeout=rng.choice((3.0, 8.0)),
        registration_timeout=rng.choice((0.0, 0.0, 8.0)),
        start_time=rng.choice(((0.1, 0.5), (0.5, 3.0))),
        start_failures=rng.choice((0.0, 0.0, 0.2)),
        task_time=rng.choice((0.05, 0.5, 0.5, 2.0, 2.0, 6.0)),
        task_failures=rng.choice((0.0, 0.0, 0.1)),
        storage_failures=rng.choice((0.0, 0.0, 0.2)),
        ageing=rng.choice((0.0, 0.0, 0.3)),
        unkillable=rng.choice((0.0, 0.0, 0.5)),
        tight=tight,
        encoded=rng.random() < 0.05,
        jobs=jobs,
        faults=faults(rng),
    )


def _job(rng: random.Random, slots_per_tm: int) -> JobPlan:
    at = rng.uniform(0.0, 5.0)
    return JobPlan(
        at=at,
        groups=tuple(rng.randint(1, slots_per_tm) for _ in range(rng.choice((1, 1, 1, 2, 2, 3)))),
        adaptive=rng.random() < 0.5,
        connected=rng.random() < 0.5,
        exclusive=rng.random() < 0.2,
        fragile=rng.random() < 0.15,
        ends=at + rng.uniform(3.0, 12.0) if rng.random() < 0.35 else None,
        bounded=rng.random() < 0.5,
        narrows=rng.random() < 0.3,
        again=rng.random() < 0.5,
        version=rng.choice(("", "", "", "one", "two")),
    )
