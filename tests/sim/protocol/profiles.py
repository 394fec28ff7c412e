"""What slots have, and what groups of jobs want of them, by short names that plans use (R40)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from minflinkd.runtime.resource_profile import ResourceProfile, parse_profile
from tests.sim.protocol.plan import JobPlan, Plan

PROFILES: Mapping[str, ResourceProfile] = {
    "": parse_profile({}),
    "small": parse_profile({"memory": "1 GB"}),
    "large": parse_profile({"memory": "4 GB"}),
    "gpu": parse_profile({"gpu": 1}),
    "all": parse_profile({"memory": "4 GB", "gpu": 1}),
}
WANTED = ("", "", "small", "large", "gpu")


def profile_of(job: JobPlan, group: str) -> ResourceProfile:
    """Return what a slot sharing group wants: the groups of a job are g0, g1, ..."""
    number = int(group.removeprefix("g"))
    return PROFILES[job.profiles[number] if number < len(job.profiles) else ""]


def with_sizes(rng: random.Random, plan: Plan) -> Plan:
    """Return the plan with slots of several sizes, and jobs that want them.

    TaskManagers that nobody can start have all that a job may want: who gets which is left to chance. Those that start
    by themselves never make way for others, so there may be as many more.
    """
    jobs = tuple(
        replace(job, profiles=tuple(rng.choice(WANTED) for _ in job.groups), enlarges=rng.random() < 0.4)
        for job in plan.jobs
    )
    if not plan.can_start:
        return replace(plan, jobs=jobs, standalone_profiles=("all",))
    return replace(
        plan,
        jobs=jobs,
        profile=rng.choice(("", "small", "small")),
        standalone_profiles=rng.choice((("",), ("small",), ("large", "gpu"))),
        max=plan.max + plan.standalone,
    )
