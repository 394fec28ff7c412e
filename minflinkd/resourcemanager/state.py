"""What the ResourceManager knows: TaskManagers, their slots, and what jobs need. Immutable values.

This is a broker's view (R12): the TaskManagers' reports are the truth about slots, and nothing here outlives the
process.

`Resources` keeps three indexes of itself, so that no event needs to look at every slot (R31): `shelves`, `holdings` and
`open_needs`. They change together with what they index, and only in `with_...` and `without_...`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from minflinkd.resourcemanager.task_managers import Shelf, SlotState, TaskManager, TaskManagerState
from minflinkd.rpc.libraries import clash
from minflinkd.rpc.messages import DeclareNeeds, Library, SlotNeed
from minflinkd.runtime.ids import AllocationId, JobId, LeaderId, ResourceId
from minflinkd.runtime.machine import InvariantViolated
from minflinkd.runtime.resource_profile import NO_PROFILE, ResourceProfile

K = TypeVar("K")
V = TypeVar("V")

PAST_KEPT = 1_000  # jobs; the last messages of a JobMaster are long delivered when its job is forgotten


@dataclass(frozen=True)
class Returned:
    """Slots were given for a need and came back, so its JobMaster did not want them."""

    times: int
    rest_until: float  # seconds; the need is not served before this time


@dataclass(frozen=True)
class JobNeeds:
    """The last declaration of a job's JobMaster (R8)."""

    declaration: DeclareNeeds
    since: float  # seconds; the first declaration of this JobMaster
    number: int  # jobs are served in the order of their arrival
    returned: Mapping[AllocationId, Returned] = field(default_factory=dict)  # since the last declaration
    given_up: frozenset[AllocationId] = frozenset()  # soon after `since`; this JobMaster never takes them again

    @property
    def leader_id(self) -> LeaderId:
        return self.declaration.leader_id

    @property
    def address(self) -> str:
        return self.declaration.address

    @property
    def exclusive(self) -> bool:
        return self.declaration.exclusive

    @property
    def libraries(self) -> tuple[Library, ...]:
        return self.declaration.libraries

    @cached_property
    def held(self) -> frozenset[AllocationId]:
        return frozenset(self.declaration.held)

    @cached_property
    def needs(self) -> Mapping[AllocationId, SlotNeed]:
        return {need.allocation_id: need for need in self.declaration.needs}

    def rests(self, allocation: AllocationId, now: float) -> bool:
        """Whether the need is not served now, since slots for it came back."""
        returned = self.returned.get(allocation)
        return returned is not None and now < returned.rest_until


@dataclass(frozen=True)
class Past:
    """The last JobMaster of a job that has none now."""

    leader_id: LeaderId
    ended: bool  # for good: nothing that it sent counts any more
    since: float | None = None  # seconds; its first declaration, if it was heard


@dataclass(frozen=True)
class Wish:
    """A TaskManager with `slots` free slots is wanted for a while, but nobody waits for an answer."""

    slots: int
    until: float
    exclusive: bool = False
    libraries: tuple[Library, ...] = ()
    profile: ResourceProfile = NO_PROFILE  # what each slot must have (R40)


KEPT_LOSSES = 5  # that are shown


@dataclass(frozen=True)
class Loss:
    """A registered TaskManager that was lost. `at` is in seconds of the injected clock."""

    resource_id: ResourceId
    at: float
    reason: str


@dataclass(frozen=True)
class Starts:
    """How recent starts went."""

    failed: int = 0  # in a row
    reason: str = ""  # of the last failure
    not_before: float = 0.0


