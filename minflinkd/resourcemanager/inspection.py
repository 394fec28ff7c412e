"""What people are shown about TaskManagers and slots. No decision depends on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from minflinkd.resourcemanager.state import Resources
from minflinkd.resourcemanager.task_managers import TaskManagerState
from minflinkd.rpc import messages as m
from minflinkd.runtime.ids import JobId, ResourceId


@dataclass
class Seen:
    """What is only shown about a TaskManager. Times are in seconds of the injected clock."""

    registered: float
    heard: float
    report: m.TaskManagerReport
    start_phases: dict[str, float] = field(default_factory=dict)


def task_managers(
    state: Resources, seen: Mapping[ResourceId, Seen], held: Mapping[JobId, str], wall_ms: Callable[[float], int]
) -> tuple[m.TaskManagerInfo, ...]:
    """Return the registered TaskManagers. `held`: why jobs are still on draining TaskManagers."""
    return tuple(
        m.TaskManagerInfo(
            resource_id=resource_id,
            instance_id=tm.instance_id,
            address=tm.hello.address,
            pid=tm.hello.pid,
            hardware=tm.hello.hardware,
            registered_ms=wall_ms(shown.registered),
            last_heartbeat_ms=wall_ms(shown.heard),
            log_directory=tm.hello.log_directory,
            report=shown.report,
            start_phases=shown.start_phases,
            build=tm.hello.build,
            slot_profile=tm.hello.slot_profile,
            standalone=tm.standalone,
            drained=tm.draining,
            held_by={job_id: held.get(job_id, "") for job_id in tm.jobs} if tm.draining else {},
        )
        for resource_id, tm in state.task_managers.items()
        if tm.registered and tm.hello is not None and tm.instance_id is not None
        if (shown := seen.get(resource_id)) is not None
    )


def overview(state: Resources, wall_ms: Callable[[float], int]) -> m.ResourceOverview:
    registered = [tm for tm in state.living() if tm.registered]
    starting = [tm for tm in state.living() if tm.state is TaskManagerState.STARTING]
    return m.ResourceOverview(
        task_managers=len(registered),
        slots_total=sum(len(tm.slots) for tm in registered),
        slots_free=sum(len(tm.free) for tm in registered if not tm.draining),
        starting=tuple(
            m.StartingTaskManager(resource_id=tm.resource_id, since_ms=wall_ms(tm.since), waiting=tm.waits)
            for tm in starting
        ),
        lost=state.lost,
        pending_needs=len(state.unserved()),
        losses=tuple(
            m.TaskManagerLoss(resource_id=loss.resource_id, at_ms=wall_ms(loss.at), reason=loss.reason)
            for loss in state.losses
        ),
    )
