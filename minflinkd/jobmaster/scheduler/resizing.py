"""Running: give the tasks of a job more or fewer slots while they run (R20).

Example: a job has state in 8 partitions, and 2 slots. Two more slots become free on its TaskManager. From the next
micro-batch on, its tasks compute 4 partitions at a time instead of 2. Nothing stops, and no state moves.

`JobState.placement` changes first. Then every task that has another parallelism than its share says is told so, until
it answers. A task that refuses has a plan that was made for its slots: the job then restarts from a checkpoint, as it
does if it can only grow elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from msgspec.structs import replace as copy

from minflinkd.jobgraph.model import Task
from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler import placement as pl
from minflinkd.jobmaster.scheduler.execution import Execution
from minflinkd.jobmaster.scheduler.phases import Running
from minflinkd.jobmaster.scheduler.placement import Placement
from minflinkd.jobmaster.scheduler.rollout import Rollout
from minflinkd.jobmaster.scheduler.sizing import partitions_of
from minflinkd.jobmaster.scheduler.state import JobState, widths
from minflinkd.jobmaster.scheduler.step import Step


def in_place(state: JobState, better: Placement) -> Placement | None:
    """Return the present placement with the widths of `better`. None if that takes a restart.

    It does if a group would run elsewhere, or if a task would need more partitions than its state has.
    """
    present = state.placement
    if any(group not in better or better[group].resource_id != share.resource_id for group, share in present.items()):
        return None
    wanted = {group: better[group].parallelism for group in present}
    if not all(_has_partitions(state, execution, wanted) for execution in state.executions.values()):
        return None
    return pl.resized(present, wanted, state.pool.holdings)


def can_become(state: JobState, tasks: tuple[Task, ...]) -> bool:
    """Whether a running job can be given what these tasks want, which are its own with other parallelisms, in place.

    A job that lacks slots anyway goes on with those that it has, and asks for the rest.
    """
    phase, pool = state.phase, state.pool
    same = {task.id: _but_for_its_parallelism(task) for task in tasks} == {
        task.id: _but_for_its_parallelism(task) for task in state.tasks.values()
    }
    if not isinstance(phase, Running) or phase.rigid or phase.draining or not same:
        return False
    if is_ending(state, phase) or any(execution.asked for execution in state.executions.values()):
        return False
    after = replace(state, tasks={task.id: task for task in tasks})
    wanted = {group: replace(state.placement[group], parallelism=n) for group, n in widths(tasks).items()}
    if state.reserving is None:
        present = state.placement
        wanted = {g: replace(s, parallelism=min(s.parallelism, present[g].parallelism)) for g, s in wanted.items()}
    leaves = any(share.resource_id in pool.closed_to(pool.libraries) for share in wanted.values())
    return not leaves and in_place(after, wanted) is not None


def is_ending(state: JobState, running: Running) -> bool:
    """Whether an input has ended: only the final checkpoint follows, sooner or later."""
    return running.final_checkpoint_asked or any(e.input_ended for e in state.executions.values())


def unsettled(state: JobState) -> str:
    """Return why nobody but a user should give the job other slots now; "" if somebody may (R62)."""
    phase = state.phase
    if not isinstance(phase, Running):
        return "its tasks do not all run"
    if phase.draining or is_ending(state, phase):
        return "its input ends, or it is being drained"
    if phase.resized_from is not None or misfits(state):
        return "its tasks are getting other slots"
    if lacks_slots(state):
        return "it runs with fewer slots than it asks for"
    return "" if phase.checkpointed else "it has completed no checkpoint since its tasks have begun"


def actual_widths(state: JobState) -> dict[str, int]:
    """Return how wide the groups are. Of one with a task that does not have its slots yet, what that task has."""
    found = _widths(state.placement)
    for execution in state.executions.values():
        if execution.parallelism != _wanted(state, execution):
            found[state.group_of(execution.task_id)] = execution.parallelism
    return found


def _but_for_its_parallelism(task: Task) -> Task:
    return copy(task, parallelism=1, vertices=tuple(copy(vertex, parallelism=None) for vertex in task.vertices))


def lacks_slots(state: JobState) -> bool:
    """Whether a group is narrower than it wants to be."""
    groups = state.pool.groups
    return any(share.parallelism < groups[group].desired for group, share in state.placement.items())


def narrower(state: JobState) -> Placement | None:
    """Return the placement with no group wider than it wants to be. None if that is the present one."""
    desired = {group: bounds.desired for group, bounds in state.pool.groups.items()}
    present = state.placement
    if all(share.parallelism <= desired[group] for group, share in present.items()):
        return None
    wanted = {group: min(share.parallelism, desired[group]) for group, share in present.items()}
    return pl.resized(present, wanted, state.pool.holdings)


def resize(this: Step, running: Running, placement: Placement) -> Running:
    """Let the groups have these shares from now on. Return what the phase has become."""
    running = replace(running, resized_from=running.resized_from or _widths(this.state.placement))
    this.enter(running, placement=placement, ran_with=_widths(placement))
    return running


def confirmed(this: Step, running: Running, before: Mapping[str, int]) -> Running:
    """Show users that the job has other slots. All its tasks have confirmed it."""
    running, placement = replace(running, resized_from=None), this.state.placement
    after = _widths(placement)
    this.enter(running, proven=after, proven_on=placement)
    if before != after:
        cause = f"{text(before, after)}, without a stop"
        this.set(rollouts=this.rollouts_with(Rollout(this.now, cause=cause, rescale=True)))
    return running


def _widths(placement: Placement) -> dict[str, int]:
    return {group: share.parallelism for group, share in placement.items()}


def tell_tasks(this: Step) -> None:
    """Tell each task that has another parallelism than it should have, unless it was told and has not answered yet."""
    for task_id, execution in sorted(this.state.executions.items()):
        wanted = _wanted(this.state, execution)
        if execution.parallelism != wanted and not execution.asked and execution.attempt_id is not None:
            this.put(replace(this.state.executions[task_id], asked=wanted))
            this.commands.append(ev.Resize(execution.attempt_id, wanted, execution.address))


def misfits(state: JobState) -> bool:
    """Whether a task has another parallelism than it should have."""
    return any(execution.parallelism != _wanted(state, execution) for execution in state.executions.values())


def text(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """Return what people read about a change of these widths."""
    changes = (f"{g} {before[g]} -> {n}" for g, n in sorted(after.items()) if before[g] != n)
    return f"rescale: {', '.join(changes)}"


def _wanted(state: JobState, execution: Execution) -> int:
    task = state.tasks[execution.task_id]
    return min(task.parallelism, state.placement[task.slot_sharing_group].parallelism)


def _has_partitions(state: JobState, execution: Execution, wanted: Mapping[str, int]) -> bool:
    """Whether an attempt that starts with these widths would keep the partitions that this one has."""
    if not execution.partitions:
        return True
    task = state.tasks[execution.task_id]
    parallelism = min(task.parallelism, wanted[task.slot_sharing_group])
    highest = state.options.max_parallelism
    return partitions_of(parallelism, task.parallelism, highest, execution.partitions) == execution.partitions
