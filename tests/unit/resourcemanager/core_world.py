"""A core of the ResourceManager that tests send messages to, and reports of TaskManagers with two slots."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from minflinkd.resourcemanager.core import ResourceManagerCore
from minflinkd.resourcemanager.options import ResourceManagerOptions
from minflinkd.rpc import messages as m
from minflinkd.rpc.network import job_master, task_manager
from minflinkd.rpc.party import Ask
from minflinkd.runtime.ids import AllocationId, IdSource, JobId, LeaderId, ResourceId

JOB, OTHER = JobId("1" * 32), JobId("2" * 32)
FIRST, SECOND = LeaderId("leader 1"), LeaderId("leader 2")
A, B = AllocationId("a"), AllocationId("b")
TM1, TM2 = ResourceId("tm-1"), ResourceId("tm-2")


@dataclass
class Manager:
    """A core whose invariants are checked after every step, and reports of TaskManagers with two slots."""

    core: ResourceManagerCore
    now: float = 0.0
    versions: dict[ResourceId, int] = field(default_factory=dict)

    def receive(self, message: m.Message, *, fence: LeaderId | None = None) -> Any:
        return self.core.receive(message, fence, self.now)

    def commands(self) -> list[object]:
        return list(self.core.take_commands())

    def report(self, tm: ResourceId, *held: tuple[JobId, AllocationId]) -> m.TaskManagerReport:
        self.versions[tm] = self.versions.get(tm, 0) + 1
        slots = [
            m.SlotStatus(index=i, job_id=job, allocation_id=allocation) for i, (job, allocation) in enumerate(held)
        ]
        slots += [m.SlotStatus(index=i) for i in range(len(held), 2)]
        return m.TaskManagerReport(
            resource_id=tm, slots=tuple(slots), session=m.SessionPhase.READY, version=self.versions[tm]
        )

    def register(
        self, tm: ResourceId, *held: tuple[JobId, AllocationId], standalone: bool = False, nonce: str = ""
    ) -> m.Registered:
        hello = m.RegisterTaskManager(
            address=task_manager(tm),
            pid=1,
            hardware=m.Hardware(cpu_cores=2, memory_bytes=1),
            log_directory="",
            report=self.report(tm, *held),
            standalone=standalone,
            nonce=nonce,
            build="0.0.9",
        )
        registered = self.receive(hello)
        assert isinstance(registered, m.Registered)
        return registered

    def beat(self, registered: m.Registered, report: m.TaskManagerReport, *, fence: LeaderId | None = None) -> Any:
        beat = m.HeartbeatFromTaskManager(instance_id=registered.instance_id, report=report)
        return self.receive(beat, fence=fence or registered.leader_id)

    def declare(
        self, *needs: m.SlotNeed, by: LeaderId = FIRST, version: int = 1, held: tuple[AllocationId, ...] = ()
    ) -> Any:
        return self.receive(
            m.DeclareNeeds(job_id=JOB, leader_id=by, address=job_master(JOB), version=version, needs=needs, held=held)
        )

    def passes(self, seconds: float, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Let time pass and call `meanwhile` every second."""
        for _ in range(round(seconds)):
            self.now += 1.0
            meanwhile()
            self.core.tick(self.now)


def manager_with(**options: Any) -> Manager:
    settings = ResourceManagerOptions(**{"slots_per_tm": 2, "standby": 0, "taskmanager_timeout": 1e6} | options)
    return Manager(ResourceManagerCore(ids=IdSource(random.Random(1)), options=settings, check=True))


def need(allocation: AllocationId, slots: int = 1) -> m.SlotNeed:
    return m.SlotNeed(allocation_id=allocation, slots=slots)


def asked_for(commands: list[object]) -> Ask:
    (ask,) = commands
    assert isinstance(ask, Ask)
    return ask
