"""POST /jobs/:id/hot-restart, and Flink's resource requirements (E2, H1)."""

from __future__ import annotations

import aiohttp
import msgspec
import pytest

from minflinkd.jobgraph.faults import GraphFault
from minflinkd.rest.plan import vertex_id
from minflinkd.rest.schemas import JobInfo
from minflinkd.rpc.jobs import HotRestartJob, RescaleJob, RestartState
from tests.unit.rest.parties import RUNNING, Dispatcher

Http = aiohttp.ClientSession
DOCUMENT = b'{"name": "x",  "vertices": []}'
JSON = {"Content-Type": "application/json"}
RESTART = f"/jobs/{RUNNING}/hot-restart"
REQUIREMENTS = f"/v1/jobs/{RUNNING}/resource-requirements"


async def test_a_hot_restart_is_accepted_with_its_number_and_what_changes(http: Http, dispatcher: Dispatcher) -> None:
    """The document reaches the Dispatcher as it was sent, and the job shows how the restart went (H1, H2)."""
    async with http.post(f"{RESTART}?checkpoint=latest&replace", data=DOCUMENT, headers=JSON) as response:
        body = await response.json()
    assert (response.status, body["number"], body["dry-run"]) == (202, 1, False)
    assert body["changes"] == {
        "vertices": [{"vertex": "delays", "change": "changed", "fields": ["sql"]}],
        "settings": [{"path": "params.minutes", "before": "60", "after": "30"}],
        "state": [{"vertex": "delays", "kind": "stateStoreSave", "fate": "kept", "reason": ""}],
    }
    request = HotRestartJob(job_id=RUNNING, document=DOCUMENT, latest=True, replace=True)
    assert dispatcher.restarts == [request]
    async with http.get(f"/jobs/{RUNNING}") as response:
        (shown,) = msgspec.json.decode(await response.read(), type=JobInfo).minflinkd.hot_restarts
    assert (shown.number, shown.state, shown.over, shown.checkpoint_id) == (1, "completed", True, 7)


async def test_a_dry_run_of_a_hot_restart_begins_nothing(http: Http, dispatcher: Dispatcher) -> None:
    """H2."""
    async with http.post(f"{RESTART}?dry-run", data=DOCUMENT, headers=JSON) as response:
        assert (response.status, (await response.json())["number"]) == (200, 0)


async def test_a_version_with_faults_is_refused_with_all_of_them(http: Http, dispatcher: Dispatcher) -> None:
    """H2, J4."""
    dispatcher.faults = (GraphFault(path="vertices", problem="the state of vertex delays has other types"),)
    async with http.post(RESTART, data=DOCUMENT, headers=JSON) as response:
        body = await response.json()
    assert (response.status, body["code"]) == (400, "invalid-job-graph")
    assert body["faults"][0]["problem"] == "the state of vertex delays has other types"


@pytest.mark.parametrize("query", ["checkpoint=newest", "replace=perhaps"])
async def test_a_wrong_option_of_a_hot_restart_is_named(http: Http, query: str) -> None:
    """E3."""
    async with http.post(f"{RESTART}?{query}", data=DOCUMENT, headers=JSON) as response:
        assert (response.status, (await response.json())["code"]) == (400, "invalid-request")


async def test_resource_requirements_are_flinks(http: Http, dispatcher: Dispatcher) -> None:
    """PUT takes what GET answers. A hot restart of the same version follows (E1)."""
    async with http.get(REQUIREMENTS) as response:
        body = await response.json()
    flights = vertex_id("flights")
    assert body[flights] == {"parallelism": {"lowerBound": 1, "upperBound": 2}}
    body = {flights: {"parallelism": {"lowerBound": 2, "upperBound": 4}}}
    async with http.put(REQUIREMENTS, json=body) as response:
        assert (response.status, await response.json()) == (202, {})
    assert dispatcher.restarts == [RescaleJob(job_id=RUNNING, vertices={"flights": 4}, least=2)]
    async with http.put(REQUIREMENTS, json={"f" * 32: {}}) as response:
        assert (response.status, (await response.json())["code"]) == (400, "invalid-request")


async def test_a_restart_that_was_rolled_back_says_why(http: Http, dispatcher: Dispatcher) -> None:
    """H7."""
    dispatcher.restart_ends = RestartState.ROLLED_BACK
    async with http.post(RESTART, data=DOCUMENT, headers=JSON) as response:
        assert response.status == 202
    async with http.get(f"/jobs/{RUNNING}") as response:
        (shown,) = msgspec.json.decode(await response.read(), type=JobInfo).minflinkd.hot_restarts
    assert (shown.state, shown.error is not None and shown.error.code) == ("rolled-back", "user-code")
