"""Jobs of several groups get and lose slots in a drawn order, while tasks confirm, refuse, fail and restart (R20)."""

from __future__ import annotations

import random

import pytest

from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler import resizing
from minflinkd.jobmaster.scheduler.phases import Running
from minflinkd.rpc.jobs import ExecutionState
from minflinkd.rpc.messages import TaskState
from minflinkd.runtime.ids import AttemptId
from tests.unit.jobmaster.wide_job import BOOM, TM1, TM2, WideJob

SEEDS, STEPS = 150, 60


class Story:
    """Does one thing after the other to a job, and carries out what it commands, some of it late."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"slots {seed}")
        widths = {name: self.rng.randint(1, 4) for name in "abc"[: self.rng.randint(1, 3)]}
        shared = "g" if self.rng.random() < 0.3 else ""
        self.job = WideJob(group=shared, max_parallelism=self.rng.choice((None, 8)), **widths)
        self.told: dict[AttemptId, int] = {}  # and has not answered
        self.answered = 0
        self.failing = False  # something has happened that may stop tasks

    def do(self, commands: list[ev.Command]) -> None:
        job = self.job
        for command in commands:
            match command:
                case ev.Resize(attempt_id, parallelism):
                    assert attempt_id not in self.told, "told again before it has answered"
                    self.told[attempt_id] = parallelism
                case ev.Cancel(attempt_id):
                    assert self.failing, f"{attempt_id} is stopped, and nothing has happened to the job"
                    self.do(job.feed(ev.AttemptGone(attempt_id)))
                case ev.FindRestorePoint(number):
                    self.do(job.feed(ev.RestorePointFound(number, 7, {})))
                case ev.Deploy(task_id):
                    self.do(job.report(task_id, TaskState.RUNNING))
                case ev.TakeRescaleCheckpoint(number):
                    done = self.rng.random() < 0.7
                    self.failing = True
                    self.do(job.feed(ev.RescaleCheckpointDone(number) if done else ev.RescaleCheckpointFailed(number)))
                case ev.FreeAllocations(_, allocations):
                    used = {e.allocation_id for e in job.state.live}
                    assert not used & set(allocations), "slots are given back that a task was deployed to"
        self.failing = self.failing and not isinstance(job.state.phase, Running)

    def step(self) -> None:
        job, rng = self.job, self.rng
        match rng.choice(("offer", "offer", "answer", "answer", "wait", "lose", "fail")):
            case "offer" if job.needs:
                need = rng.choice(sorted(job.needs.values(), key=lambda one: one.group))
                self.do(job.offer(rng.choice((TM1, TM1, TM2)), rng.randint(1, 4), need.allocation_id))
            case "answer":
                self.answer(refused=rng.random() < 0.2)
            case "wait":
                self.do(job.wait(rng.choice((0.5, 5.0, 40.0))))
            case "lose" if job.state.pool.held:
                self.failing = True
                self.do(job.feed(ev.SlotsGone((rng.choice(sorted(job.state.pool.held)),), "not known")))
            case "fail" if rng.random() < 0.3:
                running = [e for e in job.state.live if e.state is ExecutionState.RUNNING]
                if running:
                    self.failing = True
                    self.do(job.report(rng.choice(running).task_id, TaskState.FAILED, BOOM))

    def answer(self, *, refused: bool) -> None:
        if self.told:
            attempt_id = self.rng.choice(sorted(self.told))
            parallelism = self.told.pop(attempt_id)
            self.answered += 1
            event = ev.TaskNotResized(attempt_id) if refused else ev.TaskResized(attempt_id, parallelism)
            self.do(self.job.feed(event))


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_whatever_happens_tasks_have_their_slots_in_the_end_and_stop_for_a_reason_only(first: int) -> None:
    """The invariants hold at each step. When all have answered, no running task has another number of slots."""
    answered = compared = 0
    for seed in range(first, first + 50):
        story = Story(seed)
        for _ in range(STEPS):
            story.step()
        while story.told:
            story.answer(refused=False)
        answered += story.answered
        phase = story.job.state.phase
        if isinstance(phase, Running) and not phase.rigid:
            compared += 1
            assert not resizing.misfits(story.job.state), seed
            assert phase.resized_from is None, seed
    assert min(answered, compared) >= 10, "these seeds show too little"
