"""Which slots are kept, although they are free, for a need with larger demands or for none at all (R40). Pure.

Without this, a job that wants a GPU would starve: small needs would always be faster to take the slots beside the GPU.
A slot is kept from a need that can have slots elsewhere, because a TaskManager can be started for it, and from a need
that came after the one which waits for it. So the oldest need of all is never kept waiting by others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from minflinkd.resourcemanager.options import ResourceManagerOptions
from minflinkd.resourcemanager.placement import covered, is_special, least
from minflinkd.resourcemanager.provisioning import cannot_start, no_start
from minflinkd.resourcemanager.rooms import is_coming
from minflinkd.resourcemanager.sizes import size_for
from minflinkd.resourcemanager.state import Resources
from minflinkd.resourcemanager.task_managers import Presence, TaskManager
from minflinkd.rpc.libraries import clash
from minflinkd.rpc.messages import SlotNeed
from minflinkd.runtime.ids import AllocationId, JobId


@dataclass(frozen=True)
class _Claim:
    job_id: JobId
    need: SlotNeed
    startable: bool  # whether a TaskManager can be started for it


@dataclass(frozen=True)
class Claims:
    """The open needs whose demands not every TaskManager meets, at one moment."""

    state: Resources
    options: ResourceManagerOptions
    now: float
    open: tuple[_Claim, ...] = ()
    special: bool = False  # whether there are TaskManagers that are kept from who wants nothing special

    @property
    def any(self) -> bool:
        """Whether anything is kept. Most often not: then no TaskManager needs to be looked at."""
        return self.special or bool(self.open)

    def without(self, state: Resources, allocation: AllocationId) -> Claims:
        """Return what is still claimed after this need was served."""
        return replace(self, state=state, open=tuple(c for c in self.open if c.need.allocation_id != allocation))

    def keep(self, tm: TaskManager, job_id: JobId, need: SlotNeed) -> bool:
        """Whether this TaskManager's free slots are not for this need now."""
        if self.special and not need.profile and self._is_special(tm) and self._has_elsewhere(job_id, need):
            return True
        growth = need.beside is not None
        elsewhere = not growth and _startable(self.state, self.options, need)
        for claim in self.open:
            if claim.need.profile.rank <= need.profile.rank or not self._serves(tm, claim):
                continue
            if elsewhere:
                kept = len(tm.free) >= least(claim.need) or not claim.startable
            else:
                older = self.state.jobs[claim.job_id].number <= self.state.jobs[job_id].number
                kept = growth or (older and not claim.startable)
            if kept:
                return True
        return False

    def _is_special(self, tm: TaskManager) -> bool:
        return tm.shelf is not None and is_special(tm.shelf, self.options)

    def _has_elsewhere(self, job_id: JobId, need: SlotNeed) -> bool:
        """Whether a TaskManager that is not special has, or will have, enough slots for the need, or can be started."""
        if need.beside is None and _startable(self.state, self.options, need):
            return True
        job = self.state.jobs[job_id]
        for shelf, found in self.state.shelves.items():
            if is_special(shelf, self.options) or shelf.dedicated_to or clash(shelf.libraries, job.libraries):
                continue
            starting = shelf.presence is Presence.STARTING
            free = shelf.free if not starting else shelf.size or self.options.slots_per_tm
            tms = (self.state.task_managers[resource_id] for resource_id in found)
            comes = shelf.presence is not Presence.COMING or any(is_coming(t, self.options, self.now) for t in tms)
            if free >= least(need) and comes and (shelf.idle or not job.exclusive):
                return True
        return False

    def _serves(self, tm: TaskManager, claim: _Claim) -> bool:
        """Whether the TaskManager could serve the claim, now or when more of its slots are free."""
        job = self.state.jobs[claim.job_id]
        return (
            tm.profile.covers(claim.need.profile)
            and len(tm.slots) >= least(claim.need)
            and tm.dedicated_to in (None, claim.job_id)
            and not clash(tm.libraries, job.libraries)
            and not (job.exclusive and any(other != claim.job_id for other in tm.jobs))
        )


def claims(state: Resources, options: ResourceManagerOptions, now: float) -> Claims:
    """Return what is claimed now."""
    found = []
    for job_id, needs in state.open_needs.items():
        demanding = [need for need in needs if need.profile and need.beside is None]
        if not demanding:
            continue
        later, job = covered(state, job_id, options, now), state.jobs[job_id]
        for need in demanding:
            waits = need.allocation_id in later or job.rests(need.allocation_id, now)
            if not waits and not _common(state, options, need):
                found.append(_Claim(job_id, need, _startable(state, options, need)))
    return Claims(state, options, now, tuple(found), any(is_special(shelf, options) for shelf in state.shelves))


def _common(state: Resources, options: ResourceManagerOptions, need: SlotNeed) -> bool:
    """Whether any TaskManager meets the demands. Then slots are given to whom they always were."""
    if options.can_start:
        return options.profile.covers(need.profile)
    registered = (shelf for shelf in state.shelves if shelf.presence is not Presence.STARTING)
    return all(shelf.profile.covers(need.profile) for shelf in registered)


def _startable(state: Resources, options: ResourceManagerOptions, need: SlotNeed) -> bool:
    if cannot_start(state, options) is not None or no_start(state) is not None:
        return False
    return size_for(options, need.profile, need.slots, least(need)) is not None
