"""Plans that are aimed at what chance alone brings about too rarely. Each takes the rest from a plan of chance."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from tests.sim.protocol.faults import ambush, burst
from tests.sim.protocol.plan import Ambush, Crash, Cut, Fault, JobPlan, Parting, Plan


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
    # Soon after the job's start: the ResourceManager waits for slots that are offered, not for those that it gave up.
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
        faults=(parted, *(ambush(rng, 8.0) for _ in range(rng.choice((0, 1))))),
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
        crashes = tuple(burst(rng, 0.0, rng.choice((0, 1))))
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
        faults=(*told, *burst(rng, at + 1.0, rng.choice((0, 1)))),
    )


def _deployments_are_not_answered_in_time(rng: random.Random, plan: Plan) -> Plan:
    """The first try of one arrives late, the second one never. The task runs when its JobMaster gives it up."""
    jobs = (JobPlan(at=0.0, groups=(1,) * rng.choice((1, 2)), connected=rng.random() < 0.5),)
    timeout, tasks = 5.0, len(jobs[0].groups) + 1
    at, skipped = rng.uniform(0.0, 1.0), rng.randrange(tasks)
    late = Ambush(at, 12.0, "DeployTask", skipped, (rng.uniform(0.6, 1.1) * timeout,))
    lost = Ambush(at, 12.0, "DeployTask", skipped + tasks - rng.choice((0, 0, 1)), ())
    return replace(
        plan,
        **_room_for(jobs),
        slots_per_tm=4,
        heartbeat_interval=rng.choice((1.0, 2.0)),
        heartbeat_timeout=timeout,
        start_time=(0.1, 0.5),
        task_time=rng.choice((0.5, 2.0, 6.0)),
        jobs=jobs,
        faults=(late, lost),
    )


def _a_job_hands_over_to_a_narrower_version(rng: random.Random, plan: Plan) -> Plan:
    """The new JobMaster gives back the slots that it does not need, but keeps their allocations."""
    jobs = tuple(JobPlan(at=0.0, groups=(3,) * rng.choice((1, 2)), narrows=True) for _ in range(rng.choice((1, 2))))
    over = rng.uniform(4.0, 8.0)
    faults: list[Fault] = [Crash(over, 0.0, "jm hands over", 0)]
    if rng.random() < 0.7:
        lost = rng.choice(((), (rng.uniform(1.0, 6.0),), (0.01, rng.uniform(1.0, 6.0))))
        crashes = tuple(burst(rng, 0.0, rng.choice((0, 1))))
        faults.append(Ambush(over, 15.0, rng.choice(("FreeSlots", "FreeSlots", "SlotsFree")), 0, lost, crashes))
    return replace(plan, **_room_for(jobs), slots_per_tm=4, start_time=(0.1, 0.5), jobs=jobs, faults=tuple(faults))


def _a_task_manager_gives_away_slots_that_its_job_master_counts_on(rng: random.Random, plan: Plan) -> Plan:
    """It does not hear the JobMaster until it no longer holds the slots. The JobMaster hears that its tasks end."""
    jobs = (JobPlan(at=0.0, groups=(1,) * rng.choice((1, 2))),)
    cut = Cut(rng.uniform(4.0, 6.0), rng.uniform(9.3, 11.0), "jm", 1, "tm", noticed=False, one_way=True)
    return replace(
        plan,
        **_room_for(jobs),
        slots_per_tm=4,
        heartbeat_interval=1.0,
        heartbeat_timeout=5.0,
        hold_timeout=4.0,
        orphan_timeout=4.0,
        start_time=(0.1, 0.5),
        task_time=6.0,
        task_failures=0.3,
        jobs=jobs,
        faults=(cut,),
    )


def _a_job_master_does_not_learn_of_an_end(rng: random.Random, plan: Plan) -> Plan:
    """The session is lost while the JobMaster cannot be reached, for so long that the TaskManager gives up telling."""
    jobs = (JobPlan(at=0.0, groups=(1,) * rng.choice((1, 2))),)
    at = rng.uniform(4.0, 6.0)
    cut = Cut(at, rng.uniform(5.2, 7.5), "tm", 1, "jm", noticed=True, one_way=True)
    lost = Crash(at + rng.uniform(0.0, 0.2), 0.1, "session", 0)
    return replace(
        plan,
        **_room_for(jobs),
        slots_per_tm=4,
        heartbeat_interval=1.0,
        heartbeat_timeout=9.0,
        start_time=(0.1, 0.5),
        task_time=0.5,
        jobs=jobs,
        faults=(cut, lost),
    )


def _slots_come_back_without_their_tasks(rng: random.Random, plan: Plan) -> Plan:
    """The daemon is stopped. Meanwhile the TaskManager gives the slots up, and cannot tell that their tasks have ended.

    When the daemon goes on, an old request allocates the same slots once more, before the JobMaster could miss them.
    """
    jobs = (JobPlan(at=0.0, groups=(1,)),)
    at, lasts = rng.uniform(3.0, 5.0), 14.0
    twice = Ambush(0.0, 3.0, "AllocateSlots", 0, (0.01, at + lasts + rng.uniform(0.5, 1.0)))
    unheard = Cut(at + 5.5, lasts - 5.5 + rng.uniform(0.2, 0.5), "tm", 0, "jm", noticed=True, one_way=False)
    return replace(
        plan,
        **_room_for(jobs),
        heartbeat_interval=2.0,
        heartbeat_timeout=5.0,
        hold_timeout=3.0,
        orphan_timeout=3.0,
        start_time=(0.1, 0.5),
        task_time=0.5,
        jobs=jobs,
        faults=(twice, Crash(at, lasts, "daemon stopped", 0), unheard),
    )


def _the_resource_manager_serves_what_a_job_no_longer_needs(rng: random.Random, plan: Plan) -> Plan:
    """It hears of the job's first need, and not that this was served and that the job gave the slots back."""
    jobs = (JobPlan(at=0.0, groups=(1,) * rng.choice((1, 2))),)
    parted = Parting(rng.uniform(7.0, 9.0), noticed=rng.random() < 0.3, late=rng.random() < 0.3)
    cut = Ambush(0.0, 2.0, "NeedsAnswer", 0, (), parted=parted)
    lost = Crash(rng.uniform(2.5, 5.0), 0.1, "session", 0)
    return replace(
        plan,
        **_room_for(jobs),
        slots_per_tm=4,
        heartbeat_interval=1.0,
        heartbeat_timeout=5.0,
        start_time=(0.1, 0.5),
        task_time=rng.choice((0.05, 0.5)),
        jobs=jobs,
        faults=(cut, lost),
    )


