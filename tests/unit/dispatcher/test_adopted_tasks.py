"""The Dispatcher counts the tasks that its JobMasters adopt (A14a)."""

from __future__ import annotations

from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.model import version_of
from minflinkd.rpc import messages as m
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.messages.tasks import TaskMetrics
from minflinkd.rpc.network import job_master, task_manager
from minflinkd.runtime.ids import AllocationId, AttemptId, JobId, ResourceId
from tests.unit.dispatcher.conftest import Cluster
from tests.waiting import until

JOB, TM = JobId("1" * 32), ResourceId("tm-000000000001")


async def test_tasks_that_go_on_under_the_next_daemon_are_counted(cluster: Cluster) -> None:
    """So that `minflinkd_adopted_tasks_total` shows what a takeover has saved (A14a)."""
    cluster.heartbeat_timeout = 60.0  # the JobMaster waits for its TaskManagers
    async with cluster.serving():
        await cluster.submit(JOB)
    async with cluster.serving() as dispatcher:

        async def reconciling() -> bool:
            return (await cluster.job(JOB)).status is JobStatus.RECONCILING

        await until(reconciling, "the JobMaster looks for tasks")
        assert dispatcher.adopted_tasks == 0
        master = dispatcher.job_master(JOB)
        assert master is not None
        (task,) = chain(master.graph)
        allocation = AllocationId("a" * 32)
        running = m.OfferedTask(
            status=m.TaskStatus(
                attempt_id=AttemptId("c" * 32), task_id=task.id, state=m.TaskState.RUNNING, metrics=TaskMetrics()
            ),
            allocation_id=allocation,
            attempt_number=0,
            parallelism=task.parallelism,
            version=version_of(master.graph),
        )
        offer = m.SlotOffer(allocation_id=allocation, slots=tuple(range(task.parallelism)))
        request = m.OfferSlots(resource_id=TM, address=task_manager(TM), offers=(offer,), job_id=JOB, tasks=(running,))
        await cluster.network.ask(job_master(JOB), request, timeout=5, fence=master.leader_id)
        await until(lambda: dispatcher.adopted_tasks == 1, "the task is adopted", timeout=5)
