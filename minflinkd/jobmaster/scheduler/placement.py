"""Which slot sharing group runs where, and how wide, on the slots that a job holds (R20). Pure.

Slots are anonymous: all of a job's slots on one TaskManager are alike, whatever allocation they came with. A group runs
on one TaskManager (J6). Several groups may share the slots of one TaskManager.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from minflinkd.runtime.ids import AllocationId, ResourceId
from minflinkd.runtime.machine import InvariantViolated

Holdings = Mapping[ResourceId, Mapping[AllocationId, int]]  # TaskManager -> allocation -> slots


@dataclass(frozen=True)
class Bounds:
    """How many slots a group wants, and the fewest that it can run with."""

    desired: int
    least: int


@dataclass(frozen=True)
class Share:
    """What a group runs on. Its tasks are deployed to the first allocation, and need all of them."""

    resource_id: ResourceId
    parallelism: int
    allocations: tuple[AllocationId, ...]


Placement = Mapping[str, Share]  # group -> share
Barred = Mapping[str, Collection[ResourceId]]  # group -> TaskManagers whose slots have less than it wants (R40)
NOWHERE: Final[Barred] = {}


def place(
    groups: Mapping[str, Bounds],
    holdings: Holdings,
    *,
    present: Placement,
    fixed: Collection[str] = (),
    divide: bool = True,
    closed: Collection[ResourceId] = (),
    barred: Barred = NOWHERE,
) -> Placement:
    """Place as many groups as possible, each with at least its `least` slots, and as wide as possible.

    Groups in `fixed` keep their `present` share. The others stay where they are if that is as good. With `divide`, wide
    groups may get less so that others get something. Without it, the widest groups are served first, and the others get
    what is left. On `closed` TaskManagers, only fixed groups are placed (A15b, B31). The groups that are barred from
    most TaskManagers choose first, because any of them will do for the others (R40).
    """
    left = {r: dict(sorted(slots.items())) for r, slots in sorted(holdings.items())}
    for group in sorted(fixed):
        share, slots = present[group], left[present[group].resource_id]
        _take(slots, (*share.allocations, *slots), share.parallelism)  # beyond its own, see `uncovered`
    left = {resource: slots for resource, slots in left.items() if resource not in closed}
    open_groups = {g: b for g, b in groups.items() if g not in fixed}
    shares = {g: present[g] for g in fixed}
    exact = _one_allocation_each(open_groups, left, present, barred)
    if exact is not None:
        return {**shares, **exact}
    for resource, widths in _spread(open_groups, left, present, divide, barred).items():
        for group, width in sorted(widths.items(), key=lambda part: (-part[1], part[0])):
            slots = left[resource]
            whole = [a for a, n in slots.items() if n == width]
            order = whole or sorted(slots, key=lambda a: (-slots[a], a))
            shares[group] = Share(resource, width, _take(slots, order, width))
    return shares


def total(placement: Placement) -> int:
    return sum(share.parallelism for share in placement.values())


def _one_allocation_each(
    groups: Mapping[str, Bounds],
    left: Mapping[ResourceId, Mapping[AllocationId, int]],
    present: Placement,
    barred: Barred,
) -> Placement | None:
    """Place every group on an allocation of exactly the size that it wants. Return None if that is impossible."""
    shares: dict[str, Share] = {}
    for group, bounds in sorted(groups.items()):
        taken = {a for share in shares.values() for a in share.allocations}
        before = present[group].allocations if group in present else ()
        fitting = [
            (a not in before, r, a)
            for r, slots in left.items()
            if r not in barred.get(group, ())
            for a, n in slots.items()
            if n == bounds.desired
        ]
        _, resource, allocation = min((f for f in fitting if f[2] not in taken), default=(None, None, None))
        if resource is None or allocation is None:
            return None
        shares[group] = Share(resource, bounds.desired, (allocation,))
    return shares


def _spread(
    groups: Mapping[str, Bounds],
    left: Mapping[ResourceId, Mapping[AllocationId, int]],
    present: Placement,
    divide: bool,
    barred: Barred,
) -> dict[ResourceId, dict[str, int]]:
    """Return TaskManager -> group -> width. The widest group chooses first, of those with equally few to choose from.

    It takes the TaskManager where it gets most slots, and prefers its present one.
    """
    # Slots that no group wants yet; negative: several groups want the same.
    room = {r: sum(slots.values()) for r, slots in left.items()}
    spare = dict(room)  # slots beyond the minimum of every group
    chosen: dict[ResourceId, list[str]] = {r: [] for r in left}
    fewest = sorted(groups.items(), key=lambda item: (-len(barred.get(item[0], ())), -item[1].desired, item[0]))
    for group, bounds in fewest:

        def gain(resource: ResourceId, bounds: Bounds = bounds) -> int:
            return max(0, min(bounds.desired, room[resource]))

        able = [r for r in left if (spare[r] if divide else gain(r)) >= bounds.least and r not in barred.get(group, ())]
        if not able:
            continue
        at = present[group].resource_id if group in present else None
        # Most slots first, then its present place. After that the tightest fit or, without any gain, the most room.
        best = min(able, key=lambda r: (-gain(r), r != at, room[r] if gain(r) else -spare[r], r))
        chosen[best].append(group)
        room[best] -= bounds.desired
        spare[best] -= bounds.least
    return {r: _widths({g: groups[g] for g in names}, sum(left[r].values()), divide) for r, names in chosen.items()}


def _widths(groups: Mapping[str, Bounds], slots: int, divide: bool) -> dict[str, int]:
    """Return each group's width on one TaskManager with `slots` slots.

    Without `divide`, each group gets what it wants of the slots that are left, in the order of `groups`. With it, the
    group that lacks most gets the next slot.
    """
    if not divide:
        widths = {}
        for group, bounds in groups.items():
            widths[group] = min(bounds.desired, slots)
            slots -= widths[group]
        return widths
    widths = {group: bounds.least for group, bounds in groups.items()}
    for _ in range(slots - sum(widths.values())):
        missing = {g: b.desired - widths[g] for g, b in groups.items()}
        most = max(missing, key=lambda g: missing[g], default=None)
        if most is None or missing[most] == 0:
            break
        widths[most] += 1
    return widths


def _take(slots: dict[AllocationId, int], order: Collection[AllocationId], width: int) -> tuple[AllocationId, ...]:
    """Take `width` slots out of `slots`, in this order of allocations. Return the allocations that were used."""
    used = []
    for allocation in order:
        take = min(slots.get(allocation, 0), width)
        if take:
            slots[allocation] -= take
            width -= take
            used.append(allocation)
    return tuple(used)


def of_running(running: Placement, holdings: Holdings) -> Placement:
    """Return the placement of groups that run already, as far as the held slots cover them.

    The shares in `running` name only the allocations that tasks were deployed to. Which others the groups use was known
    to an earlier JobMaster alone: any will do, since all slots of one TaskManager are alike.
    """
    left = {resource: dict(sorted(slots.items())) for resource, slots in holdings.items()}
    found: dict[str, Share] = {}
    for group, share in sorted(running.items()):
        slots = left.get(share.resource_id, {})
        if sum(slots.values()) >= share.parallelism:
            order = dict.fromkeys((*share.allocations, *slots))
            taken = _take(slots, order, share.parallelism)
            found[group] = replace(share, allocations=taken)
    return found


def resized(present: Placement, widths: Mapping[str, int], holdings: Holdings) -> Placement | None:
    """Return the groups with other widths, each on the TaskManager where it runs. None if too few slots are held there.

    Each group keeps what it has as far as it needs it, first of all the allocation that its tasks were deployed to.
    """
    left = {resource: dict(sorted(slots.items())) for resource, slots in holdings.items()}
    kept: dict[str, tuple[AllocationId, ...]] = {}
    lacking: dict[str, int] = {}
    for group, share in sorted(present.items()):
        slots = left.setdefault(share.resource_id, {})
        before = sum(slots.values())
        kept[group] = _take(slots, share.allocations, min(share.parallelism, widths[group]))
        lacking[group] = widths[group] - (before - sum(slots.values()))
    found: dict[str, Share] = {}
    for group, share in sorted(present.items()):
        slots = left[share.resource_id]
        if kept[group][:1] != share.allocations[:1] or sum(slots.values()) < lacking[group]:
            return None
        more = _take(slots, tuple(slots), lacking[group])
        found[group] = Share(share.resource_id, widths[group], tuple(dict.fromkeys((*kept[group], *more))))
    return found


def uncovered(placement: Placement, holdings: Holdings) -> frozenset[str]:
    """Return the groups on TaskManagers where fewer slots are held than the groups use together.

    A group may use slots of another group's allocation, since surplus slots are given back from any of them.
    """
    return frozenset(
        g for g, s in placement.items() if _used(placement, s.resource_id) > _held(holdings, s.resource_id)
    )


def _used(placement: Placement, resource: ResourceId) -> int:
    return sum(share.parallelism for share in placement.values() if share.resource_id == resource)


def _held(holdings: Holdings, resource: ResourceId) -> int:
    return sum(holdings.get(resource, {}).values())


def check_invariants(placement: Placement, holdings: Holdings) -> None:
    """Check that the held slots cover every share. Raises InvariantViolated if not."""
    for resource in {share.resource_id for share in placement.values()}:
        used, held = _used(placement, resource), _held(holdings, resource)
        if used > held:
            raise InvariantViolated(f"{used} slots of {resource} are used, and {held} are held")
    for group, share in placement.items():
        if missing := [a for a in share.allocations if a not in holdings.get(share.resource_id, {})]:
            raise InvariantViolated(f"group {group!r} runs on allocations that are not held: {missing}")
