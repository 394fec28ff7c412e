"""Subtasks over HTTP: one for each partition that the TaskManager tells of, and what there is if it does not (E1)."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import aiohttp
import pytest
from msgspec.structs import replace

from minflinkd.rest.plan import vertex_id
from minflinkd.rpc.jobs import ExecutionState
from minflinkd.rpc.messages import TaskPartitions
from minflinkd.runtime.ids import AttemptId
from tests.component.rest.test_flink_dashboard import get
from tests.flink.clients import Answer, faults, needs_flink
from tests.flink.paths import filled, flink_paths
from tests.unit.rest.parties import RUNNING, TM, Dispatcher, TaskManager, partition

Http = aiohttp.ClientSession

VERTEX = f"/jobs/{RUNNING}/vertices/{vertex_id('flights')}"
PATHS = [path for path in flink_paths() if path.method == "GET" and "/vertices/:vertexid" in path.path]


async def test_every_path_has_the_same_subtasks(http: Http) -> None:
    vertex = await get(http, VERTEX)
    assert (vertex["parallelism"], [one["subtask"] for one in vertex["subtasks"]]) == (2, [0, 1])
    assert [one["metrics"]["read-bytes"] for one in vertex["subtasks"]] == [7200, 800]
    assert vertex["aggregated"]["metrics"]["read-records"]["max"] == 900
    for path in ("subtasktimes", "subtasks/accumulators", "backpressure"):
        found = await get(http, f"{VERTEX}/{path}")
        assert [one["subtask"] for one in found["subtasks"]] == [0, 1], path
    assert found["subtasks"][1]["busyRatio"] <= found["subtasks"][0]["busyRatio"]
    for path in ("subtasks/1", "subtasks/1/attempts/1"):
        one = await get(http, f"{VERTEX}/{path}")
        assert (one["subtask"], one["metrics"]["write-records"]) == (1, 50)
    partition_of_it = one["minflinkd"]
    assert (partition_of_it["duration"], partition_of_it["read-records"], partition_of_it["batch-id"]) == (20, 10, 41)
    accumulators = await get(http, f"{VERTEX}/subtasks/1/attempts/1/accumulators")
    assert accumulators["subtask"] == 1
    await get(http, f"{VERTEX}/subtasks/1/attempts/0", 404)
    await get(http, f"{VERTEX}/subtasks/2", 404)


async def test_requests_that_come_together_share_one_question(http: Http, task_manager: TaskManager) -> None:
    """A page asks for several things at once. The TaskManager is asked about each attempt once."""
    for path in ("", "/backpressure", "/metrics", "/watermarks", "/subtasktimes"):
        await get(http, VERTEX + path)
    assert task_manager.looks == 1


async def test_a_silent_task_manager_does_not_hold_up_its_vertices(http: Http, task_manager: TaskManager) -> None:
    """It is waited for once, then left alone for a while. What the JobMaster knows is answered, as Flink does."""
    task_manager.silent = True
    vertex = await get(http, VERTEX)
    assert [(one["status"], one["taskmanager-id"]) for one in vertex["subtasks"]] == [("RUNNING", TM)] * 2
    assert {one["metrics"]["read-records-complete"] for one in vertex["subtasks"]} == {False}
    assert (await get(http, f"{VERTEX}/backpressure"))["status"] == "ok"
    assert await get(http, f"{VERTEX}/subtasks/metrics?get=numRecordsIn") == []
    assert task_manager.looks == 1


async def test_a_task_that_does_not_run_is_asked_about_nowhere(
    http: Http, dispatcher: Dispatcher, task_manager: TaskManager
) -> None:
    job = dispatcher.jobs[RUNNING]
    lost = replace(job.tasks[0], state=ExecutionState.CREATED, attempt_id=None, resource_id=None, start_ms=-1)
    dispatcher.jobs[RUNNING] = replace(job, tasks=(lost, *job.tasks[1:]))
    vertex = await get(http, VERTEX)
    assert [(one["status"], one["endpoint"]) for one in vertex["subtasks"]] == [("CREATED", "(unassigned)")] * 2
    assert task_manager.looks == 0


ANSWERS = {
    "before the first micro-batch": TaskPartitions(),
    "one partition of many": TaskPartitions(batch_id=41, partitions=9000, told=(partition(0, 5, 5),)),
    "more than the parallelism": TaskPartitions(
        batch_id=41,
        partitions=5,
        told=tuple(partition(index, 5, 5, host="host-b", executor="3") for index in range(5)),
    ),
}


@needs_flink
async def test_flink_reads_what_is_said_of_subtasks_whatever_is_known(
    http: Http, dispatcher: Dispatcher, task_manager: TaskManager
) -> None:
    """With its own message classes, also if the TaskManager says nothing."""
    answers = []
    job = dispatcher.jobs[RUNNING]
    for name, found in {**ANSWERS, "silent": TaskPartitions()}.items():
        task_manager.partitions, task_manager.silent = found, name == "silent"
        anew = replace(job.tasks[0], attempt_id=AttemptId(uuid4().hex))  # the answer of the other one is still known
        dispatcher.jobs[RUNNING] = replace(job, tasks=(anew, *job.tasks[1:]))
        answers += [Answer("GET", path.path, await _body(http, path.path)) for path in PATHS]
    assert not (wrong := await faults(answers)), "\n".join(wrong)


async def _body(http: Http, path: str) -> Any:
    values = {"jobid": RUNNING, "vertexid": vertex_id("flights"), "subtaskindex": "0", "attempt": "1"}
    async with http.get(filled(path, values)) as response:
        assert response.status == 200, await response.text()
        return await response.json()


@pytest.mark.parametrize("name", ANSWERS)
async def test_parallelism_and_subtasks_agree(http: Http, task_manager: TaskManager, name: str) -> None:
    task_manager.partitions = ANSWERS[name]
    vertex = await get(http, VERTEX)
    assert vertex["parallelism"] == len(vertex["subtasks"])
    accumulators = await get(http, f"{VERTEX}/subtasks/accumulators")
    assert accumulators["parallelism"] == len(accumulators["subtasks"]) == vertex["parallelism"]
    index = vertex["subtasks"][-1]["subtask"]
    assert (await get(http, f"{VERTEX}/subtasks/{index}"))["subtask"] == index
