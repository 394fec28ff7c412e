"""WaitingForSlots: go on once all stopping tasks have stopped and there are enough slots, or give up (R5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler import sizing, slot_pool
from minflinkd.jobmaster.scheduler.failover import fail
from minflinkd.jobmaster.scheduler.phases import FindingRestorePoint, WaitingForSlots
from minflinkd.jobmaster.scheduler.state import JobState
from minflinkd.jobmaster.scheduler.step import Step
from minflinkd.rpc.jobs import ExecutionState, FailureRecord
from minflinkd.runtime.errors import Consequence, ErrorInfo, Kind
from minflinkd.runtime.ids import AllocationId


def advance(this: Step, phase: WaitingForSlots) -> None:
    state, now = this.state, this.now
    idle = sizing.idle_tasks(state)
    ending = state.leaving or any(e.state is ExecutionState.CANCELING for e in state.executions.values())
    if not idle or ending:
        return
    this.mark("canceled")
    placement = sizing.plan(state)
    complete = all(g in placement and placement[g].parallelism >= b.desired for g, b in state.pool.groups.items())
    lacking_since = None if complete else now if phase.lacking_since is None else phase.lacking_since
    phase = replace(phase, lacking_since=lacking_since)
    this.enter(phase)
    enough = sizing.enough(this.state, placement, now)
    if enough:
        this.mark("slots")
    if phase.restart_at is not None and now < phase.restart_at:
        return
    if enough:
        this.enter(FindingRestorePoint(idle, lacking_since), round=state.round + 1)
        this.commands.append(ev.FindRestorePoint(this.state.round, idle))
        return
    this.enter(replace(phase, restart_at=None))
    state = this.state
    if sizing.lean(state, now) and state.live and sizing.enough(state, sizing.plan_anew(state), now):
        this.stop(state.tasks)  # so that all groups can divide the slots that are held


def next_wakeup(state: JobState) -> tuple[float | None, ...]:
    if state.lacking_since is None:
        return (state.restart_at,)
    wait, timeout = state.options.resource_wait_timeout, state.options.slot_request_timeout
    return state.restart_at, state.lacking_since + wait, state.lacking_since + timeout


def refused(this: Step, phase: WaitingForSlots | FindingRestorePoint, reasons: Mapping[AllocationId, str]) -> None:
    """Handle needs that the ResourceManager refused (R5).

    A new job fails at once if it cannot run here. A job that has run before has state to lose, and the refusal may be
    temporary (a full disk, a node that is away): its restart strategy decides how long it waits. If the job will run
    with fewer slots after the wait for slots, the refusal only means that this wait is over.
    """
    state = this.state
    texts = [reason for allocation, reason in reasons.items() if allocation in state.pool.needs]
    if not texts or state.restart_at is not None:
        return
    fewer_will_do = any(n.want.least > state.pool.groups[n.group].least for n in state.pool.needs.values())
    if fewer_will_do and not sizing.lean(state, this.now):
        this.enter(replace(phase, lacking_since=this.now - state.options.resource_wait_timeout))
        return
    error = ErrorInfo(
        code="no-slots",
        message=f"{_asked(state)}: {'; '.join(sorted(set(texts)))}",
        consequence=Consequence.RETRYABLE if state.has_run else Consequence.REFUSED,
        kind=Kind.JOB,
        hint=_hint(state),
    )
    fail(this, FailureRecord(timestamp_ms=0, error=error))


def overdue(this: Step, phase: WaitingForSlots | FindingRestorePoint) -> None:
    """R5: Fail if slots have been lacking for too long. The error says what was asked for, what is held, and why."""
    state, timeout, since = this.state, this.state.options.slot_request_timeout, phase.lacking_since
    if since is None or this.now - since < timeout or sizing.enough(state, sizing.plan(state), this.now):
        return
    why = sorted({text for allocation, text in state.waiting.items() if allocation in state.pool.needs})
    error = ErrorInfo(
        code="no-slots",
        message=f"{_asked(state)} within {timeout:g} s (slot.request.timeout): {'; '.join(why) or 'nobody said why'}",
        consequence=Consequence.RETRYABLE,
        kind=Kind.JOB,
        hint="`minflinkd taskmanagers` shows what there is",
    )
    this.enter(replace(phase, lacking_since=None), pool=slot_pool.renewed(state.pool))
    fail(this, FailureRecord(timestamp_ms=0, error=error))


def _hint(state: JobState) -> str:
    """Return what to do about needs that no TaskManager could serve."""
    hint = "lower the job's parallelism, or give TaskManagers more slots (taskmanager.numberOfTaskSlots)"
    if any(need.want.profile for need in state.pool.needs.values()):
        hint += ", or lower its resources, or allow larger TaskManagers (resourcemanager.largest-taskmanager)"
    return hint


def _asked(state: JobState) -> str:
    wanted = [
        f"{n.want.slots} slots for group {n.group!r}"
        + (f" with {n.want.profile} each" if n.want.profile else "")
        + (f" (at least {n.want.least})" if n.want.least < n.want.slots else "")
        for n in sorted(state.pool.needs.values(), key=lambda n: n.group)
    ]
    held = [f"{sum(slots.values())} of {r}" for r, slots in sorted(state.pool.holdings.items())]
    return f"wanted {', '.join(wanted)}; the job holds {', '.join(held) or 'none'}; no TaskManager offered the rest"
