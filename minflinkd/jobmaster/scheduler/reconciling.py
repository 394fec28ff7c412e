"""Reconciling: a JobMaster looks for the tasks that run on from before it, and adopts those that it may (A14a).

Example: the daemon was killed and is back. Its TaskManagers have gone on processing, and offer the new JobMaster their
slots with the tasks on them. A task is adopted if it can be trusted: it is of the stored version, it reads from tasks
that are adopted, and a restart would begin from a checkpoint that it took part in or began from itself. Other attempts
lag behind their own successors: those have published what these would publish again. If one of its readers is not
adopted, it must also have kept what that reader will read again (R16).

What is not adopted is told to end, and restarts from the checkpoint. That counts as a restart of the job, also if the
TaskManagers were lost together with the daemon and no task is found. It does not count after an orderly stop: then the
tasks were meant to end.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from msgspec.structs import replace as copy

from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler import running
from minflinkd.jobmaster.scheduler.execution import Execution
from minflinkd.jobmaster.scheduler.phases import FoundTask, Predecessors, Reconciling, WaitingForSlots
from minflinkd.jobmaster.scheduler.placement import Placement, Share, of_running
from minflinkd.jobmaster.scheduler.state import JobState
from minflinkd.jobmaster.scheduler.step import Step
from minflinkd.rpc.messages import OfferedTask, TaskState, TaskStatus
from minflinkd.runtime.ids import AttemptId, ResourceId, TaskId

_RUNS = frozenset({TaskState.RUNNING, TaskState.INPUT_ENDED})
_OVER = frozenset({TaskState.CANCELED, TaskState.FAILED})


def begin(this: Step, predecessors: Predecessors) -> None:
    this.enter(Reconciling(this.now + this.state.options.heartbeat_timeout, predecessors))


def offered(this: Step, phase: Reconciling, event: ev.SlotsOffered) -> None:
    """Note the tasks of an offer. Of two attempts of a task, the later one counts: see `_deployed`."""
    found = dict(phase.found)
    for task in event.tasks:
        task_id = task.status.task_id
        one, other = FoundTask(task, event.resource_id, event.address), found.get(task_id)
        if other is not None and _has_ended(other, task.status.attempt_id):
            continue
        if other is not None and other.task.status.attempt_id != task.status.attempt_id:
            earlier, one = sorted((one, other), key=_deployed)
            _dismiss(this, earlier)
        if task_id in this.state.tasks and one.task.status.attempt_id not in this.state.leaving:
            found[task_id] = one
        else:
            _dismiss(this, one)
    this.enter(replace(phase, found=found))


def slots_used(state: JobState, tasks: Collection[OfferedTask]) -> int:
    """Return how many slots these tasks use together, as far as the version wants so many."""
    used: dict[str, int] = {}
    for task in tasks:
        if (task_id := task.status.task_id) in state.tasks:
            group = state.group_of(task_id)
            used[group] = max(used.get(group, 0), min(task.parallelism, state.pool.groups[group].desired))
    return sum(used.values())


def _deployed(found: FoundTask) -> tuple[object, ...]:
    """Return a key that sorts attempts of a task by their deployment. Each JobMaster numbers attempts from 0."""
    task = found.task
    return task.deployed_by, task.attempt_number, task.status.attempt_id


def _has_ended(known: FoundTask, attempt_id: AttemptId) -> bool:
    """Whether this attempt is known to have ended. Older news of it may come late, and must not hide that."""
    status = known.task.status
    return status.attempt_id == attempt_id and status.state in _OVER


def dismiss_strangers(this: Step, event: ev.SlotsOffered) -> None:
    """Tell tasks to end that this JobMaster did not deploy: it is too late to adopt them."""
    for task in event.tasks:
        if this.state.by_attempt(task.status.attempt_id) is None:
            _dismiss(this, FoundTask(task, event.resource_id, event.address))


def changed(this: Step, phase: Reconciling, status: TaskStatus) -> None:
    """Note what a task that was found has become."""
    known = phase.found.get(status.task_id)
    if known is None or _has_ended(known, status.attempt_id):
        return
    if known.task.status.attempt_id == status.attempt_id:
        task = copy(known.task, status=status)
        this.enter(replace(phase, found={**phase.found, status.task_id: replace(known, task=task)}))


def task_manager_gone(this: Step, resource_id: ResourceId) -> None:
    """Nothing of earlier JobMasters runs there any more."""
    this.set(leaving={attempt: at for attempt, at in this.state.leaving.items() if at != resource_id})
    if isinstance(phase := this.state.phase, Reconciling):
        found = {task_id: f for task_id, f in phase.found.items() if f.resource_id != resource_id}
        this.enter(replace(phase, found=found))


def give_up(this: Step) -> None:
    """Tell all tasks to end that were found. Called before the job leaves the phase for its end, or stands down."""
    if isinstance(phase := this.state.phase, Reconciling):
        for found in phase.found.values():
            _dismiss(this, found)


def advance(this: Step, phase: Reconciling) -> tuple[FoundTask, ...]:
    """Adopt the tasks that may be adopted, when all tasks were found or the time for this is over.

    Return the tasks that failed while there was no JobMaster. The caller handles these failures.
    """
    if phase.found.keys() < this.state.tasks.keys() and this.now < phase.until:
        return ()
    tasks, placement = _adoptable(this.state, phase)
    failed = tuple(f for _, f in sorted(phase.found.items()) if _has_failed(phase.predecessors, f))
    for task_id, found in sorted(phase.found.items()):
        if task_id not in tasks:
            _dismiss(this, found)
    if not tasks:
        if failed or not phase.predecessors.ran:
            this.enter(WaitingForSlots())
        else:
            this.restart(WaitingForSlots(), cause=_not_adopted(this.state, tasks))
        return failed
    adopted = [phase.found[task_id] for task_id in sorted(tasks)]
    for found in adopted:
        this.put(Execution.adopted(found.task, found.resource_id, found.address, this.now))
    attempts = frozenset(found.task.status.attempt_id for found in adopted)
    unsettled = {number for found in adopted for number in found.task.pending} - phase.predecessors.completed
    this.commands.append(ev.AdoptTasks(attempts, frozenset(unsettled)))
    this.set(
        placement=placement,
        ran_with={**this.state.ran_with, **{group: share.parallelism for group, share in placement.items()}},
        changed_at=0.0 if this.state.on_trial else this.now,  # a version that follows another may grow at once
    )
    if tasks == this.state.tasks.keys():
        running.begin(this)
    elif failed:
        this.enter(WaitingForSlots())
    else:
        this.restart(WaitingForSlots(), cause=_not_adopted(this.state, tasks))
    return failed


def _not_adopted(state: JobState, adopted: Collection[TaskId]) -> str:
    missing = ", ".join(sorted(task.name for task_id, task in state.tasks.items() if task_id not in adopted))
    return f"not adopted from the JobMaster before: {missing}"[:300]


def _dismiss(this: Step, found: FoundTask) -> None:
    this.dismiss(found.task.status.attempt_id, found.resource_id, found.address)


def _adoptable(state: JobState, phase: Reconciling) -> tuple[frozenset[TaskId], Placement]:
    """Return the tasks that may be adopted, and where their slot sharing groups run."""
    found = phase.found
    draining = any(f.task.draining for f in found.values())  # the others would miss what comes after (failover)
    able = frozenset(t for t, f in found.items() if not draining and _is_current(state, phase.predecessors, f))
    while True:
        whole = {t for t in able if _fits(state, found[t], able) and _reads(found[t], able, found)}
        placement = of_running(_shares(state, whole, found), state.pool.holdings)
        kept = frozenset(t for t in whole if state.group_of(t) in placement)
        if kept == able:
            return able, placement
        able = kept


def _fits(state: JobState, found: FoundTask, able: frozenset[TaskId]) -> bool:
    """Whether the task can run on if only those in `able` do."""
    status, exchanges = found.task.status, state.exchanges
    if not exchanges.sources[status.task_id] <= able:
        return False
    return status.metrics.replayable or exchanges.downstream[status.task_id] <= able


def _is_current(state: JobState, before: Predecessors, found: FoundTask) -> bool:
    held = state.pool.held.get(found.task.allocation_id)
    return (
        found.task.status.state in _RUNS
        and _is_trusted(before, found)
        and held is not None
        and held.resource_id == found.resource_id
    )


def _has_failed(before: Predecessors, found: FoundTask) -> bool:
    """Whether the job would run this attempt if it had not failed. The failure of a replaced attempt is irrelevant."""
    return found.task.status.state is TaskState.FAILED and _is_trusted(before, found)


def _is_trusted(before: Predecessors, found: FoundTask) -> bool:
    task = found.task
    return (
        task.version == before.version
        and (task.restored == before.latest or task.status.attempt_id in before.attempts)
        and task.stops_at not in before.completed  # otherwise it processes nothing any more
    )


def _reads(reader: FoundTask, able: Collection[TaskId], found: Mapping[TaskId, FoundTask]) -> bool:
    """Whether the task reads from attempts that are there."""
    there: set[tuple[AttemptId, ResourceId]] = {(found[t].task.status.attempt_id, found[t].resource_id) for t in able}
    return all((source.attempt_id, source.resource_id) in there for source in reader.task.inputs)


def _shares(state: JobState, tasks: Collection[TaskId], found: Mapping[TaskId, FoundTask]) -> Placement:
    """Return what the groups of these tasks will run on. A group with tasks on two TaskManagers is left out (J6).

    A version may want fewer slots than its tasks have had. It holds no more, and the tasks are told (`resizing`).
    """
    shares: dict[str, Share] = {}
    divided: set[str] = set()
    for task_id in sorted(tasks):
        group, one = state.group_of(task_id), found[task_id]
        share = shares.get(group, Share(one.resource_id, 0, ()))
        if share.resource_id != one.resource_id:
            divided.add(group)
        allocations = dict.fromkeys((*share.allocations, one.task.allocation_id))
        wanted = min(one.task.parallelism, state.pool.groups[group].desired)
        shares[group] = Share(share.resource_id, max(share.parallelism, wanted), tuple(allocations))
    return {group: share for group, share in shares.items() if group not in divided}
