"""The slots of one job: what it asks for, was offered, and holds (resources.md, SlotPool). Pure.

A need belongs to one slot sharing group, and slots of one TaskManager serve it (J6). Held slots belong to no group:
`placement` decides which group runs on them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from minflinkd.jobmaster.scheduler.placement import Barred, Bounds, Holdings, Placement, place, total
from minflinkd.rpc.libraries import clash
from minflinkd.rpc.messages import Library, SlotNeed, SlotOffer
from minflinkd.runtime.ids import AllocationId, IdSource, ResourceId
from minflinkd.runtime.machine import InvariantViolated
from minflinkd.runtime.resource_profile import NO_PROFILE, ResourceProfile

GONE_KEPT = 200  # by the time one is forgotten, its last messages were delivered long ago


@dataclass(frozen=True)
class Want:
    """A group wants `slots` slots of one TaskManager, or at least `least`.

    It has `held` of them on the TaskManager `beside`, where `least - held` more are enough.
    """

    slots: int
    least: int
    beside: ResourceId | None = None
    held: int = 0
    profile: ResourceProfile = NO_PROFILE  # what each of them must have (R40)

    def served_by(self, resource_id: ResourceId, slots: int) -> bool:
        return slots >= (self.least - self.held if resource_id == self.beside else self.least)


@dataclass(frozen=True)
class Need:
    group: str
    want: Want


@dataclass(frozen=True)
class Held:
    slots: tuple[int, ...]
    resource_id: ResourceId
    address: str
    data_url: str = ""  # where other TaskManagers read this one's exchanges
    libraries: tuple[Library, ...] = ()  # that the session there held when it offered the slots
    profile: ResourceProfile = NO_PROFILE  # what each of the slots has (R40)


@dataclass(frozen=True)
class Session:
    """A TaskManager that offers slots, and what its session holds."""

    resource_id: ResourceId
    address: str
    data_url: str = ""
    libraries: tuple[Library, ...] = ()
    profile: ResourceProfile = NO_PROFILE  # of its slots


@dataclass(frozen=True)
class SlotPool:
    groups: Mapping[str, Bounds]  # all slots that the job wants, by slot sharing group
    libraries: tuple[Library, ...] = ()  # of the job
    profiles: Mapping[str, ResourceProfile] = field(default_factory=dict)  # what slots must have, by group (R40)
    needs: Mapping[AllocationId, Need] = field(default_factory=dict)
    held: Mapping[AllocationId, Held] = field(default_factory=dict)
    gone: tuple[AllocationId, ...] = ()  # lost or given back; never taken again
    version: int = 0  # of the declaration; grows with every change to it
    draining: frozenset[ResourceId] = frozenset()  # TaskManagers that the job is to leave (A15b)

    def declaration(self) -> tuple[SlotNeed, ...]:
        return tuple(
            SlotNeed(
                allocation_id=allocation,
                slots=need.want.slots,
                least=0 if need.want.least == need.want.slots else need.want.least,
                beside=need.want.beside,
                held=need.want.held,
                group=need.group,
                profile=need.want.profile,
            )
            for allocation, need in sorted(self.needs.items())
        )

    def closed_to(self, libraries: tuple[Library, ...]) -> frozenset[ResourceId]:
        """Return the TaskManagers on which nothing with these libraries is deployed any more.

        They are draining, or their sessions hold other versions of the libraries (B31).
        """
        if not libraries:  # as with most jobs, and this is asked for every micro-batch
            return self.draining
        return self.draining | {h.resource_id for h in self.held.values() if clash(h.libraries, libraries)}

    def barred(self, profiles: Mapping[str, ResourceProfile]) -> Barred:
        """Return where these groups cannot run, because the slots there have less than `profiles` say (R40)."""
        return {
            group: {h.resource_id for h in self.held.values() if not h.profile.covers(profile)}
            for group, profile in profiles.items()
            if profile
        }

    @property
    def holdings(self) -> Holdings:
        found: dict[ResourceId, dict[AllocationId, int]] = {}
        for allocation, held in self.held.items():
            found.setdefault(held.resource_id, {})[allocation] = len(held.slots)
        return found

    def on(self, resource_id: ResourceId) -> tuple[AllocationId, ...]:
        return tuple(sorted(a for a, h in self.held.items() if h.resource_id == resource_id))

    def accepted(self, resource_id: ResourceId, offers: tuple[SlotOffer, ...]) -> tuple[AllocationId, ...]:
        """m10: Return the allocations of an offer that are held. A repeated offer gets the same answer."""
        mine = self.on(resource_id)
        return tuple(o.allocation_id for o in offers if o.allocation_id in mine)

    def address_of(self, resource_id: ResourceId) -> str | None:
        return next((h.address for h in self.held.values() if h.resource_id == resource_id), None)


def ask(pool: SlotPool, wants: Mapping[str, Want], ids: IdSource) -> SlotPool:
    """Return the pool with exactly one need for each of these groups.

    A need keeps its allocation if nothing but `least` has changed.
    """
    needs: dict[AllocationId, Need] = {}
    for allocation, need in pool.needs.items():
        want = wants.get(need.group)
        if want is not None and replace(want, least=need.want.least) == need.want:
            needs[allocation] = Need(need.group, want)
    asked = {need.group for need in needs.values()}
    needs |= {ids.allocation(): Need(g, want) for g, want in sorted(wants.items()) if g not in asked}
    return pool if needs == pool.needs else replace(pool, needs=needs, version=pool.version + 1)


def renewed(pool: SlotPool) -> SlotPool:
    """Return the pool with all needs withdrawn. `ask` then makes new ones with new allocations."""
    return replace(pool, needs={}, version=pool.version + 1) if pool.needs else pool


def offered(
    pool: SlotPool,
    there: Session,
    offers: tuple[SlotOffer, ...],
    *,
    in_use: Collection[AllocationId] = (),
    covering: int = 0,
) -> SlotPool:
    """Return the pool with the accepted part of an offer: what it asked for, and what serves it as well (R13).

    It refuses the rest, and offers of a draining TaskManager. Allocations `in_use` carry tasks that may be adopted, and
    are always accepted, as are others until `covering` slots are held there: as many as these tasks use. The pool does
    not take back an allocation that it once gave up.
    """
    resource_id = there.resource_id

    def order(offer: SlotOffer) -> tuple[object, ...]:
        # What is in use first, then what was asked for, then the largest: the rest may no longer be needed.
        allocation = offer.allocation_id
        return allocation not in in_use, allocation not in pool.needs, -len(offer.slots), allocation

    for offer in sorted(offers, key=order):
        allocation, need = offer.allocation_id, pool.needs.get(offer.allocation_id)
        taken = {slot for a in pool.on(resource_id) for slot in pool.held[a].slots}
        if allocation in pool.held or allocation in pool.gone or not offer.slots or taken & set(offer.slots):
            continue
        needs = {a: n for a, n in pool.needs.items() if a != allocation}
        new = Held(offer.slots, resource_id, there.address, there.data_url, there.libraries, there.profile)
        richer = replace(pool, needs=needs, held={**pool.held, allocation: new}, version=pool.version + 1)
        used = allocation in in_use or len(taken) < covering
        if resource_id in pool.draining and not used:
            continue
        want = need.want if need is not None and there.profile.covers(need.want.profile) else None
        asked = want is not None and want.served_by(resource_id, len(offer.slots))
        if asked or used or _reach(richer) > _reach(pool):
            pool = richer
    return pool


def _reach(pool: SlotPool) -> int:
    closed, barred = pool.closed_to(pool.libraries), pool.barred(pool.profiles)
    return total(place(pool.groups, pool.holdings, present={}, closed=closed, barred=barred))


def drained(pool: SlotPool, resource_id: ResourceId, draining: bool) -> SlotPool:
    """Return the pool after the TaskManager said whether it is draining."""
    if (resource_id in pool.draining) is draining:
        return pool
    return replace(pool, draining=pool.draining ^ {resource_id})


def dropped(pool: SlotPool, allocations: tuple[AllocationId, ...]) -> SlotPool:
    """Return the pool without these allocations, which are lost or given back."""
    gone = tuple(a for a in allocations if a in pool.held)
    if not gone:
        return pool
    held = {a: h for a, h in pool.held.items() if a not in gone}
    return replace(pool, held=held, gone=(*pool.gone, *gone)[-GONE_KEPT:], version=pool.version + 1)


def narrowed(pool: SlotPool, surplus: Mapping[AllocationId, tuple[int, ...]]) -> SlotPool:
    """Return the pool without these slots. It keeps the allocations they belong to."""
    held = dict(pool.held)
    for allocation, unused in surplus.items():
        left = tuple(slot for slot in held[allocation].slots if slot not in unused)
        held[allocation] = replace(held[allocation], slots=left)
    return replace(pool, held=held, version=pool.version + 1) if surplus else pool


def surplus(pool: SlotPool, placement: Placement) -> Mapping[AllocationId, tuple[int, ...]]:
    """Return the unused slots of allocations that the groups run on. Each allocation keeps at least one slot."""
    found: dict[AllocationId, tuple[int, ...]] = {}
    for resource in {share.resource_id for share in placement.values()}:
        shares = [share for share in placement.values() if share.resource_id == resource]
        used = {a for share in shares for a in share.allocations if a in pool.held}
        beyond = sum(len(pool.held[a].slots) for a in used) - sum(share.parallelism for share in shares)
        for allocation in sorted(used, key=lambda a: (-len(pool.held[a].slots), a)):
            slots = pool.held[allocation].slots
            unused = min(beyond, len(slots) - 1)
            if unused > 0:
                found[allocation] = slots[-unused:]
                beyond -= unused
    return found


def check_invariants(pool: SlotPool) -> None:
    """Check the pool. Raises InvariantViolated."""
    if both := set(pool.needs) & set(pool.held):
        raise InvariantViolated(f"allocations both wanted and held: {sorted(both)}")
    if back := set(pool.gone) & set(pool.held):
        raise InvariantViolated(f"allocations that were given up are held: {sorted(back)}")
    groups = [n.group for n in pool.needs.values()]
    if len(groups) != len(set(groups)):
        raise InvariantViolated(f"a slot sharing group is asked for twice: {sorted(groups)}")
    slots = [(h.resource_id, s) for h in pool.held.values() for s in h.slots]
    if len(slots) != len(set(slots)):
        raise InvariantViolated(f"a slot is held by two allocations: {sorted(slots)}")