def _nobody_leads_for_longer_than_tasks_wait(rng: random.Random, plan: Plan) -> Plan:
    """The daemon is gone when tasks run, or when slots are accepted and nothing runs on them yet."""
    jobs = (JobPlan(at=0.0, groups=(1,) * rng.choice((1, 2))),)
    gone = Crash(0.0, rng.uniform(15.0, 17.0), rng.choice(("daemon", "jm")), 0)
    early = Ambush(0.0, 5.0, "OffersAccepted", 0, (0.01,), (gone,))
    return replace(
        plan,
        **_room_for(jobs),
        heartbeat_interval=1.0,
        heartbeat_timeout=3.0,
        hold_timeout=4.0,
        orphan_timeout=6.0,
        start_time=(0.1, 0.5),
        task_time=0.5,
        jobs=jobs,
        faults=(rng.choice((early, replace(gone, at=rng.uniform(4.0, 6.0)))),),
    )


def _a_job_master_is_gone_while_its_tasks_end(rng: random.Random, plan: Plan) -> Plan:
    """They end slowly. The next JobMaster looks for tasks to adopt only for a short while."""
    jobs = (JobPlan(at=0.0, groups=(1,) * rng.choice((1, 2)), connected=True),)
    gone = Crash(rng.uniform(0.05, 0.5), 0.1, "jm", 0)
    return replace(
        plan,
        **_room_for(jobs),
        heartbeat_interval=1.0,
        heartbeat_timeout=3.0,
        start_time=(0.1, 0.5),
        task_time=6.0,
        task_failures=0.5,
        jobs=jobs,
        faults=(Ambush(0.0, 20.0, "CancelTask", 0, (0.01,), (gone,)),),
    )


def _a_task_manager_comes_back_with_attempts_that_were_replaced(rng: random.Random, plan: Plan) -> Plan:
    """The attempts that replaced them are lost, with their JobMaster. Nobody can kill the first TaskManager."""
    jobs = (JobPlan(at=0.0, groups=(1,)),)
    at, back = rng.uniform(4.0, 5.0), rng.uniform(13.0, 15.0)
    away = Cut(at, back - at, "tm", 0, "all", noticed=False, one_way=False)
    lost = back - rng.uniform(0.0, 1.5)
    return replace(
        plan,
        **{**_room_for(jobs), "max": 3},
        heartbeat_interval=1.0,
        heartbeat_timeout=3.0,
        start_time=(0.1, 0.5),
        task_time=0.5,
        unkillable=1.0,
        jobs=jobs,
        faults=(away, Crash(lost, 0.0, "tm", 1), Crash(lost, rng.uniform(0.1, 1.0), "jm", 0)),
    )


