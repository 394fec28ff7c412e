"""A region on two TaskManagers in virtual time, with real checkpoints: one checkpoint, one restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from minflinkd.jobgraph.model import Input, JobGraph, Sink, Source, Vertex
from minflinkd.rpc import messages as m
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.network import job_master
from minflinkd.runtime.ids import VertexId
from tests.sim.jobmaster.world import BOOM, JOB, TM, TM2, graph, running
from tests.waiting import until

pytestmark = pytest.mark.looptime


def two_groups() -> JobGraph:
    """Return a job with `numbers` and `totals`. No TaskManager has room for both."""
    vertices = (
        Vertex(id=VertexId("numbers"), source=Source(format="rate")),
        Vertex(
            id=VertexId("totals"),
            inputs=(Input(id=VertexId("numbers"), exchange=True),),
            sql="SELECT * FROM numbers",
            slot_sharing_group="totals",
        ),
        Vertex(
            id=VertexId("out"),
            inputs=(Input(id=VertexId("totals")),),
            sink=Sink(format="console"),
            slot_sharing_group="totals",
        ),
    )
    return replace(graph(parallelism=2), vertices=vertices)


async def test_a_task_that_has_stopped_with_a_checkpoint_restarts_with_one_that_fails_after_it(tmp_path: Path) -> None:
    """Example: a stop with a savepoint, and a reader that fails when the checkpoint is complete (C23, R16).

    The task that it reads from could run on. But it processes nothing after that checkpoint, and nothing ends that.
    """
    async with running(tmp_path, two_groups(), {TM: 2, TM2: 2}, timeout=7 * 24 * 3600.0) as world:
        on = {d.task.id: tm for tm in world.task_managers.values() for d in tm.deployed}
        writer, reader = on["numbers"], on["totals"]
        writer.progress(m.TaskMetrics(replayable=True))
        await until(lambda: world.master.details().tasks[0].metrics.replayable)
        await world.master.coordinator.trigger(stop=True)
        (attempt,) = reader.tasks
        await reader.report(attempt, m.TaskState.FAILED, BOOM)
        await until(lambda: len(writer.deployed) == 2 and world.master.status is JobStatus.RUNNING)
        assert len(reader.deployed) == 2
        assert world.master.details().restarts == 1
        writer.progress(m.TaskMetrics(replayable=True))
        await until(lambda: world.master.details().tasks[0].metrics.replayable)
        (attempt,) = [one for one in reader.tasks if one != attempt]
        await reader.report(attempt, m.TaskState.FAILED, BOOM)
        await until(lambda: len(reader.deployed) == 3 and world.master.status is JobStatus.RUNNING)
        assert len(writer.deployed) == 2, "it runs on again: that checkpoint concerned the attempt before"


async def test_a_region_on_two_taskmanagers_restarts_from_a_checkpoint_that_both_are_in(tmp_path: Path) -> None:
    """A checkpoint is complete when both tasks have acknowledged it.

    If one is lost, both restart from it (C20, C21, R16).
    """
    async with running(
        tmp_path, two_groups(), {TM: 2, TM2: 2}, interval=10.0, timeout=30.0, tolerable_failed=9
    ) as world:
        on = {d.task.id: tm for tm in world.task_managers.values() for d in tm.deployed}
        assert len({tm.resource_id for tm in on.values()}) == 2
        writer, reader = on["numbers"], on["totals"]
        world.wire.faults.drop_if = lambda _s, _t, message: (
            isinstance(message, m.AcknowledgeCheckpoint)
            and message.snapshot.task_id == "totals"
            and message.snapshot.checkpoint_id > 1
        )
        await until(lambda: world.story.count("publish 1") == 2)
        await until(lambda: world.story.count("trigger 2") == 2)
        await until(lambda: "trigger 3" in world.story)
        assert "publish 2" not in world.story
        world.wire.faults.drop_if = None

        world.slots[writer.resource_id] = 2
        lost = m.TaskManagerLost(resource_id=reader.resource_id, reason="killed")
        world.wire.party("rm").tell(job_master(JOB), lost, fence=world.master.leader_id)
        await until(lambda: len(writer.deployed) == 3 and world.master.status is JobStatus.RUNNING)
        again = {d.task.id: d for d in writer.deployed[1:]}
        assert set(again) == {"numbers", "totals"}
        restored = {d.restore.checkpoint_id for d in again.values() if d.restore is not None}
        assert len(restored) == 1
        (source,) = again["totals"].inputs
        assert (source.attempt_id, source.resource_id) == (again["numbers"].attempt_id, writer.resource_id)
