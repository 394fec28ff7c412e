"""What a JobMaster does before its tasks stop for the next version."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from minflinkd.checkpoint.causes import CheckpointFailed, FailureCause
from minflinkd.checkpoint.metadata import CompletedCheckpoint, restore_point
from minflinkd.jobmaster.making_way import MakingWay
from minflinkd.jobmaster.scheduler.phases import StoodDown
from minflinkd.rpc.jobs import JobStatus
from minflinkd.storage.publication import SinkTransaction
from tests.unit.checkpoint.builders import A1, JOB, A, completed, snapshot

MB = 2**20


@dataclass
class Coordinator:
    """Completes each checkpoint at once, or fails the first one if `fails` is set."""

    latest_one: CompletedCheckpoint
    fails: bool = False
    stopped: list[bool] = field(default_factory=list)  # one value for each checkpoint

    def latest(self) -> CompletedCheckpoint:
        return self.latest_one

    async def trigger(self, *, forced: bool, stop: bool = False) -> CompletedCheckpoint:
        assert forced
        self.stopped.append(stop)
        if self.fails and len(self.stopped) == 1:
            raise CheckpointFailed(None, FailureCause.EXPIRED)
        self.latest_one = replace(self.latest_one, checkpoint_id=self.latest_one.checkpoint_id + 1)
        return self.latest_one

    async def settled(self) -> CompletedCheckpoint:
        return self.latest_one


async def stopped_with(coordinator: Coordinator, status: JobStatus = JobStatus.RUNNING) -> int:
    """Return the id of the checkpoint with which a job stands down. If it looks for its tasks, it finds them."""
    state = SimpleNamespace(status=status, outcome=None, phase=StoodDown())

    async def until(condition: Callable[[Any], bool]) -> bool:
        state.status = JobStatus.RUNNING
        return condition(state)

    scheduling: Any = SimpleNamespace(state=state, feed=lambda _: None, crashed=asyncio.Event(), until=until)
    return await MakingWay(JOB, scheduling, coordinator).stand_down(final=True)  # type: ignore[arg-type]


def state_of(size: int) -> CompletedCheckpoint:
    return completed(3, replace(snapshot(3, A, A1), bytes_full=size))


@pytest.mark.parametrize(("size", "cuts"), [(1 * MB, [True]), (100 * MB, [False, True])])
async def test_a_large_state_is_copied_before_the_tasks_stand_still(size: int, cuts: list[bool]) -> None:
    """The last checkpoint, during which the tasks stand still, then uploads only what changed since the copy (H3)."""
    coordinator = Coordinator(state_of(size))
    assert await stopped_with(coordinator) == 3 + len(cuts)
    assert coordinator.stopped == cuts


async def test_a_copy_that_fails_keeps_no_version_from_stopping() -> None:
    """The last checkpoint then uploads more (H3)."""
    coordinator = Coordinator(state_of(100 * MB), fails=True)
    assert await stopped_with(coordinator) == 4
    assert coordinator.stopped == [False, True]


@pytest.mark.parametrize(("status", "cuts"), [(JobStatus.RECONCILING, [True]), (JobStatus.RESTARTING, [])])
async def test_a_job_that_looks_for_its_tasks_takes_its_last_checkpoint_when_it_has_found_them(
    status: JobStatus, cuts: list[bool]
) -> None:
    """They have run on. Without that checkpoint, what they did since the last one would be done again (A14c, H3)."""
    coordinator = Coordinator(state_of(1 * MB))
    assert await stopped_with(coordinator, status) == 3 + len(cuts)
    assert coordinator.stopped == cuts


@dataclass
class Publication:
    """The checkpoints that are retained, and the last one that all tasks have published."""

    retained: tuple[CompletedCheckpoint, ...]
    published: CompletedCheckpoint | None

    def latest(self) -> CompletedCheckpoint | None:
        return restore_point(self.retained)

    def latest_published(self) -> CompletedCheckpoint | None:
        return self.published


def owing(number: int) -> CompletedCheckpoint:
    owed = SinkTransaction(job_id=JOB, sink="rows", root="", checkpoint_id=number, files=(), tokens=(f"t{number}",))
    return completed(number, snapshot(number, A, A1, transactions=(owed,)))


@pytest.mark.parametrize("retained", [0, 1, 2, 3])
def test_a_sink_that_is_left_behind_owes_nothing_once_the_latest_checkpoint_is_published(retained: int) -> None:
    """However many checkpoints before it are retained: what they owed was published before (J12, J13)."""
    checkpoints = tuple(owing(number) for number in range(1, retained + 1))
    for published in (None, *checkpoints):
        coordinator: Any = Publication(checkpoints, published)
        scheduling: Any = None
        assert MakingWay(JOB, scheduling, coordinator).published is (published == (checkpoints or (None,))[-1])
