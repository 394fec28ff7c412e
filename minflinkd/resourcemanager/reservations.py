"""Marks slots taken before their TaskManager is asked, and follows its reports (R2, m6 - m8, R9). Pure."""

from __future__ import annotations

from dataclasses import replace

from minflinkd.resourcemanager.task_managers import Slot, SlotState, TaskManager
from minflinkd.rpc.libraries import clash
from minflinkd.rpc.messages import Library, TaskManagerReport
from minflinkd.runtime.ids import AllocationId, JobId

RESERVATION_TIMEOUT = 10.0  # seconds (R9)


def reserve(
    tm: TaskManager,
    job_id: JobId,
    allocation: AllocationId,
    count: int,
    now: float,
    *,
    exclusive: bool,
    libraries: tuple[Library, ...] = (),
) -> tuple[TaskManager, tuple[int, ...]]:
    """Return the TaskManager with `count` free slots marked taken, and which ones."""
    chosen = tm.free[:count]
    what = f"slots {chosen} of {tm.resource_id}"
    slots = list(tm.slots)
    for i in chosen:
        slots[i] = slots[i].to(
            SlotState.RESERVED,
            what,
            job_id=job_id,
            allocation_id=allocation,
            since=now,
            exclusive=exclusive,
            libraries=libraries,
        )
    return replace(tm, slots=tuple(slots)), chosen


def follow(tm: TaskManager, report: TaskManagerReport, now: float, settled: AllocationId | None = None) -> TaskManager:
    """Update the slots from the report, except reservations that it may be too old to know of.

    `settled`: the report is the answer to this reservation.
    """
    slots: list[Slot] = []
    for slot, status in zip(_sized(tm.slots, len(report.slots)), report.slots, strict=True):
        pending = (
            slot.state is SlotState.RESERVED
            and status.allocation_id is None
            and slot.allocation_id != settled
            and report.dedicated_to in (None, slot.job_id)
            and not clash(report.libraries, slot.libraries)
            and now - slot.since < RESERVATION_TIMEOUT
        )
        slots.append(slot if pending else slot.follow(status, f"slot {status.index} of {tm.resource_id}"))
    # An allocation's slots go together: if another one holds one of them, the reservation of the rest is void.
    void = {
        old.allocation_id
        for old, new in zip(tm.slots, slots, strict=False)
        if old.state is SlotState.RESERVED and new.allocation_id != old.allocation_id
    }
    slots = [
        slot.to(SlotState.FREE, tm.resource_id)
        if slot.state is SlotState.RESERVED and slot.allocation_id in void
        else slot
        for slot in slots
    ]
    followed = replace(tm, report=report, slots=tuple(slots))
    return replace(followed, idle_since=now) if followed.idle and not tm.idle else followed


def overdue(tm: TaskManager, now: float) -> bool:
    """Whether a reservation has stood longer than any answer to it can take (R9)."""
    return tm.reserved_since is not None and now - tm.reserved_since >= RESERVATION_TIMEOUT


def _sized(slots: tuple[Slot, ...], size: int) -> tuple[Slot, ...]:
    return (*slots[:size], *(Slot() for _ in range(size - len(slots))))