def _an_old_offer_comes_when_its_tasks_have_failed(rng: random.Random, plan: Plan) -> Plan:
    """The next JobMaster has answered the news of that already. It still looks for the rest of the job's tasks."""
    jobs = (JobPlan(at=0.0, groups=(1, 1)),)
    gone = rng.uniform(4.0, 6.0)
    offered = (0.01, rng.uniform(2.0, 4.5))
    return replace(
        plan,
        **_room_for(jobs),
        slots_per_tm=1,
        heartbeat_interval=1.0,
        heartbeat_timeout=5.0,
        start_time=(0.1, 0.5),
        task_time=0.5,
        jobs=jobs,
        faults=(
            Crash(gone, 0.1, "jm", 0),
            Crash(gone, 0.0, "tm", 1),
            Ambush(gone + 0.05, 3.0, "OfferSlots", 0, offered, (Crash(rng.uniform(0.5, 1.5), 0.1, "session", 0),)),
        ),
    )


def slots_change_under_running_tasks(rng: random.Random, plan: Plan) -> Plan:
    """Versions that want more or fewer slots follow one another, and what the tasks are told is lost or late."""
    groups = tuple(rng.choice((1, 2, 3)) for _ in range(rng.choice((1, 2))))
    job = JobPlan(
        at=0.0,
        groups=groups,
        runs_on=True,
        narrows=rng.random() < 0.5,
        adaptive=rng.random() < 0.5,
        connected=rng.random() < 0.5,
    )
    jobs = (job,) * rng.choice((1, 2))
    faults: list[Fault] = []
    at = rng.uniform(3.0, 5.0)
    for _ in range(rng.choice((1, 2, 3))):
        faults.append(Crash(at, 0.0, "jm hands over", rng.choice((0, 1))))
        if rng.random() < 0.7:
            delays = rng.choice(((), (rng.uniform(0.5, 4.0),), (0.01, rng.uniform(1.0, 6.0))))
            crashes = tuple(burst(rng, 0.0, rng.choice((0, 1))))
            faults.append(Ambush(at, 4.0, rng.choice(("ResizeTask", "ResizeTask", "OfferSlots")), 0, delays, crashes))
        at += rng.uniform(0.5, 5.0)
    room = {**_room_for(jobs), "max": 2 * sum(len(job.groups) for job in jobs)}  # slots of one may be divided badly
    return replace(plan, **room, slots_per_tm=4, start_time=(0.1, 0.5), jobs=jobs, faults=tuple(faults))


def small_jobs_come_before_a_large_one(rng: random.Random, plan: Plan) -> Plan:
    """One TaskManager has what a job wants of all its slots. Others take one of them each, and end one by one.

    Nothing else goes wrong: if the job lost its slots, others could take one for good.
    """
    large = JobPlan(at=rng.uniform(2.0, 4.0), groups=(4,), profiles=("gpu",))
    small = tuple(
        JobPlan(at=rng.uniform(0.0, 1.0), groups=(1,), ends=rng.uniform(5.0, 20.0), again=True)
        for _ in range(rng.choice((3, 4)))
    )
    return replace(
        plan,
        **{**_room_for((*small, large)), "max": 3, "standalone": 3, "can_start": False},
        standalone_profiles=("gpu", "", ""),
        slots_per_tm=4,
        start_time=(0.1, 0.5),
        task_time=0.05,
        task_failures=0.0,
        storage_failures=0.0,
        ageing=0.0,
        jobs=(*small, large),
        faults=(),
    )


AIMED = (
    _requests_come_when_their_job_has_ended,
    _a_job_loses_its_task_manager_and_comes_back_to_it,
    _the_resource_manager_does_not_hear_of_a_job,
    _deployments_and_offers_come_twice,
    _answers_are_lost_when_slots_change_hands,
    _who_was_told_to_exit_registers_again,
    _deployments_are_not_answered_in_time,
    _a_job_hands_over_to_a_narrower_version,
    _a_task_manager_gives_away_slots_that_its_job_master_counts_on,
    _a_job_master_does_not_learn_of_an_end,
    _the_resource_manager_serves_what_a_job_no_longer_needs,
    _slots_come_back_without_their_tasks,
    _nobody_leads_for_longer_than_tasks_wait,
    _a_job_master_is_gone_while_its_tasks_end,
    _a_task_manager_comes_back_with_attempts_that_were_replaced,
    _an_old_offer_comes_when_its_tasks_have_failed,
)
