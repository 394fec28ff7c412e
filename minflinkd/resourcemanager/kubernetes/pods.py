"""The machine of Pods: what was asked for, what the API server shows, what to do next (R50). Pure.

It does not know whether a TaskManager has registered: that is the ResourceManager's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from minflinkd.resourcemanager.kubernetes.observed import Observed, Stage
from minflinkd.runtime.ids import ResourceId
from minflinkd.runtime.machine import InvariantViolated, move, table
from minflinkd.runtime.machine import Step as BaseStep


class PodPhase(Enum):
    REQUESTED = auto()  # its creation is asked for; perhaps it exists already
    PENDING = auto()  # it exists, on no node
    SCHEDULED = auto()  # on a node; its container does not run yet
    RUNNING = auto()
    RELEASED = auto()  # nobody wants it any more, and it may still run
    ENDED = auto()  # its TaskManager has ended; its object is left
    GONE = auto()  # and forgotten


LEGAL = table(
    {
        PodPhase.REQUESTED: {
            PodPhase.PENDING,
            PodPhase.SCHEDULED,
            PodPhase.RUNNING,
            PodPhase.RELEASED,
            PodPhase.ENDED,
            PodPhase.GONE,
        },
        PodPhase.PENDING: {
            PodPhase.SCHEDULED,
            PodPhase.RUNNING,
            PodPhase.RELEASED,
            PodPhase.ENDED,
            PodPhase.GONE,
        },
        PodPhase.SCHEDULED: {PodPhase.RUNNING, PodPhase.RELEASED, PodPhase.ENDED, PodPhase.GONE},
        PodPhase.RUNNING: {PodPhase.RELEASED, PodPhase.ENDED, PodPhase.GONE},
        PodPhase.RELEASED: {PodPhase.ENDED, PodPhase.GONE},
        PodPhase.ENDED: {PodPhase.GONE},
        PodPhase.GONE: (),
    }
)
_OF_STAGE = {
    Stage.PENDING: PodPhase.PENDING,
    Stage.SCHEDULED: PodPhase.SCHEDULED,
    Stage.RUNNING: PodPhase.RUNNING,
    Stage.ENDED: PodPhase.ENDED,
}
_ORDER = (PodPhase.REQUESTED, PodPhase.PENDING, PodPhase.SCHEDULED, PodPhase.RUNNING)  # of a Pod that is wanted


@dataclass(frozen=True)
class TrackedPod:
    resource_id: ResourceId
    phase: PodPhase
    uid: str = ""  # empty: it is not certain that it exists
    why: str = ""  # why it does not run yet
    adopted: bool = False  # an earlier launcher asked for it
    kill: bool = False  # released, without time to end

    @property
    def wanted(self) -> bool:
        return self.phase in _ORDER


@dataclass(frozen=True)
class Pods:
    pods: Mapping[ResourceId, TrackedPod] = field(default_factory=dict)
    synced: bool = False  # all Pods of the cluster were seen once


# --- events ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PodWanted:
    resource_id: ResourceId


@dataclass(frozen=True)
class PodCreated:
    """The API server says that there is the Pod that was asked for."""

    resource_id: ResourceId
    uid: str


@dataclass(frozen=True)
class CreationFailed:
    """`unknown`: perhaps it exists nevertheless."""

    resource_id: ResourceId
    unknown: bool


@dataclass(frozen=True)
class PodUnwanted:
    """`kill`: it gets no time to end."""

    resource_id: ResourceId
    kill: bool


@dataclass(frozen=True)
class PodSeen:
    pod: Observed


@dataclass(frozen=True)
class PodRemoved:
    """Its object is gone. `how`: how the TaskManager ended."""

    resource_id: ResourceId
    uid: str
    how: str


@dataclass(frozen=True)
class PodsListed:
    """All Pods of the cluster. `before`: the uids of those that were known to exist when the list was asked for."""

    pods: tuple[Observed, ...]
    before: frozenset[str]


@dataclass(frozen=True)
class PodMissing:
    """The API server was asked to delete it, and says that there is no such Pod."""

    resource_id: ResourceId


Event = PodWanted | PodCreated | CreationFailed | PodUnwanted | PodSeen | PodRemoved | PodsListed | PodMissing


# --- commands --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CreatePod:
    resource_id: ResourceId


@dataclass(frozen=True)
class GiveUpCreation:
    """Do not ask any more. That it failed is the next event."""

    resource_id: ResourceId


@dataclass(frozen=True)
class DeletePod:
    resource_id: ResourceId
    uid: str
    kill: bool = False


@dataclass(frozen=True)
class TellExit:
    resource_id: ResourceId
    how: str


@dataclass(frozen=True)
class TellWaiting:
    """Say why it does not run yet; empty: nothing keeps it any more."""

    resource_id: ResourceId
    why: str


@dataclass(frozen=True)
class TellFound:
    """Pods that nobody here asked for, seen after the first list."""

    resource_id: ResourceId


Command = CreatePod | GiveUpCreation | DeletePod | TellExit | TellWaiting | TellFound


class Step(BaseStep[Pods, Command]):
    def put(self, pod: TrackedPod) -> None:
        self.set(pods={**self.state.pods, pod.resource_id: pod})

    def to(self, pod: TrackedPod, phase: PodPhase, **changes: object) -> TrackedPod:
        """Move a Pod. Raises IllegalTransition."""
        phase = move(LEGAL, pod.phase, phase, what=pod.resource_id)
        moved = replace(pod, phase=phase, **changes)  # type: ignore[arg-type]  # the callers name fields
        if phase is PodPhase.GONE:
            self.set(pods={key: other for key, other in self.state.pods.items() if key != pod.resource_id})
        else:
            self.put(moved)
        return moved


def step(state: Pods, event: Event, now: float) -> tuple[Pods, tuple[Command, ...]]:
    this = Step(state, now)
    match event:
        case PodWanted(resource_id):
            this.put(TrackedPod(resource_id, PodPhase.REQUESTED))
            this.commands.append(CreatePod(resource_id))
        case PodCreated(resource_id, uid):
            _created(this, resource_id, uid)
        case CreationFailed(resource_id, unknown):
            _not_created(this, resource_id, unknown)
        case PodUnwanted(resource_id, kill):
            _unwanted(this, resource_id, kill)
        case PodSeen(pod):
            _seen(this, pod)
        case PodRemoved(resource_id, uid, how):
            _removed(this, resource_id, uid, how)
        case PodsListed(pods, before):
            _listed(this, pods, before)
        case PodMissing(resource_id):
            found = state.pods.get(resource_id)
            if found is not None and not found.wanted:
                _gone(this, found, "its Pod was deleted")
    return this.result()


def _created(this: Step, resource_id: ResourceId, uid: str) -> None:
    pod = this.state.pods.get(resource_id)
    if pod is None or pod.uid:  # the watch was faster than the answer
        return
    pod = replace(pod, uid=uid)
    this.put(pod)
    if pod.phase is PodPhase.REQUESTED:
        this.to(pod, PodPhase.PENDING)
    elif pod.phase is PodPhase.RELEASED:
        this.commands.append(DeletePod(resource_id, uid, pod.kill))


def _not_created(this: Step, resource_id: ResourceId, unknown: bool) -> None:
    """Nobody is told: whoever asked for it gets the error. If it exists after all, it is deleted."""
    pod = this.state.pods.get(resource_id)
    if pod is None or pod.uid:
        return
    if not unknown:
        this.to(pod, PodPhase.GONE)
        return
    if pod.phase is PodPhase.REQUESTED:
        this.to(pod, PodPhase.RELEASED, kill=True)
    this.commands.append(DeletePod(resource_id, "", kill=True))


def _unwanted(this: Step, resource_id: ResourceId, kill: bool) -> None:
    pod = this.state.pods.get(resource_id)
    if pod is None or pod.phase is PodPhase.ENDED:
        return
    if pod.phase is PodPhase.REQUESTED:
        this.to(pod, PodPhase.RELEASED, kill=kill)
        this.commands.append(GiveUpCreation(resource_id))
        return
    if pod.wanted:
        pod = this.to(pod, PodPhase.RELEASED, kill=kill)
    elif pod.kill or not kill:
        return
    else:
        pod = replace(pod, kill=True)
        this.put(pod)
    if pod.uid:  # otherwise it is deleted when it is known what became of its creation
        this.commands.append(DeletePod(resource_id, pod.uid, kill))


def _seen(this: Step, seen: Observed) -> None:
    pod = this.state.pods.get(seen.resource_id)
    if pod is None:
        _found(this, seen)
        return
    if pod.uid not in ("", seen.uid):
        _gone(this, pod, "its Pod was replaced by another one")
        _found(this, seen)
        return
    if not pod.uid:
        pod = replace(pod, uid=seen.uid)
        this.put(pod)
        if pod.phase is PodPhase.RELEASED and not seen.deleting and seen.stage is not Stage.ENDED:
            this.commands.append(DeletePod(pod.resource_id, pod.uid, pod.kill))
    if pod.phase is PodPhase.ENDED:
        return
    if seen.stage is Stage.ENDED:
        this.to(pod, PodPhase.ENDED)
        this.commands += [TellExit(pod.resource_id, seen.why), DeletePod(pod.resource_id, pod.uid)]
    elif pod.wanted:
        phase = _OF_STAGE[seen.stage]
        if _ORDER.index(phase) > _ORDER.index(pod.phase):
            pod = this.to(pod, phase)
        if pod.why != seen.why:
            this.put(replace(pod, why=seen.why))
            this.commands.append(TellWaiting(pod.resource_id, seen.why))


def _found(this: Step, seen: Observed) -> None:
    """An earlier daemon, or a request that seemed to have failed, left it: its TaskManager is used like any other."""
    if seen.stage is Stage.ENDED:
        this.put(TrackedPod(seen.resource_id, PodPhase.ENDED, seen.uid, adopted=True))
        this.commands.append(DeletePod(seen.resource_id, seen.uid))
        return
    if seen.deleting:
        this.put(TrackedPod(seen.resource_id, PodPhase.RELEASED, seen.uid, adopted=True))
        return
    this.put(TrackedPod(seen.resource_id, _OF_STAGE[seen.stage], seen.uid, seen.why, adopted=True))
    if this.state.synced:
        this.commands.append(TellFound(seen.resource_id))
    if seen.why:
        this.commands.append(TellWaiting(seen.resource_id, seen.why))


def _removed(this: Step, resource_id: ResourceId, uid: str, how: str) -> None:
    pod = this.state.pods.get(resource_id)
    if pod is not None and pod.uid in ("", uid):
        _gone(this, pod, how)


def _gone(this: Step, pod: TrackedPod, how: str) -> None:
    this.to(pod, PodPhase.GONE)
    if pod.phase is not PodPhase.ENDED:
        this.commands.append(TellExit(pod.resource_id, how))


def _listed(this: Step, pods: tuple[Observed, ...], before: frozenset[str]) -> None:
    """Compare with everything that there is. What was created while the list was made may be missing in it."""
    there = {pod.uid for pod in pods}
    for pod in tuple(this.state.pods.values()):
        if pod.uid in before - there:
            _gone(this, pod, "its Pod was deleted")
    for seen in pods:
        _seen(this, seen)
        tracked = this.state.pods.get(seen.resource_id)
        if tracked is not None and not tracked.wanted and not seen.deleting:
            delete = DeletePod(tracked.resource_id, tracked.uid, tracked.kill)  # the request before may have been lost
            if delete not in this.commands:
                this.commands.append(delete)
    this.set(synced=True)


def check_invariants(state: Pods) -> None:
    """Raises InvariantViolated."""
    for resource_id, pod in state.pods.items():
        if pod.resource_id != resource_id or pod.phase is PodPhase.GONE:
            raise InvariantViolated(f"{resource_id} is kept as {pod}")
        if not pod.uid and pod.phase not in (PodPhase.REQUESTED, PodPhase.RELEASED):
            raise InvariantViolated(f"{resource_id} is {pod.phase.name}, and its uid is not known")
