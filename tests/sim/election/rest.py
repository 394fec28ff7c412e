"""What must hold after the faults. Each check returns what is wrong, or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minflinkd.runtime.ids import JobId, TaskId
from tests.sim.election.plan import ElectionPlan
from tests.sim.protocol import rest

if TYPE_CHECKING:
    from tests.sim.election.leaders import LedJobMaster
    from tests.sim.election.world import ElectionWorld

PUBLISHED_WITHIN = 25.0  # seconds
Complete = dict[tuple[JobId, TaskId], int]


def led_within(plan: ElectionPlan) -> float:
    """Return in how many seconds a daemon leads: claims of the dead expire, and requests without answers are late."""
    return 3 * plan.session_timeout + 4 * plan.renewal + 5.0


def leaderless(world: ElectionWorld) -> str:
    acting = [daemon.name for daemon in world.daemons if daemon.acts and daemon.serves]
    if len(acting) == 1:
        return ""
    phases = {daemon.name: daemon.elector.state.phase.name for daemon in world.daemons}
    return f"not exactly one daemon leads, but {acting}: {phases}"


def unserved(world: ElectionWorld) -> str:
    if waiting := [job_id for job_id in world.jobs if job_id not in world.accepted and not world.jobs[job_id].ended]:
        return f"{waiting} are not accepted"
    return leaderless(world) or rest.unserved(world)


def complete(world: ElectionWorld) -> Complete:
    """Return how many rows of each task the latest complete checkpoints hold."""
    rows: Complete = {}
    for master in world.led_masters():
        if (point := master.coordinator.latest()) is not None:
            rows |= {(master.job.job_id, task.task_id): task.batch_id for task in point.tasks}
    return rows


def unpublished(world: ElectionWorld, complete: Complete) -> str:
    """Return what is complete and does not appear."""
    for (job_id, task_id), rows in complete.items():
        if world.jobs[job_id].ended is None and (there := world.published.rows(job_id, task_id)) < rows:
            return f"{rows} rows of {task_id} are in a complete checkpoint, and {there} are PUBLISHED"
    for master in world.led_masters():
        if not _goes_on(world, master, complete):
            return f"{master.address} takes no checkpoint"
    return ""


def _goes_on(world: ElectionWorld, master: LedJobMaster, before: Complete) -> bool:
    job = master.job
    if job.ended is not None or job.cancelled or job.job_id in world.input_ended:
        return True
    if world.plan.checkpoint_interval > PUBLISHED_WITHIN:
        return True
    point = master.coordinator.latest()
    return point is not None and any(t.batch_id > before.get((job.job_id, t.task_id), 0) for t in point.tasks)


def leaks(world: ElectionWorld) -> str:
    return rest.leaks(world)
