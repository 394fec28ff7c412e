"""FindingRestorePoint and ComingUp: deploy the tasks once it is known what they start from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from minflinkd.jobgraph.model import Task
from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler import running, sizing
from minflinkd.jobmaster.scheduler.execution import Execution
from minflinkd.jobmaster.scheduler.phases import ComingUp, FindingRestorePoint, WaitingForSlots
from minflinkd.jobmaster.scheduler.placement import Share
from minflinkd.jobmaster.scheduler.state import JobState
from minflinkd.jobmaster.scheduler.step import Step
from minflinkd.rpc.jobs import ExecutionState
from minflinkd.rpc.messages import ExchangeSource
from minflinkd.rpc.snapshot import NO_ROWS


def deploy(this: Step, phase: FindingRestorePoint, found: ev.RestorePointFound) -> None:
    placement = sizing.plan(this.state)
    if not sizing.enough(this.state, placement, this.now):  # slots were lost meanwhile
        this.enter(WaitingForSlots(phase.lacking_since))
        return
    this.mark("restore_point")
    tasks = [this.state.tasks[task_id] for task_id in sorted(phase.tasks)]
    for task in tasks:
        this.put(_scheduled(this, task, placement[task.slot_sharing_group], found))
    this.commands += [_deployment(this.state, task, found) for task in tasks]
    rollouts = this.state.rollouts
    this.enter(
        ComingUp(),
        placement=placement,
        ran_with={group: share.parallelism for group, share in placement.items()},
        changed_at=this.now,
        rollouts=(*rollouts[:-1], replace(rollouts[-1], checkpoint_id=found.checkpoint_id, tasks=phase.tasks)),
    )
    this.mark("deployed")


def _scheduled(this: Step, task: Task, share: Share, found: ev.RestorePointFound) -> Execution:
    """Return the task's next attempt, on the slots of its group."""
    old, allocation = this.state.executions[task.id], share.allocations[0]
    parallelism = min(task.parallelism, share.parallelism)
    restored = found.tasks.get(task.id)
    recorded = restored.snapshot.partitions if restored is not None and not restored.offsets else 0
    attempt = replace(
        old if old.state is ExecutionState.CREATED else old.next_attempt(),
        parallelism=parallelism,
        partitions=sizing.partitions_of(parallelism, task.parallelism, this.state.options.max_parallelism, recorded),
        attempt_id=this.chance.ids.attempt(),
        allocation_id=allocation,
        resource_id=share.resource_id,
        address=this.state.pool.held[allocation].address,
        base=found.rows.get(task.id, NO_ROWS),
    )
    return attempt.to(ExecutionState.SCHEDULED, this.now).to(ExecutionState.DEPLOYING, this.now)


def _deployment(state: JobState, task: Task, found: ev.RestorePointFound) -> ev.Deploy:
    execution = state.executions[task.id]
    assert execution.attempt_id is not None
    assert execution.allocation_id is not None
    return ev.Deploy(
        task_id=task.id,
        parallelism=execution.parallelism,
        partitions=execution.partitions,
        attempt_id=execution.attempt_id,
        number=execution.number,
        allocation_id=execution.allocation_id,
        address=execution.address,
        restore=found.tasks.get(task.id),
        inputs=tuple(_inputs(state, task)),
        oldest=found.oldest,
    )


def _inputs(state: JobState, task: Task) -> Iterator[ExchangeSource]:
    """Yield where the task reads its inputs. The tasks upstream are deployed by the same step, or run on."""
    owner = {vertex.id: other.id for other in state.tasks.values() for vertex in other.vertices}
    for edge in task.inputs:
        upstream = state.executions[owner[edge.id]]
        assert upstream.attempt_id is not None
        assert upstream.allocation_id is not None
        assert upstream.resource_id is not None
        yield ExchangeSource(
            vertex_id=edge.id,
            attempt_id=upstream.attempt_id,
            resource_id=upstream.resource_id,
            data_url=state.pool.held[upstream.allocation_id].data_url,
        )


def advance(this: Step) -> None:
    if this.state.all_run:
        running.begin(this)
