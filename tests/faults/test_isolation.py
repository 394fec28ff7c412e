"""With `isolation: job`, a job has its own TaskManagers, which end with it (R24)."""

from __future__ import annotations

import psutil
import pytest

from minflinkd.rest.schemas import TaskManager
from minflinkd.runtime.errors import MinflinkError
from tests.cluster import Cluster, lives
from tests.waiting import until
from tests.windows_job import WindowsJob

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]


@pytest.mark.slow
async def test_an_isolated_job_has_a_task_manager_to_itself_which_ends_with_it(
    cluster: Cluster, windows: WindowsJob
) -> None:
    """Other jobs go elsewhere, although there is room beside the isolated one, and do not notice its end (R24)."""
    await cluster.await_ready(2)
    alone = await cluster.submit(windows.write("alone", mode="streaming", isolation="job"))
    await cluster.await_state(alone, "RUNNING")

    async def half_full() -> TaskManager | None:
        found = await cluster.task_manager_of(alone)
        return found if found.free_slots == 2 else None

    own = await until(half_full, "another job would fit beside the isolated one")
    others = [await cluster.submit(windows.write(f"other{n}", mode="streaming", parallelism=1)) for n in range(2)]
    for job_id in others:
        await cluster.await_state(job_id, "RUNNING")
        assert (await cluster.task_manager_of(job_id)).id != own.id
    processes = [psutil.Process(own.minflinkd.pid), *psutil.Process(own.minflinkd.pid).children(recursive=True)]
    await cluster.cancel(alone)

    async def ended() -> bool:
        return not any(map(lives, processes))

    await until(ended, "nothing of the isolated job's TaskManager runs")
    assert own.id not in {tm.id for tm in await cluster.task_managers(ready=False)}
    for job_id in others:
        assert (await cluster.client.job(job_id)).minflinkd.restarts == 0
        await cluster.cancel(job_id)
    await cluster.await_count(2, timeout=150)


@pytest.mark.slow  # unit tests of ResourceManager and TaskManager have the decisions
async def test_the_code_of_an_isolated_job_ends_no_session_of_others_when_it_is_analysed(
    cluster: Cluster, windows: WindowsJob
) -> None:
    """Not even when the analysis is repeated in a second session, after the first was lost (R24, J4)."""
    await cluster.await_ready(2)
    other = await cluster.submit(windows.write("beside", mode="streaming", parallelism=1))
    await cluster.await_state(other, "RUNNING")
    shared = await cluster.task_manager_of(other)
    job = WindowsJob(windows.base, artifact="import os\nos._exit(3)\n")
    with pytest.raises(MinflinkError) as refused:
        await cluster.submit(job.write("exits", mode="streaming", isolation="job"))
    assert refused.value.info().code == "no-session"
    assert (await cluster.client.job(other)).minflinkd.restarts == 0
    assert (await cluster.task_manager_of(other)).id == shared.id
    await cluster.cancel(other)
    await cluster.await_count(2, timeout=150)


@pytest.mark.slow
async def test_an_isolated_job_gets_no_task_manager_where_others_hold_slots(
    cluster: Cluster, windows: WindowsJob
) -> None:
    """A TaskManager in use has room enough, but is passed over for a wholly idle one (R24)."""
    await cluster.await_ready(2)
    first = await cluster.submit(windows.write("first", mode="streaming", parallelism=1))
    await cluster.await_state(first, "RUNNING")
    shared = await cluster.task_manager_of(first)
    alone = await cluster.submit(windows.write("alone-too", mode="streaming", isolation="job"))
    await cluster.await_state(alone, "RUNNING")
    assert (await cluster.task_manager_of(alone)).id != shared.id
    await cluster.cancel(alone)
    await cluster.cancel(first)
    await cluster.await_count(
        2, timeout=150
    )  # the isolated job's own has ended, and no later test takes it for a standby