@dataclass(frozen=True)
class Resources:
    task_managers: Mapping[ResourceId, TaskManager] = field(default_factory=dict)
    jobs: Mapping[JobId, JobNeeds] = field(default_factory=dict)
    past: Mapping[JobId, Past] = field(default_factory=dict)
    wishes: Mapping[str, Wish] = field(default_factory=dict)
    starts: Starts = Starts()
    lost: int = 0
    losses: tuple[Loss, ...] = ()  # the last ones, newest first
    arrivals: int = 0  # jobs so far
    recovering_until: float = 0.0  # TaskManagers of an earlier ResourceManager should register before this time
    spares_from: float = 0.0  # until then no spare is started: jobs recover, and need the processors
    unended: frozenset[JobId] = frozenset()  # jobs that have declared needs or were listed, and have not ended for good
    listed: bool = False  # whether the Dispatcher has said which jobs have not ended
    # Indexes.
    shelves: Mapping[Shelf, Mapping[ResourceId, None]] = field(default_factory=dict)  # all living ones
    holdings: Mapping[JobId, Mapping[AllocationId, tuple[ResourceId, ...]]] = field(default_factory=dict)
    open_needs: Mapping[JobId, tuple[SlotNeed, ...]] = field(default_factory=dict)  # without slots taken for them

    def with_task_manager(self, tm: TaskManager) -> Resources:
        return self._indexed(tm.resource_id, tm, {**self.task_managers, tm.resource_id: tm})

    def without_task_manager(self, resource_id: ResourceId) -> Resources:
        return self._indexed(resource_id, None, _without(self.task_managers, resource_id))

    def with_job(self, job_id: JobId, job: JobNeeds) -> Resources:
        unended = self.unended if job_id in self.unended else self.unended | {job_id}
        state = replace(self, jobs={**self.jobs, job_id: job}, past=_without(self.past, job_id), unended=unended)
        return replace(state, open_needs=_open_needs(state, (job_id,)))

    def without_job(self, job_id: JobId, past: Past) -> Resources:
        remembered = {**_without(self.past, job_id), job_id: past}
        if len(remembered) > PAST_KEPT:
            remembered.pop(next(iter(remembered)))
        return replace(
            self,
            jobs=_without(self.jobs, job_id),
            past=remembered,
            unended=self.unended - {job_id} if past.ended else self.unended,
            open_needs=_without(self.open_needs, job_id),
        )

    def living(self) -> Iterator[TaskManager]:
        """Return the TaskManagers that are starting or registered."""
        return (tm for tm in self.task_managers.values() if tm.state is not TaskManagerState.STOPPING)

    def draining(self) -> list[TaskManager]:
        """Return the draining TaskManagers that have not ended (A15b)."""
        return [tm for tm in self.task_managers.values() if tm.registered and tm.draining]

    def count(self) -> int:
        """Return the number of living TaskManagers, less one that drains if there is any: another may replace it."""
        return sum(len(shelf) for shelf in self.shelves.values()) + max(0, len(self.draining()) - 1)

    def unserved(self) -> list[tuple[JobId, SlotNeed]]:
        """Return the needs that no slots are taken for, those of the oldest job first."""
        oldest = sorted(self.open_needs, key=lambda job_id: self.jobs[job_id].number)
        return [(job_id, need) for job_id in oldest for need in self.open_needs[job_id]]

    def present_leader(self, job_id: JobId) -> LeaderId | None:
        """Return the latest known JobMaster of a job."""
        if (job := self.jobs.get(job_id)) is not None:
            return job.leader_id
        return self.past[job_id].leader_id if job_id in self.past else None

    def has_ended(self, job_id: JobId) -> bool:
        """Whether it is certain that the job has ended for good, so that nobody will come for its slots and tasks.

        A job that got slots from this ResourceManager has declared needs here. A job that got them from an earlier one
        was stored before the Dispatcher listed the jobs. So if it did neither, it is no more.
        """
        if job_id in self.unended:
            return False
        past = self.past.get(job_id)
        return self.listed or (past is not None and past.ended)

    def misses_list(self) -> bool:
        """Whether a job holds slots of which it is not known whether it has ended."""
        return not self.listed and any(j not in self.unended and not self.has_ended(j) for j in self.holdings)

    def _indexed(
        self, resource_id: ResourceId, new: TaskManager | None, task_managers: Mapping[ResourceId, TaskManager]
    ) -> Resources:
        old = self.task_managers.get(resource_id)
        shelves, holdings = self.shelves, self.holdings
        before, after = (tm.shelf if tm is not None else None for tm in (old, new))
        if before != after:
            shelves = dict(shelves)
            if before is not None:
                rest = _without(shelves[before], resource_id)
                if rest:
                    shelves[before] = rest
                else:
                    del shelves[before]
            if after is not None:
                shelves[after] = {**shelves.get(after, {}), resource_id: None}
        had, has = (tm.allocations if tm is not None else {} for tm in (old, new))
        if had == has:
            return replace(self, task_managers=task_managers, shelves=shelves)
        holdings = dict(holdings)
        for allocation, job_id in sorted(had.items() - has.items()):
            held = dict(holdings[job_id])
            others = tuple(r for r in held.pop(allocation) if r != resource_id)
            if others:
                held[allocation] = others
            holdings[job_id] = held
            if not held:
                del holdings[job_id]
        for allocation, job_id in sorted(has.items() - had.items()):
            held = dict(holdings.get(job_id, {}))
            held[allocation] = tuple(sorted((*held.get(allocation, ()), resource_id)))
            holdings[job_id] = held
        changed = {*had.values(), *has.values()}
        state = replace(self, task_managers=task_managers, shelves=shelves, holdings=holdings)
        return replace(state, open_needs=_open_needs(state, tuple(sorted(changed))))


