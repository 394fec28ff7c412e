"""The outlook for a need without slots (R5): what was asked for, what there is, why no more comes. Pure."""

from __future__ import annotations

from minflinkd.resourcemanager.options import ResourceManagerOptions
from minflinkd.resourcemanager.placement import clashing, covered, hot_standby, largest, least, recovering
from minflinkd.resourcemanager.provisioning import cannot_start, coming, no_start
from minflinkd.resourcemanager.sizes import lacking, size_for, too_much
from minflinkd.resourcemanager.state import Resources
from minflinkd.resourcemanager.task_managers import Presence
from minflinkd.rpc.messages import Library, NeedsAnswer, SlotNeed
from minflinkd.runtime.ids import JobId


def needs_answer(state: Resources, options: ResourceManagerOptions, job_id: JobId, now: float) -> NeedsAnswer:
    """Refuse what no waiting would help, as far as is known. A job that would only grow is never refused."""
    needs = state.open_needs.get(job_id)
    if not needs:
        return NeedsAnswer(hot_standby=hot_standby(state, job_id, now))
    later = covered(state, job_id, options, now)
    there, most = _there(state), largest(state, options)
    refused, waiting = {}, {}
    others = _others(state, state.jobs[job_id].libraries)
    for need in needs:
        asked = f"{_slots(need)} needed; {there}{others}{_short(state, need)}"
        if need.allocation_id in later:
            waiting[need.allocation_id] = f"{asked}; the job's own TaskManagers will offer theirs"
        elif state.jobs[job_id].rests(need.allocation_id, now):
            waiting[need.allocation_id] = f"{asked}; slots for it came back, and are looked for again in a moment"
        elif need.beside is not None:
            waiting[need.allocation_id] = f"{asked}; to grow, the job waits until they fall free"
        elif options.can_start and not _can_be_served(state, options, need) and least(need) <= most:
            refused[need.allocation_id] = f"{asked}; {_too_much(state, options, need)}"
        elif least(need) > most and options.can_start:
            refused[need.allocation_id] = f"{asked}; a TaskManager has {most} (taskmanager.numberOfTaskSlots)"
        elif options.can_start and (why := no_start(state)) is not None:
            refused[need.allocation_id] = f"{asked}; {why}"
        else:
            waiting[need.allocation_id] = f"{asked}; {expected(state, options, now)}"
    return NeedsAnswer(refused=refused, waiting=waiting, largest=most if options.can_start else 0)


def session_outlook(
    state: Resources, options: ResourceManagerOptions, libraries: tuple[Library, ...], now: float
) -> str:
    """Return why there is no session to analyse a job with these libraries, and what there is to wait for."""
    outlook = expected(state, options, now)
    others = _others(state, libraries)
    return f"{_there(state)}{others}; {outlook}" if others else outlook


def _can_be_served(state: Resources, options: ResourceManagerOptions, need: SlotNeed) -> bool:
    """Whether some TaskManager has what the need wants of its slots, or could be started with it (R40)."""
    if not need.profile or size_for(options, need.profile, need.slots, least(need)) is not None:
        return True
    return any(s.size >= least(need) and s.profile.covers(need.profile) for s in state.shelves)


def _too_much(state: Resources, options: ResourceManagerOptions, need: SlotNeed) -> str:
    """Return what no TaskManager has, and none could be started with, by name."""
    slots = "" if least(need) == 1 else f" for {least(need)} slots"
    return f"{too_much(options, need.profile, least(need))}{slots} (resourcemanager.largest-taskmanager)"


def _short(state: Resources, need: SlotNeed) -> str:
    """Return what is not there, or how many TaskManagers are too small."""
    there = {shelf: len(found) for shelf, found in state.shelves.items() if shelf.presence is not Presence.STARTING}
    small = sum(count for shelf, count in there.items() if not shelf.profile.covers(need.profile))
    if not small:
        return ""
    if (lack := lacking([shelf.profile for shelf in there], need.profile)) and small == sum(there.values()):
        return f"; {lack}"
    return f", {small} of them with smaller slots"


def _others(state: Resources, libraries: tuple[Library, ...]) -> str:
    number = clashing(state, libraries)
    return f", {number} of them with other versions of the job's libraries" if number else ""


def _slots(need: SlotNeed) -> str:
    number = f"{need.slots} slot{'s' if need.slots > 1 else ''} of one TaskManager"
    if need.profile:
        number += f" with {need.profile} each" if need.slots > 1 else f" with {need.profile}"
    few = f", at least {least(need)}," if least(need) != need.slots else ""
    group = f" for slot sharing group {need.group!r}" if need.group else ""
    return f"{number}{group}{few} {'are' if need.slots > 1 else 'is'}"


def _there(state: Resources) -> str:
    registered = {s: len(found) for s, found in state.shelves.items() if s.presence is not Presence.STARTING}
    if not registered:
        return "no TaskManager is registered"
    ready = {shelf: count for shelf, count in registered.items() if shelf.presence is Presence.READY}
    number = sum(registered.values())
    free = sum(shelf.free * count for shelf, count in ready.items())
    most = max((shelf.free for shelf in ready), default=0)
    total = sum(shelf.size * count for shelf, count in registered.items())
    are = f"{number} TaskManagers are" if number > 1 else "1 TaskManager is"
    return f"{are} registered with {free} of {total} slots free, {most} at most on one"


def expected(state: Resources, options: ResourceManagerOptions, now: float) -> str:
    """Return what there is to wait for, or why nothing comes."""
    if recovering(state, now):
        return "waiting for TaskManagers to say what they hold"
    if number := coming(state, options, now):
        outlook = f"waiting for {number} TaskManager{'s' if number > 1 else ''} to become ready"
        if state.starts.failed:
            outlook += f"; the last start failed: {state.starts.reason}"
    elif (why := cannot_start(state, options)) is not None:
        outlook = why
    elif state.starts.failed:
        outlook = f"the last start of a TaskManager failed and will be repeated: {state.starts.reason}"
    else:
        outlook = "a TaskManager will be started"
    return "; ".join([outlook, *_start_waits(state), *_session_error(state)])


def _start_waits(state: Resources) -> list[str]:
    """Return why the process of one TaskManager that starts does not run yet, such as a Pod that is not scheduled."""
    starting = (found for shelf, found in state.shelves.items() if shelf.presence is Presence.STARTING)
    waiting = sorted(resource_id for found in starting for resource_id in found)
    told = ((resource_id, state.task_managers[resource_id].waits) for resource_id in waiting)
    return next(([f"{resource_id} does not run yet: {why}"] for resource_id, why in told if why), [])


def _session_error(state: Resources) -> list[str]:
    """Return the error of one session that does not come up."""
    for shelf in sorted(shelf for shelf in state.shelves if shelf.presence is Presence.COMING):
        for resource_id in state.shelves[shelf]:
            report = state.task_managers[resource_id].report
            if report is not None and report.session_error:
                return [f"the session of {resource_id} does not start: {report.session_error}"]
    return []
