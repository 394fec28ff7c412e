"""The TaskManager, broken on purpose."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from minflinkd.taskmanager.slots import machine as slot_machine
from minflinkd.taskmanager.slots import registration
from minflinkd.taskmanager.slots import table as slot_table
from minflinkd.taskmanager.slots.core import TaskManagerCore
from minflinkd.taskmanager.slots.events import Beat, EndTasks
from minflinkd.taskmanager.slots.state import Slots
from minflinkd.taskmanager.slots.step import Step
from minflinkd.taskmanager.slots.table import SlotState, SlotTable
from tests.sim.planting import Planted, patched


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


def _held_for_ever(*timeouts: str) -> Any:
    def made(hold: Any) -> Any:
        def leaking(this: Any, *rest: Any) -> None:
            options = this.state.options
            this.set(options=replace(options, **dict.fromkeys(timeouts, math.inf)))
            hold(this, *rest)
            this.set(options=options)

        return leaking

    return patched(Step, "hold", made)


def _slots_are_held_for_ever() -> Any:
    return _held_for_ever("hold_timeout", "orphan_timeout")


def _slots_without_tasks_are_held_for_ever() -> Any:
    return _held_for_ever("hold_timeout")


def _tasks_are_deployed_wherever_they_are_sent() -> Any:
    return patched(Slots, "fault_of", lambda _: lambda *_: "")


def _slots_fall_free_before_their_tasks_have_ended() -> Any:
    def made(release: Any) -> Any:
        def hasty(this: Any, allocations: Any, reason: str = "") -> None:
            given = list(allocations)
            ends = EndTasks(this.state.on(*given), reason)
            this.set(attempts={a: r for a, r in this.state.attempts.items() if a not in ends.attempts})
            release(this, given, reason)
            if ends.attempts:
                this.commands.append(ends)

        return hasty

    return patched(Step, "release", made)


def _late_deployments_are_taken() -> Any:
    def made(cancel: Any) -> Any:
        def forgetful(this: Any, event: Any) -> None:
            cancel(this, event)
            if (job := this.state.jobs.get(event.job_id)) is not None:
                this.put(event.job_id, replace(job, cancelled=()))

        return forgetful

    return patched(slot_machine, "_cancel", made)


def _sessions_are_clean_when_slots_are_given_back() -> Any:
    return patched(slot_table, "brought_by", lambda _: lambda *_: ())


def _taken_slots_are_given_again() -> Any:
    def made(fits: Any) -> Any:
        def generous(slots: Any, *rest: Any, **named: Any) -> bool:
            bindings = {a: replace(b, slots=()) for a, b in slots.bindings.items()}
            return fits(replace(slots, bindings=bindings), *rest, **named)

        return generous

    return patched(slot_table, "fits", made)


def _freed_slots_are_no_news() -> Any:
    def made(freed: Any) -> Any:
        return lambda slots, allocations: replace(freed(slots, allocations), version=slots.version)

    return patched(slot_table, "freed", made)


def _a_repeated_deployment_starts_again() -> Any:
    return patched(Slots, "is_deployed", lambda _: lambda slots, request: request.attempt_id in slots.attempts)


def _slots_that_the_job_master_does_not_name_are_kept() -> Any:
    def made(feed: Any) -> Any:
        def lenient(core: Any, event: Any, now: float) -> None:
            if isinstance(event, Beat):
                mine = core.slots.table.of_job(event.job_id, SlotState.ACTIVE)
                event = replace(event, allocations=(*event.allocations, *mine))
            feed(core, event, now)

        return lenient

    return patched(TaskManagerCore, "_feed", made)


def _surplus_slots_are_kept() -> Any:
    return patched(slot_table, "narrowed", lambda _: lambda slots, _surplus: slots)


def _slots_are_offered_before_their_tasks_have_ended() -> Any:
    def made(resume: Any) -> Any:
        def hasty(this: Any) -> None:
            attempts = this.state.attempts
            this.set(attempts={})
            resume(this)
            this.set(attempts=attempts)

        return hasty

    return patched(slot_machine, "_resume", made)


def _slots_are_reported_free_before_their_tasks_have_ended() -> Any:
    def made(report: Any) -> Any:
        def hasty(slots: Any) -> Any:
            kept = {a: b for a, b in slots.bindings.items() if b.state is not SlotState.RELEASING}
            return report(replace(slots, bindings=kept))

        return hasty

    return patched(SlotTable, "report", made)


def _outcomes_of_an_earlier_registration_count() -> Any:
    def made(step: Any) -> Any:
        def forgetful(state: Any, event: Any, now: float) -> Any:
            event = event if isinstance(event, registration.Tick) else replace(event, number=state.number)
            return step(state, event, now)

        return forgetful

    return patched(registration, "step", made)


def failures_are_worth_nothing() -> Any:
    """Slots are held for tasks only. `test_scenarios` finds this: no seed looks at what a JobMaster does not know."""
    return patched(Slots, "awaited_by", lambda _: lambda slots, job_id: bool(slots.of(job_id)))


FAULTS: Mapping[str, Planted] = {
    "the TM follows every RM": _the_task_manager_follows_every_resource_manager,
    "the TM obeys JobMasters that were replaced": _the_task_manager_obeys_replaced_job_masters,
    "the TM frees slots by the answer to an old offer": _the_answer_to_an_old_offer_counts,
    "the TM holds slots for ever": _slots_are_held_for_ever,
    "the TM holds slots without tasks for ever": _slots_without_tasks_are_held_for_ever,
    "the TM deploys onto slots that are not bound": _tasks_are_deployed_wherever_they_are_sent,
    "the TM frees slots before their tasks have ended": _slots_fall_free_before_their_tasks_have_ended,
    "the TM takes a deployment after its cancellation": _late_deployments_are_taken,
    "the TM forgets what its session holds": _sessions_are_clean_when_slots_are_given_back,
    "the TM gives taken slots again": _taken_slots_are_given_again,
    "the TM's reports of freed slots are no news": _freed_slots_are_no_news,
    "the TM starts a repeated deployment again": _a_repeated_deployment_starts_again,
    "the TM keeps slots that its JM does not name": _slots_that_the_job_master_does_not_name_are_kept,
    "the TM keeps surplus slots": _surplus_slots_are_kept,
    "the TM offers slots before their tasks have ended": _slots_are_offered_before_their_tasks_have_ended,
    "the TM reports slots free before their tasks have ended": _slots_are_reported_free_before_their_tasks_have_ended,
    "the TM takes outcomes of an earlier registration": _outcomes_of_an_earlier_registration_count,
}
