"""The ResourceManager, broken on purpose."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from msgspec.structs import replace as copy

from minflinkd.resourcemanager import placement, reservations, rooms, slot_manager
from minflinkd.resourcemanager.claims import Claims
from minflinkd.resourcemanager.core import ResourceManagerCore
from minflinkd.resourcemanager.events import NotifyLost, SendAllocate
from minflinkd.resourcemanager.state import Resources
from minflinkd.resourcemanager.task_managers import Slot
from minflinkd.rpc.messages import NeedsAnswer
from minflinkd.runtime.resource_profile import NO_PROFILE
from tests.sim.planting import Planted, patched


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


def _jobs_are_not_told_of_a_lost_task_manager() -> Any:
    return patched(
        ResourceManagerCore,
        "_carried",
        lambda carried: lambda core, command: [] if isinstance(command, NotifyLost) else carried(core, command),
    )


def _slots_are_asked_for_once() -> Any:
    def made(carried: Any) -> Any:
        def forgetful(core: Any, command: Any) -> Any:
            return [] if isinstance(command, SendAllocate) and command.again else carried(core, command)

        return forgetful

    return patched(ResourceManagerCore, "_carried", made)


def _refused_slots_stay_marked() -> Any:
    return patched(slot_manager, "follow", lambda follow: lambda tm, report, now, *_: follow(tm, report, now))


def _freed_slots_stay_marked() -> Any:
    def made(follow: Any) -> Any:
        return lambda slot, status, what: slot if status.allocation_id is None else follow(slot, status, what)

    return patched(Slot, "follow", made)


def _a_job_master_that_was_silent_is_never_heard_again() -> Any:
    def made(is_stale: Any) -> Any:
        def unforgiving(state: Any, job_id: Any, leader_id: Any) -> bool:
            past = state.past.get(job_id)
            return (past is not None and leader_id <= past.leader_id) or is_stale(state, job_id, leader_id)

        return unforgiving

    return patched(slot_manager, "is_stale", made)


def _repeated_declarations_are_dropped() -> Any:
    def made(declare_needs: Any) -> Any:
        def forgetful(core: Any, declaration: Any, now: float) -> Any:
            known = core.state.jobs.get(declaration.job_id)
            if known is not None and known.declaration == declaration:
                return NeedsAnswer()
            return declare_needs(core, declaration, now)

        return forgetful

    return patched(ResourceManagerCore, "_declare_needs", made)


def _what_came_back_is_given_again_at_once() -> Any:
    return patched(slot_manager, "RETURN_REST", lambda _: 0.0)


def _slots_that_were_given_up_are_waited_for() -> Any:
    def made(declared: Any) -> Any:
        def forgetful(this: Any, declaration: Any) -> None:
            declared(this, declaration)
            if (job := this.state.jobs.get(declaration.job_id)) is not None:
                this.state = this.state.with_job(declaration.job_id, replace(job, given_up=frozenset()))

        return forgetful

    return patched(slot_manager, "_declared", made)


def _unknown_jobs_count_as_ended() -> Any:
    return patched(Resources, "has_ended", lambda _: lambda state, job_id: job_id not in state.unended)


def _silent_jobs_count_as_ended() -> Any:
    return patched(Resources, "has_ended", lambda _: lambda state, job_id: job_id in state.past)


def _slots_need_not_have_what_is_wanted() -> Any:
    def made(candidates: Any) -> Any:
        return lambda state, job_id, _, *rest: candidates(state, job_id, NO_PROFILE, *rest)

    return patched(placement, "_candidates", made)


def _nothing_is_kept_for_larger_needs() -> Any:
    return patched(Claims, "keep", lambda _: lambda *_, **__: False)


def _what_is_started_has_the_default_size() -> Any:
    return patched(rooms, "size_for", lambda _: lambda options, *_: options.size)


def _no_task_manager_makes_way() -> Any:
    return patched(slot_manager, "in_the_way", lambda _: lambda *_: None)


FAULTS: Mapping[str, Planted] = {
    "the RM marks slots taken after it has asked for them": _slots_are_marked_after_they_are_asked_for,
    "the RM frees reserved slots by reports that cannot know of them": _reports_free_what_they_cannot_know_of,
    "the RM takes old reports like new ones": _old_reports_count_like_new_ones,
    "the RM never gives a reservation up": _reservations_stand_for_ever,
    "the RM serves JobMasters that were replaced": _declarations_of_replaced_job_masters_count,
    "the RM does not tell jobs of a lost TM": _jobs_are_not_told_of_a_lost_task_manager,
    "the RM does not repeat a request for slots": _slots_are_asked_for_once,
    "the RM keeps slots marked that were refused": _refused_slots_stay_marked,
    "the RM keeps slots marked that are free again": _freed_slots_stay_marked,
    "the RM never hears a JM again that was silent": _a_job_master_that_was_silent_is_never_heard_again,
    "the RM drops repeated declarations": _repeated_declarations_are_dropped,
    "the RM gives slots again at once that came back": _what_came_back_is_given_again_at_once,
    "the RM waits for slots that their JM gave up": _slots_that_were_given_up_are_waited_for,
    "the RM takes jobs that it does not know for ended": _unknown_jobs_count_as_ended,
    "the RM takes jobs of silent JMs for ended": _silent_jobs_count_as_ended,
    "the RM gives slots that have less than is wanted": _slots_need_not_have_what_is_wanted,
    "the RM keeps no slots for needs that nothing smaller serves": _nothing_is_kept_for_larger_needs,
    "the RM starts TMs of the default size only": _what_is_started_has_the_default_size,
    "the RM lets no TM make way for one of another size": _no_task_manager_makes_way,
}
