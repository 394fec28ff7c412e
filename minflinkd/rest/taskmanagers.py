"""`/taskmanagers`: the registered TaskManagers, and who holds their slots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from aiohttp import web

from minflinkd.rest import route
from minflinkd.rest.backend import Backend, json_answer
from minflinkd.rest.declared import TASK_MANAGER_ID
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.jvm import flink_metrics
from minflinkd.rest.schemas import (
    AllocatedSlot,
    Drain,
    HardwareInfo,
    ResourceProfile,
    SessionInfo,
    SlotHolder,
    TaskManager,
    TaskManagerDetails,
    TaskManagers,
)
from minflinkd.rpc.jobs import JobOverview
from minflinkd.rpc.messages import DrainTaskManager, SessionPhase, TaskManagerInfo
from minflinkd.runtime.errors import MinflinkError, NotFound
from minflinkd.runtime.ids import AllocationId, ResourceId
from minflinkd.runtime.resource_profile import ResourceProfile as SlotProfile

Assigned = Mapping[AllocationId, int]  # number of tasks


class TaskManagerRoutes:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[route.Route]:
        return [
            route.get(
                "/taskmanagers",
                self.list,
                Role.VIEW,
                "The registered TaskManagers",
                {200: TaskManagers},
                more="Under `minflinkd` the `version` of each",
            ),
            route.get(
                "/taskmanagers/{taskmanagerid}",
                self.details,
                Role.VIEW,
                "A TaskManager, and who holds its slots",
                {200: TaskManagerDetails},
            ),
            route.post(
                "/taskmanagers/{taskmanagerid}/drain",
                self.drain,
                Role.ADMIN,
                "Move the TaskManager's jobs to others, and end it then",
                {202: Drain},
                more=(
                    "Not in Flink. The TaskManager gives out no more slots, its jobs move to others, and it ends. May "
                    "be repeated. To follow the progress, see `minflinkd.draining` and `minflinkd.held-by` (by job: "
                    "why it is still there; empty while it moves) of `GET /taskmanagers/:taskmanagerid`. A TaskManager "
                    "that has ended is not listed. Nor is one that has not yet registered with a new leader: then "
                    "`leader.epoch` of `GET /overview` has changed. See "
                    "[operations.md](operations.md#maintenance-of-a-host)"
                ),
            ),
            route.delete(
                "/taskmanagers/{taskmanagerid}/drain",
                self.undo_drain,
                Role.ADMIN,
                "Use the TaskManager as before",
                {200: Drain},
                more="Jobs that have left do not come back",
            ),
        ]

    async def list(self, _: web.Request) -> web.Response:
        return json_answer(task_managers_of(await self._backend.task_managers.get(), await self._assigned()))

    async def details(self, request: web.Request) -> web.Response:
        info = await find(self._backend, TASK_MANAGER_ID.of(request))
        assigned = await self._assigned()
        slots = tuple(
            AllocatedSlot(
                job_id=slot.job_id,
                resource=_profile(info.slot_profile),
                assigned_tasks=0 if slot.allocation_id is None else assigned.get(slot.allocation_id, 0),
            )
            for slot in info.report.slots
            if slot.job_id is not None
        )
        metrics = flink_metrics(info.report.metrics)
        return json_answer(TaskManagerDetails(**_fields(info, assigned), allocated_slots=slots, metrics=metrics))

    async def _assigned(self) -> Assigned:
        """Return how many tasks are on each allocation. Nothing while the Dispatcher, which knows it, is away."""
        try:
            jobs = await self._backend.jobs.get()
        except MinflinkError:
            return {}
        return assigned_tasks(jobs)

    async def drain(self, request: web.Request) -> web.Response:
        """Answer 202: the TaskManager gives out no more slots, its jobs move away, and then it ends (A15b)."""
        return await self._set_draining(TASK_MANAGER_ID.of(request), draining=True)

    async def undo_drain(self, request: web.Request) -> web.Response:
        """Answer 200: the TaskManager gives out slots again. Jobs that have left it do not come back."""
        return await self._set_draining(TASK_MANAGER_ID.of(request), draining=False)

    async def _set_draining(self, wanted: ResourceId, *, draining: bool) -> web.Response:
        await self._backend.resource_manager(DrainTaskManager(resource_id=wanted, undo=not draining))
        return json_answer(Drain(id=wanted, draining=draining), status=202 if draining else 200)


def task_managers_of(known: Iterable[TaskManagerInfo], assigned: Assigned) -> TaskManagers:
    return TaskManagers(taskmanagers=tuple(TaskManager(**_fields(info, assigned)) for info in known))


def assigned_tasks(jobs: Iterable[JobOverview]) -> Assigned:
    """Return how many tasks of these jobs are on each allocation."""
    return {allocation: count for job in jobs for allocation, count in job.assigned.items()}


async def find(backend: Backend, wanted: ResourceId) -> TaskManagerInfo:
    """Return a registered TaskManager. Raises NotFound, and what Backend raises."""
    for info in await backend.task_managers.get():
        if info.resource_id == wanted:
            return info
    raise NotFound(f"no TaskManager {wanted} is registered", hint="GET /taskmanagers lists them")


def _fields(info: TaskManagerInfo, assigned: Assigned) -> dict[str, Any]:
    report = info.report
    allocations = {slot.allocation_id for slot in report.slots if slot.allocation_id is not None}
    usable = report.session is SessionPhase.READY and not info.drained
    vacant = sum(slot.allocation_id is None for slot in report.slots)
    free = vacant if usable else 0
    if info.slot_profile:
        whole, rest = (_profile(info.slot_profile, number) for number in (len(report.slots), vacant))
    else:
        whole = ResourceProfile(cpu_cores=float(info.hardware.cpu_cores))
        rest = ResourceProfile() if allocations else whole
    return {
        "id": info.resource_id,
        "path": info.address,
        "time_since_last_heartbeat": info.last_heartbeat_ms,
        "slots_number": len(report.slots),
        "free_slots": free,
        "assigned_tasks": sum(assigned.get(allocation, 0) for allocation in allocations),
        "total_resource": whole,
        "free_resource": rest,
        "hardware": HardwareInfo(cpu_cores=info.hardware.cpu_cores, physical_memory=info.hardware.memory_bytes),
        "minflinkd": SessionInfo(
            session=report.session,
            session_generation=report.session_generation,
            session_slow=report.session_slow,
            session_error=report.session_error,
            pid=info.pid,
            version=info.build,
            instance_id=info.instance_id,
            registered=info.registered_ms,
            standalone=info.standalone,
            draining=info.drained,
            held_by={str(job): why for job, why in info.held_by.items()},
            slots=tuple(
                SlotHolder(index=slot.index, job_id=slot.job_id, allocation_id=slot.allocation_id)
                for slot in report.slots
            ),
            start_phases=info.start_phases,
            metrics=report.metrics,
            each_slot=info.slot_profile.amounts(),
        ),
    }


def _profile(profile: SlotProfile, number: int = 1) -> ResourceProfile:
    """Return what so many slots have, in Flink's terms, which have no word for disks. What is not known is -1."""
    if not profile:
        return ResourceProfile()
    together = profile * number
    return ResourceProfile(
        cpu_cores=round(together.cpu, 3),
        task_heap_memory=together.memory >> 20,
        task_off_heap_memory=together.off_heap >> 20,
        managed_memory=0,
        network_memory=0,
        extended_resources={name: round(amount, 3) for name, amount in together.extras},
    )
