"""A job of wide tasks. Tests feed its scheduler by hand and see what is requested, offered, deployed and reported."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.jobgraph.model import RestartStrategy, Source, Task, Vertex
from minflinkd.jobmaster.options import JobMasterOptions
from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler.machine import next_wakeup, step
from minflinkd.jobmaster.scheduler.phases import Running
from minflinkd.jobmaster.scheduler.state import JobState, check_invariants, new_job
from minflinkd.rpc.jobs import ExecutionState, JobStatus
from minflinkd.rpc.messages import Library, SlotNeed, SlotOffer, TaskState, TaskStatus
from minflinkd.runtime.errors import Consequence, ErrorInfo
from minflinkd.runtime.ids import AllocationId, AttemptId, Chance, IdSource, ResourceId, TaskId, VertexId
from minflinkd.runtime.resource_profile import NO_PROFILE, ResourceProfile
from minflinkd.runtime.units import Duration

TM1, TM2 = ResourceId("tm-1"), ResourceId("tm-2")
BOOM = ErrorInfo(code="user-code", message="boom", consequence=Consequence.RETRYABLE)


def task(name: str, parallelism: int, group: str) -> Task:
    vertex = Vertex(id=VertexId(name), source=Source(format="rate"))
    return Task(id=TaskId(name), vertices=(vertex,), parallelism=parallelism, slot_sharing_group=group)


class WideJob:
    """`WideJob(a=4, b=2)` has two tasks, each in a slot sharing group of its own, unless `group` names one for all.

    If `rigid`, its tasks cannot have other slots while they run.
    """

    def __init__(
        self,
        *,
        group: str = "",
        ran_with: int = 0,
        recovered: bool = False,
        libraries: tuple[Library, ...] = (),
        rigid: bool = False,
        max_parallelism: int | None = None,
        profiles: Mapping[str, ResourceProfile] | None = None,
        **widths: int,
    ) -> None:
        rng = random.Random(7)
        self.chance = Chance(IdSource(rng), rng)
        self.options = JobMasterOptions(
            restart_strategy=RestartStrategy(initial_backoff=Duration(0.1), jitter_factor=0.0),
            checkpoints=CheckpointOptions(interval=10.0),
            resource_wait_timeout=30,
            resource_stabilization_timeout=10,
            cooldown_after_rescaling=20,
            slot_idle_timeout=50,
            libraries=libraries,
            max_parallelism=max_parallelism,
            profiles=profiles or {},
        )
        self.rigid = rigid
        tasks = tuple(task(name, width, group or name) for name, width in widths.items())
        self.state: JobState = new_job(tasks, self.options)
        self.now = 0.0
        self.slots: dict[ResourceId, int] = {}
        self.feed(ev.Started(recovered=recovered, ran_with=dict.fromkeys(self.state.tasks, ran_with)))

    def feed(self, event: ev.Event) -> list[ev.Command]:
        self.state, commands = step(self.chance, self.state, event, self.now)
        check_invariants(self.state)
        return list(commands)

    def wait(self, seconds: float) -> list[ev.Command]:
        """Let time pass. Return the commands that are given meanwhile."""
        until, commands = self.now + seconds, []
        while (due := next_wakeup(self.state, self.now)) is not None and due <= until:
            self.now = due
            commands += self.feed(ev.Tick())
        self.now = until
        return commands + self.feed(ev.Tick())

    @property
    def needs(self) -> dict[str, SlotNeed]:
        return {need.group: need for need in self.state.pool.declaration()}

    def offer(
        self,
        resource: ResourceId,
        slots: int,
        allocation: str = "",
        libraries: tuple[Library, ...] = (),
        profile: ResourceProfile = NO_PROFILE,
    ) -> list[ev.Command]:
        """Offer slots for the only need, or for an allocation that nobody here has requested.

        `libraries`: what the session there holds. `profile`: what each slot has.
        """
        if not allocation:
            (need,) = self.needs.values()
            allocation = need.allocation_id
        first = self.slots.get(resource, 0)
        self.slots[resource] = first + slots
        offers = (SlotOffer(allocation_id=AllocationId(allocation), slots=tuple(range(first, first + slots))),)
        address = f"taskmanager/{resource}"
        return self.feed(ev.SlotsOffered(resource, address, offers, libraries=libraries, profile=profile))

    def attempt(self, name: str) -> AttemptId:
        attempt = self.state.executions[TaskId(name)].attempt_id
        assert attempt is not None
        return attempt

    def report(self, name: str, state: TaskState, error: ErrorInfo | None = None) -> list[ev.Command]:
        status = TaskStatus(attempt_id=self.attempt(name), task_id=TaskId(name), state=state, error=error)
        return self.feed(ev.TaskChanged(status))

    def deploy(self, checkpoint: int | None = None) -> list[ev.Deploy]:
        commands = self.feed(ev.RestorePointFound(self.state.round, checkpoint, {}))
        return [c for c in commands if isinstance(c, ev.Deploy)]

    def come_up(self) -> None:
        """Report RUNNING for everything that is deployed."""
        for execution in self.state.live:
            if execution.state is ExecutionState.DEPLOYING:
                self.report(execution.task_id, TaskState.RUNNING)
        assert self.state.status is JobStatus.RUNNING
        if self.rigid:
            assert isinstance(self.state.phase, Running)
            self.state = replace(self.state, phase=replace(self.state.phase, rigid=True))

    def widths(self) -> dict[str, int]:
        return {e.task_id: e.parallelism for e in self.state.executions.values()}


def of_kind(kind: type[ev.Command], commands: list[ev.Command]) -> list[ev.Command]:
    return [c for c in commands if isinstance(c, kind)]


def grown(job: WideJob) -> list[ev.Deploy]:
    """Complete the checkpoint for growth, and return what is deployed after it."""
    old = job.attempt("a")
    job.feed(ev.RescaleCheckpointDone(job.state.round))
    job.feed(ev.AttemptGone(old))
    return job.deploy(7)
