"""The real code, broken on purpose. The simulation must find each of these; it does not guard what it cannot find."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from msgspec.structs import replace as copy

from minflinkd.jobmaster.scheduler import failover
from minflinkd.jobmaster.scheduler.slot_pool import SlotPool
from minflinkd.resourcemanager import reservations, slot_manager
from minflinkd.taskmanager.slots import machine as slot_machine
from minflinkd.taskmanager.slots import table as slot_table
from minflinkd.taskmanager.slots.core import TaskManagerCore
from minflinkd.taskmanager.slots.events import EndTasks
from minflinkd.taskmanager.slots.state import Slots
from minflinkd.taskmanager.slots.step import Step as SlotsStep
from tests.sim.planting import Planted, patched
from tests.sim.protocol.plan import drawn
from tests.sim.protocol.run import Verdict, attempt, reduced


def _slots_are_marked_after_they_are_asked_for() -> Any:
    return patched(
        slot_manager, "reserve", lambda _: lambda tm, _job, _allocation, count, *_, **__: (tm, tm.free[:count])
    )


def _reports_free_what_they_cannot_know_of() -> Any:
    return patched(reservations, "RESERVATION_TIMEOUT", lambda _: 0.0)


def _old_reports_count_like_new_ones() -> Any:
    def made(reported: Any) -> Any:
        def forgetful(this: Any, report: Any, **named: Any) -> None:
            tm = this.state.task_managers.get(report.resource_id)
            if tm is not None and tm.report is not None:
                report = copy(report, version=max(report.version, tm.report.version))
            reported(this, report, **named)

        return forgetful

    return patched(slot_manager, "_reported", made)


def _reservations_stand_for_ever() -> Any:
    return patched(reservations, "RESERVATION_TIMEOUT", lambda _: math.inf)


def _declarations_of_replaced_job_masters_count() -> Any:
    return patched(slot_manager, "is_stale", lambda _: lambda *_: False)


def _the_task_manager_follows_every_resource_manager() -> Any:
    def made(handle: Any) -> Any:
        return lambda core, message, _, now: handle(core, message, core.registration.leader, now)

    return patched(TaskManagerCore, "_from_resource_manager", made)


def _the_task_manager_obeys_replaced_job_masters() -> Any:
    def made(handle: Any) -> Any:
        def forgetful(core: Any, message: Any, fence: Any, now: float) -> Any:
            job_id = message.job.job_id if hasattr(message, "job") else getattr(message, "job_id", None)
            known = core.slots.jobs.get(job_id)
            return handle(core, message, fence if known is None else max(fence or "", known.leader), now)

        return forgetful

    return patched(TaskManagerCore, "_from_job_master", made)


def _the_answer_to_an_old_offer_counts() -> Any:
    def made(answered: Any) -> Any:
        def forgetful(this: Any, event: Any) -> None:
            job = this.state.jobs.get(event.job_id)
            if job is not None and job.offer is not None:
                event = replace(event, version=job.offer.version)
            answered(this, event)

        return forgetful

    return patched(slot_machine, "_offer_answered", made)


def _slots_are_held_for_ever() -> Any:
    def made(hold: Any) -> Any:
        def leaking(this: Any, *rest: Any) -> None:
            options = this.state.options
            this.set(options=replace(options, hold_timeout=math.inf))
            hold(this, *rest)
            this.set(options=options)

        return leaking

    return patched(SlotsStep, "hold", made)


def _tasks_are_deployed_wherever_they_are_sent() -> Any:
    return patched(Slots, "fault_of", lambda _: lambda *_: "")


def _slots_fall_free_before_their_tasks_have_ended() -> Any:
    def made(release: Any) -> Any:
        def hasty(this: Any, allocations: Any, reason: str) -> None:
            given = list(allocations)
            ends = EndTasks(this.state.on(*given), reason)
            this.set(attempts={a: r for a, r in this.state.attempts.items() if a not in ends.attempts})
            release(this, given, reason)
            if ends.attempts:
                this.commands.append(ends)

        return hasty

    return patched(SlotsStep, "release", made)


def _late_deployments_are_taken() -> Any:
    def made(cancel: Any) -> Any:
        def forgetful(this: Any, event: Any) -> None:
            cancel(this, event)
            if (job := this.state.jobs.get(event.job_id)) is not None:
                this.put(event.job_id, replace(job, cancelled=()))

        return forgetful

    return patched(slot_machine, "_cancel", made)


def _an_unanswered_deployment_has_failed() -> Any:
    return patched(failover, "deploy_unanswered", lambda _: failover.attempt_failed)


def _the_job_master_accepts_one_allocation_of_two_task_managers() -> Any:
    def made(_: Any) -> Any:
        return lambda pool, _, offers: tuple(o.allocation_id for o in offers if o.allocation_id in pool.held)

    return patched(SlotPool, "accepted", made)


def _slots_of_a_lost_task_manager_stay_in_the_pool() -> Any:
    return patched(failover, "task_manager_gone", lambda _: lambda *_: None)


def _sessions_are_clean_when_slots_are_given_back() -> Any:
    return patched(slot_table, "brought_by", lambda _: lambda *_: ())


FAULTS: Mapping[str, Planted] = {
    "the RM marks slots taken after it has asked for them": _slots_are_marked_after_they_are_asked_for,
    "the RM frees reserved slots by reports that cannot know of them": _reports_free_what_they_cannot_know_of,
    "the RM takes old reports like new ones": _old_reports_count_like_new_ones,
    "the RM never gives a reservation up": _reservations_stand_for_ever,
    "the RM serves JobMasters that were replaced": _declarations_of_replaced_job_masters_count,
    "the TM follows every RM": _the_task_manager_follows_every_resource_manager,
    "the TM obeys JobMasters that were replaced": _the_task_manager_obeys_replaced_job_masters,
    "the TM frees slots by the answer to an old offer": _the_answer_to_an_old_offer_counts,
    "the TM holds slots for ever": _slots_are_held_for_ever,
    "the TM deploys onto slots that are not bound": _tasks_are_deployed_wherever_they_are_sent,
    "the TM frees slots before their tasks have ended": _slots_fall_free_before_their_tasks_have_ended,
    "the TM takes a deployment behind its cancellation": _late_deployments_are_taken,
    "the TM forgets what its session holds": _sessions_are_clean_when_slots_are_given_back,
    "the JM takes an unanswered deployment for a failed one": _an_unanswered_deployment_has_failed,
    "the JM accepts one allocation from two TMs": _the_job_master_accepts_one_allocation_of_two_task_managers,
    "the JM keeps the slots of a lost TM": _slots_of_a_lost_task_manager_stay_in_the_pool,
}


def find(name: str, within: int) -> Verdict | None:
    """Return the first seed that breaks with this fault, reduced. None if no seed does."""
    fault = FAULTS[name]
    for seed in range(within):
        plan = drawn(seed)
        verdict = attempt(plan, fault)
        if verdict.violation:
            return reduced(plan, verdict, fault)
    return None
