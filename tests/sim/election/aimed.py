"""Plans that are aimed at what chance alone brings about too rarely. Each takes the rest from a plan of chance."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.sim.election.plan import ElectionPlan, Trouble
from tests.sim.protocol.plan import Ambush, Crash, Cut, JobPlan

ALONE = {"standalone": 0, "start_failures": 0.0, "task_failures": 0.0, "start_time": (0.1, 0.3), "faults": ()}


def _tasks_of_the_version_before_come_back(rng: random.Random, plan: ElectionPlan) -> ElectionPlan:
    """They are cut off while the next version takes over, which dies with its leader before its first checkpoint."""
    at = rng.uniform(3.5, 4.5)
    cut = Cut(at, rng.uniform(4.5, 6.5), "tm", rng.choice((0, 1)), "all", noticed=False, one_way=False)
    over = Crash(at + 0.1, 0.0, "jm hands over", 0)
    deaths = (Crash(rng.uniform(0.1, 0.4), 1.0, "daemon", 0), Crash(0.1, 0.5, "tm", 0))
    deployed = Ambush(at + 0.2, 12.0, "DeployTask", 0, (0.01,), deaths)
    return replace(
        plan,
        **{**ALONE, "faults": (cut, over, deployed)},
        quiet=False,
        slots_per_tm=4,
        standby=1,
        max=4,
        unkillable=1.0,
        heartbeat_timeout=3.0,
        task_time=0.05,
        session_timeout=2.0,
        renewal=0.4,
        paces=(1.0, 1.0, 1.0),
        checkpoint_interval=100.0,
        jobs=(JobPlan(at=0.5, groups=(3,), narrows=True),),
        troubles=(),
    )


def _the_leader_is_cut_off_for_almost_a_session(rng: random.Random, plan: ElectionPlan) -> ElectionPlan:
    """It gives up, and comes back in the same session, with writes that it has not yet given up. Another one leads."""
    timeout, at = plan.session_timeout, rng.uniform(3.0, 5.0)
    cut = Trouble(at, timeout * rng.uniform(0.86, 0.99), "cut", 0)
    again = Trouble(at + timeout * rng.uniform(1.0, 1.6), rng.uniform(0.5, 2.0), rng.choice(("kill", "handover")), 0)
    troubles = (cut, again) if rng.random() < 0.7 else (cut,)
    return replace(plan, **ALONE, troubles=troubles, checkpoint_interval=0.5, storage_delay=0.02)


def _a_leader_that_was_cut_off_closes_for_long(rng: random.Random, plan: ElectionPlan) -> ElectionPlan:
    """It comes back in the same session, whose claim would keep others from the lead for as long as it closes."""
    at, timeout, closing = rng.uniform(3.0, 5.0), 4.0, 32.0
    cut = Trouble(at + closing, timeout * rng.uniform(0.88, 0.95), "cut", 0)
    troubles = (Trouble(at, 2 * closing, "slow end", 0), cut)  # so that the calm begins long before all is closed
    times = {"session_timeout": timeout, "renewal": 0.5, "checkpoint_interval": 2.0}
    return replace(plan, **ALONE, **times, quiet=False, troubles=troubles, jobs=plan.jobs[:1])


def _the_server_of_the_leader_is_cut_off(rng: random.Random, plan: ElectionPlan) -> ElectionPlan:
    """It goes on to answer, from what it knew."""
    at = rng.uniform(3.0, 6.0)
    return replace(plan, **ALONE, troubles=(Trouble(at, plan.session_timeout * rng.uniform(2.0, 3.0), "server", 0),))


def _the_leader_is_stopped_and_goes_on(rng: random.Random, plan: ElectionPlan) -> ElectionPlan:
    """Soon after its next checkpoint has begun, or at any other moment."""
    at = rng.uniform(3.0, 6.0)
    pause = Trouble(at, plan.session_timeout * rng.uniform(0.9, 1.8), "pause", 0)
    return replace(plan, **ALONE, troubles=(pause,), checkpoint_interval=0.5)


def _an_answer_waits_while_the_leader_is_stopped(rng: random.Random, plan: ElectionPlan) -> ElectionPlan:
    """It says that the claim was there when it was asked for. Afterwards the leader is cut off from the service."""
    timeout, at = plan.session_timeout, rng.uniform(4.0, 6.0)
    slow = Trouble(at - 1.0, 1.5, "slow", 0)
    pause = Trouble(at, timeout * rng.uniform(0.5, 0.75), "pause", 0)
    cut = Trouble(at + 0.35, 2.0 * timeout, "cut", 0)
    return replace(plan, **ALONE, troubles=(slow, pause, cut))


def _checkpoints_are_complete_and_not_notified(rng: random.Random, plan: ElectionPlan) -> ElectionPlan:
    """Or taken and not complete, or complete and not known to be so: a leader dies, or a JobMaster."""
    message = rng.choice(("NotifyCheckpointComplete", "AcknowledgeCheckpoint", "TriggerCheckpoint"))
    death = Crash(rng.choice((0.0, 0.01, 0.05, 0.1)) * rng.random(), 0.5, rng.choice(("daemon", "daemon", "jm")), 0)
    delays = rng.choice(((), (0.01,), (rng.uniform(1.0, 5.0),)))
    lost = tuple(Ambush(rng.uniform(3.0, 7.0), 6.0, message, i, delays, (death,) if not i else ()) for i in range(2))
    quiet = message != "TriggerCheckpoint"
    return replace(plan, **{**ALONE, "faults": lost}, troubles=(), quiet=plan.quiet and quiet)


AIMED = (
    _tasks_of_the_version_before_come_back,
    _the_leader_is_cut_off_for_almost_a_session,
    _the_server_of_the_leader_is_cut_off,
    _the_leader_is_stopped_and_goes_on,
    _an_answer_waits_while_the_leader_is_stopped,
    _checkpoints_are_complete_and_not_notified,
    _a_leader_that_was_cut_off_closes_for_long,
)
