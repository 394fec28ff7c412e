"""What a seed stands for: draws the plan of a run.

Most plans are drawn at random. Some are aimed at what chance alone brings about too rarely.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from tests.sim.protocol.plan import Ambush, Crash, Cut, Fault, JobPlan, Parting, Plan, Storm
from tests.sim.protocol.wire import Weather

CRASHES = (
    *("rm", "jm", "jm", "daemon", "tm", "tm", "tm+rm", "session"),
    *("stopped", "daemon stopped", "rm hangs", "jm hangs", "jm hands over"),
)
HANGS = frozenset({"stopped", "daemon stopped", "rm hangs", "jm hangs"})
# Messages and answers of an allocation, an offer, a deployment, the end of one, and of who is there.
AMBUSHED = (
    *("AllocateSlots", "AllocateSlots", "SlotAnswer", "OfferSlots", "OffersAccepted", "DeployTask", "DeployTask"),
    *("TaskStateChanged", "CancelTask", "FreeSlots", "FreeSlots", "SlotsFree", "DeclareNeeds", "NeedsAnswer"),
    *("RegisterTaskManager", "Registered", "TaskManagerLost", "JobMasterEnded", "JobHeartbeatAnswer"),
)


def drawn(seed: int) -> Plan:
    """Return the plan of a seed. Two in five are aimed at something that chance alone brings about too rarely."""
    rng = random.Random(f"plan {seed}")
    plan = _any(rng, seed)
    return rng.choice(AIMED)(rng, plan) if rng.random() < 0.4 else plan


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
        faults=_faults(rng),
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
        again=rng.random() < 0.5,
        version=rng.choice(("", "", "", "one", "two")),
    )


def _faults(rng: random.Random) -> tuple[Fault, ...]:
    until = rng.choice((4.0, 8.0, 12.0))
    faults: list[Fault] = []
    for _ in range(rng.choice((0, 1, 1, 2))):
        at = rng.uniform(0.0, until)
        faults.append(Storm(at, rng.uniform(1.0, 8.0), _weather(rng)))
    faults += [_cut(rng, until) for _ in range(rng.choice((0, 1, 1, 2)))]
    for _ in range(rng.choice((0, 1, 1, 2))):
        began = rng.uniform(0.5, until)
        faults += _burst(rng, began, rng.choice((1, 1, 2, 3)))
    faults += [_ambush(rng, until) for _ in range(rng.choice((0, 1, 2, 3)))]
    return tuple(sorted(faults, key=lambda fault: fault.at))


def _burst(rng: random.Random, began: float, count: int) -> list[Crash]:
    """Return crashes close together."""
    crashes = []
    for _ in range(count):
        what = rng.choice(CRASHES)
        lasts = rng.uniform(0.5, 8.0) if what in HANGS else rng.choice((0.1, 0.5, 2.0, 5.0))
        crashes.append(
            Crash(began + rng.choice((0.0, 0.02, 0.1, 0.5, 2.0)) * rng.random(), lasts, what, rng.randrange(8))
        )
    return crashes


def _ambush(rng: random.Random, until: float) -> Ambush:
    return Ambush(
        at=rng.uniform(0.0, until),
        waits=rng.uniform(1.0, 6.0),
        message=rng.choice(AMBUSHED),
        skipped=rng.choice((0, 0, 0, 1, 2)),
        delays=tuple(rng.choice((0.01, 0.2, 1.0, 4.0, 12.0)) * rng.random() for _ in range(rng.choice((0, 1, 1, 2)))),
        crashes=tuple(_burst(rng, 0.0, rng.choice((0, 1, 1, 2)))),
    )


def _weather(rng: random.Random) -> Weather:
    return Weather(
        drop=rng.choice((0.0, 0.05, 0.2, 0.5)),
        double=rng.choice((0.0, 0.1, 0.3)),
        late=rng.choice((0.0, 0.1, 0.3)),
        latest=rng.choice((0.5, 3.0, 12.0)),
    )


def _cut(rng: random.Random, until: float) -> Cut:
    who, whom = rng.choice((("tm", "all"), ("tm", "rm"), ("tm", "jm"), ("tm", "jm"), ("jm", "rm")))
    return Cut(
        at=rng.uniform(0.5, until),
        lasts=rng.choice((rng.uniform(0.5, 4.0), rng.uniform(4.0, 12.0))),
        who=who,
        number=rng.randrange(8),
        whom=whom,
        noticed=rng.random() < 0.4,
        one_way=rng.random() < 0.4,
        late=rng.random() < 0.5,
    )


# --- aimed plans -----------------------------------------------------------------------------------------------------


def _requests_come_when_their_job_has_ended(rng: random.Random, plan: Plan) -> Plan:
    """A request for slots is held up for longer than its reservation stands. Meanwhile another job gets the slots."""
    width = plan.slots_per_tm
    jobs = tuple(JobPlan(at=rng.uniform(0.0, 1.0), groups=(width,), again=True) for _ in range(rng.choice((1, 1, 2))))
    held_up = Ambush(
        at=0.0,
        waits=8.0,
        message="AllocateSlots",
        skipped=rng.choice((0, 0, 1)),
        delays=(),
        crashes=(Crash(rng.uniform(0.0, 0.3), 0.0, "end", 0),),
        parted=Parting(rng.uniform(9.5, 13.0), one_way=True, late=True),
    )
    return replace(
        plan,
        **_room_for(jobs),
        heartbeat_interval=2.0,
        heartbeat_timeout=8.0,
        taskmanager_timeout=8.0,
        start_time=(0.1, 0.5),
        jobs=jobs,
        faults=(held_up,),
    )


def _a_job_loses_its_task_manager_and_comes_back_to_it(rng: random.Random, plan: Plan) -> Plan:
    """Their connections fail for a moment. The JobMaster takes the TaskManager for lost, but not vice versa."""
    jobs = (JobPlan(at=0.0, groups=(1,) * rng.choice((1, 2)), adaptive=rng.random() < 0.3),)
    # Within the first heartbeat timeout the ResourceManager waits for the TaskManager to offer what it has.
    parted = Ambush(
        at=rng.uniform(1.0, 5.0),
        waits=2.0,
        message="HeartbeatFromJobMaster",
        skipped=0,
        delays=(),
        parted=Parting(rng.uniform(1.5, 3.5), noticed=True),
    )
    return replace(
        plan,
        **_room_for(jobs),
        slots_per_tm=4,
        heartbeat_interval=1.0,
        heartbeat_timeout=5.0,
        start_time=(0.1, 0.5),
        task_time=rng.choice((0.05, 0.5)),
        jobs=jobs,
        faults=(parted, *(_ambush(rng, 8.0) for _ in range(rng.choice((0, 1))))),
    )


def _room_for(jobs: tuple[JobPlan, ...]) -> dict[str, Any]:
    """Return settings that leave no other room than that of these jobs."""
    return {
        "min": 0,
        "standby": 0,
        "max": sum(len(job.groups) for job in jobs),
        "standalone": 0,
        "can_start": True,
        "tight": False,
        "start_failures": 0.0,
        "registration_timeout": 0.0,
    }


def _the_resource_manager_does_not_hear_of_a_job(rng: random.Random, plan: Plan) -> Plan:
    """It drops the job's needs. Afterwards the job needs slots again."""
    at, lasts = rng.uniform(0.5, 6.0), rng.uniform(6.5, 10.0)
    cut = Cut(at, lasts, "jm", 0, "rm", noticed=rng.random() < 0.5, one_way=False, late=rng.random() < 0.5)
    crash = Crash(at + lasts + rng.uniform(-1.0, 1.0), 0.5, rng.choice(("tm", "tm", "session", "jm")), 0)
    return replace(plan, heartbeat_interval=1.0, heartbeat_timeout=3.0, faults=(cut, crash))