def _without(mapping: Mapping[K, V], key: K) -> dict[K, V]:
    copy = dict(mapping)
    copy.pop(key, None)
    return copy


def _open_needs(state: Resources, of: tuple[JobId, ...]) -> Mapping[JobId, tuple[SlotNeed, ...]]:
    """Return the index after needs or holdings of these jobs have changed."""
    found = dict(state.open_needs)
    for job_id in of:
        job = state.jobs.get(job_id)
        taken = state.holdings.get(job_id, {})
        needs = job.declaration.needs if job is not None else ()
        still = tuple(n for n in needs if n.allocation_id not in taken and job and n.allocation_id not in job.held)
        if still:
            found[job_id] = still
        else:
            found.pop(job_id, None)
    return found


def check_invariants(state: Resources) -> None:
    """Raises InvariantViolated."""
    reserved: Counter[AllocationId] = Counter()
    for resource_id, tm in state.task_managers.items():
        if tm.state is TaskManagerState.GONE:
            raise InvariantViolated(f"{resource_id} is gone, but not forgotten")
        if tm.registered != (tm.report is not None and tm.instance_id is not None) and tm.state is not (
            TaskManagerState.STOPPING
        ):
            raise InvariantViolated(f"{resource_id} is {tm.state.name}, but its registration says otherwise")
        if tm.state is not TaskManagerState.REGISTERED and tm.slots:
            raise InvariantViolated(f"{resource_id} is {tm.state.name}, but has slots")
        for slot in tm.slots:
            if (slot.state is SlotState.FREE) != (slot.allocation_id is None):
                raise InvariantViolated(f"a {slot.state.name} slot of {resource_id} has holder {slot.allocation_id}")
            strange = slot.state is SlotState.RESERVED and slot.job_id != tm.dedicated_to
            if strange and tm.dedicated_to is not None:
                raise InvariantViolated(f"{resource_id} is {tm.dedicated_to}'s, but a slot is reserved for another job")
        if units := clash(tm.libraries, ()):
            raise InvariantViolated(f"the session of {resource_id} holds two versions of {', '.join(units)}")
        reserved.update({s.allocation_id for s in tm.slots if s.state is SlotState.RESERVED and s.allocation_id})
    if twice := sorted(a for a, n in reserved.items() if n > 1):
        raise InvariantViolated(f"slots are reserved on two TaskManagers for {', '.join(twice)}")
    if both := sorted(state.jobs.keys() & state.past.keys()):
        raise InvariantViolated(f"jobs are both present and past: {', '.join(both)}")
    if ended := sorted(job_id for job_id in state.jobs if state.has_ended(job_id)):
        raise InvariantViolated(f"jobs that have needs count as ended: {', '.join(ended)}")
    _check_indexes(state)


def _check_indexes(state: Resources) -> None:
    """Compare the indexes with what they are built from."""
    shelves: dict[Shelf, set[ResourceId]] = {}
    holdings: dict[JobId, dict[AllocationId, set[ResourceId]]] = {}
    for resource_id, tm in state.task_managers.items():
        if tm.shelf is not None:
            shelves.setdefault(tm.shelf, set()).add(resource_id)
        for allocation, job_id in tm.allocations.items():
            holdings.setdefault(job_id, {}).setdefault(allocation, set()).add(resource_id)
    if shelves != {shelf: set(found) for shelf, found in state.shelves.items()}:
        raise InvariantViolated(f"the shelves hold {state.shelves}, the TaskManagers say {shelves}")
    if holdings != {j: {a: set(tms) for a, tms in held.items()} for j, held in state.holdings.items()}:
        raise InvariantViolated(f"the holdings are {state.holdings}, the TaskManagers say {holdings}")
    open_needs = {}
    for job_id, job in state.jobs.items():
        taken = {*holdings.get(job_id, ()), *job.held}
        if still := tuple(need for need in job.declaration.needs if need.allocation_id not in taken):
            open_needs[job_id] = still
    if open_needs != state.open_needs:
        raise InvariantViolated(f"open needs are {state.open_needs}, the declarations say {open_needs}")
