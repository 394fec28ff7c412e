"""One step of the scheduler, and the small operations that all of its parts use."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler.execution import Execution
from minflinkd.jobmaster.scheduler.phases import LEGAL, Phase, WaitingForSlots
from minflinkd.jobmaster.scheduler.rollout import Rollout
from minflinkd.jobmaster.scheduler.state import JobState
from minflinkd.jobmaster.scheduler.streak import Failure
from minflinkd.rpc.jobs import ExecutionState, FailureRecord
from minflinkd.runtime import machine
from minflinkd.runtime.ids import AttemptId, Chance, ResourceId, TaskId

KEPT_FAILURES = 32
KEPT_ROLLOUTS = 32


class Step(machine.Step[JobState, ev.Command]):
    def __init__(self, chance: Chance, state: JobState, now: float) -> None:
        super().__init__(state, now)
        self.chance = chance

    def enter(self, phase: Phase, **changes: Any) -> None:
        """Move to `phase`, or change the facts of the present one. Raises IllegalTransition."""
        before = self.state
        if type(phase) is not type(before.phase):
            machine.move(LEGAL, type(before.phase), type(phase), what="job")
        self.set(phase=phase, **changes)
        if (status := self.state.status) is not before.status:
            self.set(entered={**before.entered, status: self.now})

    def restart(self, phase: WaitingForSlots, *, cause: str, rescale: bool = False) -> None:
        """Begin to bring the job up again. With `rescale` it grows: no failure caused this."""
        self.enter(
            phase,
            restarts=self.state.restarts if rescale else self.state.restarts + 1,
            rollouts=self.rollouts_with(Rollout(self.now, cause=cause, rescale=rescale)),
        )

    def rollouts_with(self, rollout: Rollout) -> tuple[Rollout, ...]:
        """Return the rollouts that are kept, and this one."""
        rollouts = (*self.state.rollouts, rollout)
        return (*rollouts[:1], *rollouts[1:][-KEPT_ROLLOUTS:])

    def put(self, execution: Execution) -> None:
        self.state = self.state.with_execution(execution)

    def note(self, record: FailureRecord) -> None:
        """Show the failure to users."""
        self.set(failures=(*self.state.failures, Failure(self.now, record))[-KEPT_FAILURES:])

    def mark(self, name: str) -> None:
        """Note that a phase of bringing the job up has ended."""
        rollouts = self.state.rollouts
        if rollouts and (rollout := rollouts[-1].mark(name, self.now)) is not rollouts[-1]:
            self.set(rollouts=(*rollouts[:-1], rollout))

    def dismiss(self, attempt_id: AttemptId, resource_id: ResourceId, address: str) -> None:
        """Tell an attempt of an earlier JobMaster to end. Nothing is deployed before it has."""
        if attempt_id not in self.state.leaving:
            self.set(leaving={**self.state.leaving, attempt_id: resource_id})
            self.commands.append(ev.Cancel(attempt_id, address))

    def stop(self, tasks: Collection[TaskId]) -> None:
        """Tell these tasks to end. The others run on, without checkpoints. The caller enters the next phase."""
        cancels: list[ev.Command] = []
        for task_id in sorted(tasks):
            execution = self.state.executions[task_id]
            if execution.state is ExecutionState.CREATED:
                self.put(execution.to(ExecutionState.CANCELED, self.now))
            elif execution.on_task_manager and execution.state is not ExecutionState.CANCELING:
                self.put(execution.to(ExecutionState.CANCELING, self.now))
                if execution.attempt_id is not None:
                    cancels.append(ev.Cancel(execution.attempt_id, execution.address))
        survivors = frozenset(
            e.attempt_id
            for e in self.state.executions.values()
            if e.state is ExecutionState.RUNNING and e.attempt_id is not None
        )
        self.commands += [ev.StopCheckpoints(survivors), *cancels]
