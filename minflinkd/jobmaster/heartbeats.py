"""JobMaster -> TaskManager heartbeats (R10): who is due, who is lost, what an answer contradicts. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler.state import JobState
from minflinkd.rpc.jobs import ExecutionState
from minflinkd.rpc.messages import JobHeartbeatAnswer, TaskState
from minflinkd.runtime.heartbeats import Heartbeats
from minflinkd.runtime.ids import AttemptId, ResourceId

UNREACHABLE_IS_LOST = 2  # failed connections in a row
_ENDING = frozenset({TaskState.CANCELING, TaskState.CANCELED, TaskState.FAILED})
_SETTLED = frozenset({ExecutionState.INITIALIZING, ExecutionState.RUNNING})


@dataclass(frozen=True)
class Beat:
    """One heartbeat.

    Its answer is compared with the state `before` it was sent. It is dropped if a later beat was already answered.
    """

    resource_id: ResourceId
    number: int
    before: JobState


class TaskManagerBeats:
    """Sends one beat per interval to each TaskManager, whether or not the last one was answered.

    Otherwise one lost beat could make the job look dead to the TaskManager.
    """

    def __init__(self, *, interval: float, timeout: float) -> None:
        self._interval = interval
        self._heard: Heartbeats[ResourceId] = Heartbeats(timeout)
        self._due: dict[ResourceId, float] = {}
        self._unreachable: dict[ResourceId, int] = {}
        self._answered: dict[ResourceId, int] = {}  # number of the latest answered beat
        self._sent = 0

    def watch(self, resources: Collection[ResourceId], now: float) -> None:
        """Send beats to these TaskManagers from now on, and to no others."""
        for gone in [r for r in self._due if r not in resources]:
            self._heard.forget(gone)
            del self._due[gone]
            self._unreachable.pop(gone, None)
            self._answered.pop(gone, None)
        for resource in resources:
            if resource not in self._due:
                self._due[resource] = now + self._interval
                self._heard.heard(resource, now)

    @property
    def watched(self) -> Collection[ResourceId]:
        return self._due.keys()

    def next_due(self) -> float | None:
        silent = self._heard.next_due()
        return min([*self._due.values(), *([] if silent is None else [silent])], default=None)

    def take_due(self, state: JobState, now: float) -> tuple[Beat, ...]:
        beats = []
        for resource in sorted(r for r, due in self._due.items() if now >= due):
            self._due[resource] = now + self._interval
            self._sent += 1
            beats.append(Beat(resource, self._sent, state))
        return tuple(beats)

    def take_silent(self, now: float) -> tuple[ev.TaskManagerGone, ...]:
        due = self.next_due()
        # This process was held up and could not hear anybody.
        if due is not None and (late := now - due) > self._interval:
            self._heard.postpone(late)
        silent = sorted(self._heard.take_silent(now))
        return tuple(ev.TaskManagerGone(r, f"no heartbeat for {seconds:.1f} s") for r, seconds in silent)

    def heard(self, resource: ResourceId, now: float) -> None:
        """Note that the TaskManager is alive: some message came from it."""
        if resource in self._due:
            self._heard.heard(resource, now)
            self._unreachable[resource] = 0

    def unreachable(self, resource: ResourceId, why: str) -> ev.TaskManagerGone | None:
        if resource not in self._due:
            return None
        misses = self._unreachable[resource] = self._unreachable.get(resource, 0) + 1
        return ev.TaskManagerGone(resource, why) if misses >= UNREACHABLE_IS_LOST else None

    def is_latest(self, beat: Beat) -> bool:
        """Whether no later beat was answered before. From now on, this one is the latest answered beat."""
        resource = beat.resource_id
        if resource not in self._due or beat.number < self._answered.get(resource, 0):
            return False
        self._answered[resource] = beat.number
        return True


def contradictions(beat: Beat, answer: JobHeartbeatAnswer) -> Iterator[ev.Event]:
    """Yield what the answer changes: what the TaskManager does not know is gone, and its task states are true."""
    resource, before = beat.resource_id, beat.before
    unknown = tuple(a for a in before.pool.on(resource) if a not in answer.allocations)
    if unknown:
        yield ev.SlotsGone(unknown, f"TaskManager {resource} does not know the allocation")
    for status in answer.tasks:
        yield ev.TaskChanged(status)
    known = {status.attempt_id for status in answer.tasks}
    for execution in before.executions.values():
        # A deployment that was not answered may still be on its way: the TaskManager need not know it yet.
        settled = execution.state in _SETTLED or (execution.state is ExecutionState.DEPLOYING and execution.accepted)
        here = settled and execution.resource_id == resource
        if here and execution.attempt_id is not None and execution.attempt_id not in known:
            yield ev.AttemptGone(execution.attempt_id)


def strays(beat: Beat, answer: JobHeartbeatAnswer, now: JobState) -> tuple[AttemptId, ...]:
    """Return attempts on the TaskManager that this JobMaster gave up: they must not run beside their successors.

    They were given up while their TaskManager did not answer. Their deployment may have arrived late, or their
    cancellation not at all.
    """
    known = beat.before.known_attempts | now.known_attempts
    return tuple(s.attempt_id for s in answer.tasks if s.attempt_id not in known and s.state not in _ENDING)
