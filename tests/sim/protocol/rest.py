"""What must hold after the faults, when everything has settled. Each check returns what is wrong, or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minflinkd.resourcemanager.state import SlotState as View
from minflinkd.rpc.jobs import ExecutionState, JobStatus
from minflinkd.runtime.ids import AttemptId
from tests.sim.protocol.job_master import JobMasterParty
from tests.sim.protocol.task_manager import LIVE

if TYPE_CHECKING:
    from tests.sim.protocol.world import Job, World


def not_ended(job: Job) -> str:
    return "" if job.ended is not None else f"{job.job_id} does not end"


def unserved(world: World) -> str:
    """Return what is not well yet without faults. Empty if every job runs and all parties agree."""
    for job in world.jobs.values():
        if job.ended is not None:
            continue
        if job.job_id in world.input_ended or job.cancelled:
            return not_ended(job)
        if job.master is None:
            return f"{job.job_id} has no JobMaster"
        if wrong := _not_running(world, job.master):
            return wrong
    return _disagreement(world)


def _not_running(world: World, master: JobMasterParty) -> str:
    state = master.core.state
    if state.status is not JobStatus.RUNNING:
        return f"{master.address} is {state.status}: {dict(state.waiting)}"
    for execution in state.executions.values():
        held = state.pool.held.get(execution.allocation_id) if execution.allocation_id else None
        tm = world.task_manager(held.resource_id) if held is not None else None
        attempt = tm.attempts.get(execution.attempt_id) if tm is not None and execution.attempt_id else None
        if execution.state is not ExecutionState.RUNNING or attempt is None or attempt.state not in LIVE:
            return f"{execution.task_id} of {master.address} is {execution.state}, at its TaskManager {attempt}"
        task = state.tasks[execution.task_id]
        wanted = min(task.parallelism, state.placement[task.slot_sharing_group].parallelism)
        if not execution.parallelism == attempt.parallelism == wanted:
            return f"{execution.task_id} has {attempt.parallelism} slots, its JobMaster thinks {execution}"
    return ""


def _disagreement(world: World) -> str:
    """Compare the ResourceManager's view with the TaskManagers' slot tables, and find slots that no job has (R12)."""
    rm = world.resource_manager
    if rm is None:
        return "there is no ResourceManager"
    task_managers = {tm.resource_id: tm for tm in world.task_managers()}
    shown = {r: tm for r, tm in rm.core.state.task_managers.items() if tm.registered}
    if unknown := sorted(task_managers.keys() ^ shown.keys()):
        return f"who is registered and who lives differ: {unknown}"
    pools = {a: h for master in world.job_masters() for a, h in master.core.state.pool.held.items()}
    for resource_id, tm in task_managers.items():
        truth = {slot.index: slot.allocation_id for slot in tm.core.slots.table.report()}
        view = {i: slot.allocation_id for i, slot in enumerate(shown[resource_id].slots)}
        if truth != view or any(slot.state is View.RESERVED for slot in shown[resource_id].slots):
            return f"{resource_id} has {truth}, the ResourceManager thinks {view}"
        for allocation, binding in tm.core.slots.table.bindings.items():
            held = pools.get(allocation)
            if held is None or held.resource_id != resource_id:
                return f"{resource_id} holds {allocation} for nobody"
            if held.slots != binding.slots:
                return f"{resource_id} holds {binding.slots} for {allocation}, its job thinks {held.slots}"
        for attempt_id, attempt in tm.attempts.items():
            if attempt.state in LIVE and not is_wanted(world, attempt_id):
                return f"{attempt_id} runs on {resource_id} for nobody"
    if stray := [a for a, held in pools.items() if held.resource_id not in task_managers]:
        return f"{stray} are thought to be held on TaskManagers that are gone"
    return ""


def is_wanted(world: World, attempt_id: AttemptId) -> bool:
    """Whether a JobMaster counts on the attempt, or waits for its end."""
    return any(attempt_id in master.core.state.known_attempts for master in world.job_masters())


def leaks(world: World) -> str:
    """Return what is left of the jobs, or of TaskManagers that nobody needs."""
    for job in world.jobs.values():
        if job.ended is None:
            status = job.master.core.state.status if job.master is not None else "without JobMaster"
            return f"{job.job_id} does not end: {status}"
    if wrong := _disagreement(world):
        return wrong
    assert world.resource_manager is not None
    state = world.resource_manager.core.state
    if state.jobs:
        return f"the ResourceManager still knows {sorted(state.jobs)}"
    started = [tm for tm in world.task_managers() if not tm.standalone]
    kept = max(world.plan.min, world.plan.standby)
    if len(started) > kept:
        return f"{len(started)} TaskManagers are there, {kept} are to be kept"
    if world.plan.can_start and state.count() < min(world.plan.standby, world.plan.max):
        return f"{state.count()} TaskManagers are there, {world.plan.standby} are to be kept ready"
    if dedicated := [tm.resource_id for tm in world.task_managers() if tm.core.slots.table.dedicated_to]:
        return f"{dedicated} are still dedicated"
    if foul := [tm.resource_id for tm in world.task_managers() if tm.core.slots.table.loaded]:
        return f"the sessions of {foul} still hold what jobs brought that are gone"
    return ""


def standing(world: World) -> list[str]:
    """Describe the state of all parties, for the story."""
    lines = []
    if world.resource_manager is not None:
        for resource_id, seen in world.resource_manager.core.state.task_managers.items():
            slots = [(slot.state.name, slot.allocation_id) for slot in seen.slots]
            lines.append(f"seen: {resource_id} {seen.state.name} {slots}")
    for tm in world.task_managers():
        bindings = {a: (b.state.name, b.slots, b.job_id) for a, b in tm.core.slots.table.bindings.items()}
        lines.append(f"{tm.address} {tm.core.session.phase} {tm.core.registration.phase.name}: {bindings}")
        lines += [f"  {a}: {x.state} of {x.deployment.task.id}" for a, x in tm.attempts.items()]
    for master in world.job_masters():
        pool = master.core.state.pool
        lines.append(f"{master.address} {master.core.state.status}: needs {dict(pool.needs)}, holds {dict(pool.held)}")
    return lines
