"""The slots of one job: what it needs, what it was offered, what it holds (resources.md, SlotPool). Pure.

One need, and one allocation, is all the slots of one slot sharing group (J6): `slots` slots of one TaskManager.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from minflinkd.rpc.messages import SlotNeed, SlotOffer
from minflinkd.runtime.ids import AllocationId, IdSource, ResourceId
from minflinkd.runtime.machine import InvariantViolated


@dataclass(frozen=True)
class Need:
    group: str
    slots: int
    since: float  # seconds


@dataclass(frozen=True)
class Held:
    group: str
    slots: tuple[int, ...]
    resource_id: ResourceId
    address: str


@dataclass(frozen=True)
class SlotPool:
    groups: Mapping[str, int]  # slot sharing group -> slots: all that the job wants
    needs: Mapping[AllocationId, Need] = field(default_factory=dict)
    held: Mapping[AllocationId, Held] = field(default_factory=dict)
    version: int = 0  # of the declaration; grows with every change of the needs

    @property
    def complete(self) -> bool:
        return not self.needs and {h.group for h in self.held.values()} == set(self.groups)

    def declaration(self) -> tuple[SlotNeed, ...]:
        return tuple(SlotNeed(allocation_id=a, slots=n.slots) for a, n in sorted(self.needs.items()))

    def of_group(self, group: str) -> tuple[AllocationId, Held] | None:
        return next(((a, h) for a, h in self.held.items() if h.group == group), None)

    def on(self, resource_id: ResourceId) -> tuple[AllocationId, ...]:
        return tuple(a for a, h in self.held.items() if h.resource_id == resource_id)

    def address_of(self, resource_id: ResourceId) -> str | None:
        return next((h.address for h in self.held.values() if h.resource_id == resource_id), None)


def ask_for_missing(pool: SlotPool, ids: IdSource, now: float) -> SlotPool:
    """A need for every group that has neither slots nor a need."""
    covered = {h.group for h in pool.held.values()} | {n.group for n in pool.needs.values()}
    missing = {ids.allocation(): Need(g, n, now) for g, n in pool.groups.items() if g not in covered}
    if not missing:
        return pool
    return replace(pool, needs={**pool.needs, **missing}, version=pool.version + 1)


def offered(
    pool: SlotPool, resource_id: ResourceId, address: str, offers: tuple[SlotOffer, ...]
) -> tuple[SlotPool, tuple[AllocationId, ...]]:
    """The pool with what it takes of an offer, and the accepted allocations; the same again for a repeated offer."""
    accepted: list[AllocationId] = []
    for offer in offers:
        allocation = offer.allocation_id
        need = pool.needs.get(allocation)
        if need is not None and len(offer.slots) == need.slots:
            taken = Held(need.group, offer.slots, resource_id, address)
            needs = {a: n for a, n in pool.needs.items() if a != allocation}
            pool = replace(pool, needs=needs, held={**pool.held, allocation: taken}, version=pool.version + 1)
            accepted.append(allocation)
        elif (held := pool.held.get(allocation)) is not None and held.resource_id == resource_id:
            accepted.append(allocation)
    return pool, tuple(accepted)


def dropped(pool: SlotPool, allocations: tuple[AllocationId, ...]) -> SlotPool:
    """The pool without these allocations: lost, or given back."""
    gone = set(allocations)
    return replace(pool, held={a: h for a, h in pool.held.items() if a not in gone})


def overdue(pool: SlotPool, timeout: float, now: float) -> tuple[Need, ...]:
    """Needs that nobody served within `slot.request.timeout` (R5)."""
    return tuple(n for n in pool.needs.values() if now - n.since >= timeout)


def renewed(pool: SlotPool) -> SlotPool:
    """All open needs withdrawn; `ask_for_missing` makes new ones with allocations of their own."""
    return replace(pool, needs={}, version=pool.version + 1) if pool.needs else pool


def check_invariants(pool: SlotPool) -> None:
    """Raises InvariantViolated."""
    if both := set(pool.needs) & set(pool.held):
        raise InvariantViolated(f"allocations both wanted and held: {sorted(both)}")
    groups = [n.group for n in pool.needs.values()] + [h.group for h in pool.held.values()]
    if len(groups) != len(set(groups)):
        raise InvariantViolated(f"a slot sharing group is served twice: {sorted(groups)}")