def _deployments_and_offers_come_twice(rng: random.Random, plan: Plan) -> Plan:
    """The second time, the task or its session has failed, the slots were given back, or another JobMaster leads."""
    faults = []
    for _ in range(rng.choice((1, 2))):
        doubled = (0.01, rng.choice((0.3, 2.0, 6.0)) * rng.random())
        what = rng.choice(("session", "session", "jm", "jm hangs", "jm hands over", "end"))
        crash = Crash(rng.choice((0.0, 0.1, 1.0)) * rng.random(), 0.1, what, 0)
        at = rng.uniform(0.0, 5.0)
        message = rng.choice(("DeployTask", "OfferSlots"))
        faults.append(Ambush(at, 6.0, message, rng.choice((0, 1, 2)), doubled, (crash,)))
    return replace(plan, task_time=rng.choice((0.05, 0.5)), task_failures=0.3, faults=tuple(faults))


def _answers_are_lost_when_slots_change_hands(rng: random.Random, plan: Plan) -> Plan:
    """A request is carried out, but its sender does not know, and one of the two, or who told them, is gone."""
    faults = []
    for _ in range(rng.choice((2, 3, 4))):
        message = rng.choice(("SlotAnswer", "OffersAccepted", "Registered", "SlotsFree", "FreeSlots", "CancelTask"))
        delays = rng.choice(((), (), (rng.uniform(1.0, 6.0),)))
        crashes = tuple(_burst(rng, 0.0, rng.choice((0, 1))))
        faults.append(Ambush(rng.uniform(0.0, 8.0), 4.0, message, rng.choice((0, 0, 1)), delays, crashes))
    return replace(plan, faults=tuple(faults))


def _who_was_told_to_exit_registers_again(rng: random.Random, plan: Plan) -> Plan:
    """The message was lost, and nobody can kill the TaskManager. Meanwhile a job waits for another one to start."""
    width, at = plan.slots_per_tm, rng.uniform(3.0, 7.0)
    early = JobPlan(at=0.0, groups=(width, width), ends=2.0)
    late = tuple(JobPlan(at=at + rng.uniform(0.0, 1.0), groups=(width,) * rng.choice((1, 2))) for _ in range(2))
    told = tuple(Ambush(2.0, 6.0, "ExitTaskManager", skipped, ()) for skipped in (0, 0))
    return replace(
        plan,
        **{**_room_for((early, *late)), "start_failures": 0.5, "standby": rng.choice((0, 1))},
        unkillable=1.0,
        taskmanager_timeout=rng.uniform(0.5, 2.0),
        start_time=(0.1, 0.5),
        task_time=0.05,
        jobs=(early, *late),
        faults=(*told, *_burst(rng, at + 1.0, rng.choice((0, 1)))),
    )


AIMED = (
    _requests_come_when_their_job_has_ended,
    _a_job_loses_its_task_manager_and_comes_back_to_it,
    _the_resource_manager_does_not_hear_of_a_job,
    _deployments_and_offers_come_twice,
    _answers_are_lost_when_slots_change_hands,
    _who_was_told_to_exit_registers_again,
)
