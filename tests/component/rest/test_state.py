"""The paths that show the state of a job's tasks (E19c)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from minflinkd.rest.plan import vertex_id
from minflinkd.rpc import job_state as j
from minflinkd.rpc import messages as m
from minflinkd.rpc.local import LocalNetwork
from minflinkd.runtime.ids import TaskId
from tests.component.rest.access_world import bearer, world
from tests.unit.rest.parties import RUNNING, Dispatcher, ResourceManager

READ = j.CheckpointRead(job_id=RUNNING, checkpoint_id=7, path="file:///chk-7", triggered_ms=5, savepoint=False)
TASK = TaskId("events")
TOTALS = m.StoreTotals(
    rows=3,
    bytes=144,
    keys=3,
    partitions=(
        m.PartitionTotals(partition=0, rows=2, bytes=96),
        m.PartitionTotals(partition=1, rows=1, bytes=48),
    ),
    largest=(m.LargeKey(key='{"k":"a"}', rows=1, bytes=48, partition=0),),
)
STORE = m.StateStore(id="0", operator=0, kind="Aggregate", vertex="totals", totals=TOTALS)
ROWS = (
    m.StateRow(partition=0, key='{"k":"a"}', value='{"count":2}', bytes=48),
    m.StateRow(partition=1, key="", value="", bytes=99_000, cut=True),
)


class Asked:
    """Answers the questions of the endpoint, and keeps them."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.questions: list[Any] = []
        self.found = m.StateFound(stores=(STORE,), store="0", rows=ROWS, truncated=True, milliseconds=12.5)
        dispatcher.mailbox.on(j.ListState, self.list)
        dispatcher.mailbox.on(j.ReadJobState, self.read)
        dispatcher.mailbox.on(j.CompareJobState, self.compare)

    async def list(self, request: j.ListState) -> j.StateOfJob:
        self.questions.append(request)
        operator = j.StatefulOperator(number=0, kind="Aggregate", vertex="")
        task = j.TaskWithState(task_id=TASK, batch_id=-1, size=10, operators=(operator,))
        return j.StateOfJob(checkpoint=READ, tasks=(task,))

    async def read(self, request: j.ReadJobState) -> j.StateOfTask:
        self.questions.append(request)
        return j.StateOfTask(checkpoint=READ, task_id=TASK, batch_id=4, found=self.found)

    async def compare(self, request: j.CompareJobState) -> j.GrowthOfTask:
        self.questions.append(request)
        grown = m.GrownKey(key='{"k":"a"}', rows_before=0, rows_after=1, bytes_before=0, bytes_after=48)
        stores = (
            m.StoreGrowth(store=STORE, before=TOTALS, after=TOTALS, keys_added=1, grown=(grown,)),
            m.StoreGrowth(store=msgspec.structs.replace(STORE, id="1"), before=None, after=TOTALS),
        )
        return j.GrowthOfTask(before=READ, after=READ, task_id=TASK, growth=m.StateGrowth(stores=stores))


@pytest.fixture
def asked(dispatcher: Dispatcher) -> Asked:
    return Asked(dispatcher)


async def test_rows_totals_and_skew_are_shown(http: aiohttp.ClientSession, asked: Asked) -> None:
    """Keys and values are JSON, what is not known is null, and a row that is too long is marked (E19c)."""
    query = {"checkpoint": "7", "store": "0", "key": "a", "limit": "2", "largest": "1", "timeout": "5"}
    async with http.get(f"/jobs/{RUNNING}/vertices/events/state", params=query) as answer:
        shown = await answer.json()
    assert (answer.status, shown["checkpoint"]["id"], shown["batch"], shown["duration"]) == (200, 7, 4, 12.5)
    (store,) = shown["stores"]
    assert (store["totals"]["skew"], store["key-type"], store["unreadable"]) == (1.33, None, None)
    assert store["totals"]["largest-keys"] == [{"key": {"k": "a"}, "rows": 1, "bytes": 48, "partition": 0}]
    assert shown["rows"] == [
        {"partition": 0, "key": {"k": "a"}, "value": {"count": 2}, "bytes": 48, "cut": False},
        {"partition": 1, "key": None, "value": None, "bytes": 99_000, "cut": True},
    ]
    assert (shown["truncated"], shown["result"]) == (True, None)
    (question,) = asked.questions
    assert (question.vertex, question.checkpoint, question.timeout, question.any_job) == ("events", "7", 5.0, True)
    assert question.question == m.StateQuestion(store="0", key="a", limit=2, largest=1)


async def test_the_result_of_a_select_is_rows_of_values(http: aiohttp.ClientSession, asked: Asked) -> None:
    result = m.StateResult(columns=("k", "n"), types=("string", "bigint"), rows=('["a",2]',))
    asked.found = m.StateFound(stores=(STORE,), store="0", result=result)
    query = {"sql": "SELECT 1 FROM state", "no-totals": ""}
    async with http.get(f"/jobs/{RUNNING}/vertices/{vertex_id('events')}/state", params=query) as answer:
        shown = await answer.json()
    assert shown["result"] == {"columns": ["k", "n"], "types": ["string", "bigint"], "rows": [["a", 2]]}
    assert (shown["rows"], asked.questions[0].question.totals) == ([], False)


async def test_growth_says_what_is_not_known(http: aiohttp.ClientSession, asked: Asked) -> None:
    """A store that is only in one of the checkpoints has no counts of keys (E19c)."""
    path = f"/jobs/{RUNNING}/vertices/events/state/growth"
    async with http.get(path) as answer:
        assert (answer.status, (await answer.json())["code"]) == (400, "invalid-request")
    async with http.get(path, params={"from": "/sp", "to": "7"}) as answer:
        both, one = (await answer.json())["stores"]
    assert (both["keys-added"], both["keys-removed"], both["grown-keys"][0]["bytes-after"]) == (1, 0, 48)
    assert (one["keys-added"], one["before"], one["after"]["rows"]) == (None, None, 3)
    assert (asked.questions[0].before, asked.questions[0].after) == ("/sp", "7")


async def test_tasks_with_state_are_listed(http: aiohttp.ClientSession, asked: Asked) -> None:
    async with http.get(f"/jobs/{RUNNING}/state", params={"checkpoint": "/sp"}) as answer:
        shown = await answer.json()
    assert shown["tasks"] == [
        {
            "id": vertex_id("events"),
            "task-id": "events",
            "batch": None,
            "state-size": 10,
            "operators": [{"number": 0, "kind": "Aggregate", "vertex": None}],
        }
    ]
    assert asked.questions == [j.ListState(job_id=RUNNING, checkpoint="/sp", any_job=True)]


async def test_a_limited_token_does_not_reach_savepoints_of_other_jobs(
    network: LocalNetwork, dispatcher: Dispatcher, resource_manager: ResourceManager, asked: Asked, tmp_path: Path
) -> None:
    """It is the one who has the savepoint that refuses: the endpoint says who may see all jobs (E19c, E41)."""
    details = dispatcher.jobs[RUNNING]
    graph = msgspec.structs.replace(details.graph, name="etl-1")
    dispatcher.jobs[RUNNING] = msgspec.structs.replace(details, graph=graph)
    async with world(network, tmp_path) as at:
        for path in ("state", "vertices/events/state", "vertices/events/state/growth"):
            async with at.http.get(
                f"/jobs/{RUNNING}/{path}", headers=bearer("limited"), params={"from": "1"} if "growth" in path else {}
            ) as answer:
                assert answer.status == 200
    assert [question.any_job for question in asked.questions] == [False] * 3
