"""`/taskmanagers`: the registered TaskManagers, and who holds their slots."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from minflinkd.rest.backend import Backend, json_answer, resource_id
from minflinkd.rest.schemas import (
    AllocatedSlot,
    HardwareInfo,
    ResourceProfile,
    SessionInfo,
    SlotHolder,
    TaskManager,
    TaskManagerDetails,
    TaskManagers,
)
from minflinkd.rpc.messages import SessionPhase, TaskManagerInfo
from minflinkd.runtime.errors import NotFound
from minflinkd.runtime.ids import ResourceId


class TaskManagerRoutes:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/taskmanagers", self.list),
            web.get("/taskmanagers/{taskmanagerid}", self.details),
        ]

    async def list(self, _: web.Request) -> web.Response:
        known = await self._backend.task_managers.get()
        return json_answer(TaskManagers(taskmanagers=tuple(TaskManager(**_fields(info)) for info in known)))

    async def details(self, request: web.Request) -> web.Response:
        info = await find(self._backend, resource_id(request))
        slots = tuple(
            AllocatedSlot(job_id=slot.job_id, resource=ResourceProfile(cpu_cores=1.0))
            for slot in info.report.slots
            if slot.job_id is not None
        )
        return json_answer(TaskManagerDetails(**_fields(info), allocated_slots=slots))


async def find(backend: Backend, wanted: ResourceId) -> TaskManagerInfo:
    """Return a registered TaskManager. Raises NotFound, and what Backend raises."""
    for info in await backend.task_managers.get():
        if info.resource_id == wanted:
            return info
    raise NotFound(f"no TaskManager {wanted} is registered", hint="GET /taskmanagers lists them")


def _fields(info: TaskManagerInfo) -> dict[str, Any]:
    report = info.report
    free = sum(slot.allocation_id is None for slot in report.slots) if report.session is SessionPhase.READY else 0
    return {
        "id": info.resource_id,
        "path": info.address,
        "time_since_last_heartbeat": info.last_heartbeat_ms,
        "slots_number": len(report.slots),
        "free_slots": free,
        "total_resource": ResourceProfile(cpu_cores=float(len(report.slots))),
        "free_resource": ResourceProfile(cpu_cores=float(free)),
        "hardware": HardwareInfo(cpu_cores=info.hardware.cpu_cores, physical_memory=info.hardware.memory_bytes),
        "minflinkd": SessionInfo(
            session=report.session,
            session_generation=report.session_generation,
            session_slow=report.session_slow,
            session_error=report.session_error,
            pid=info.pid,
            instance_id=info.instance_id,
            registered=info.registered_ms,
            slots=tuple(
                SlotHolder(index=slot.index, job_id=slot.job_id, allocation_id=slot.allocation_id)
                for slot in report.slots
            ),
            start_phases=info.start_phases,
            metrics=report.metrics,
        ),
    }
