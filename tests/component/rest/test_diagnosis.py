"""`GET /diagnosis` and `GET /jobs/:jobid/diagnosis` (E19a)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp

from minflinkd.rpc.local import LocalNetwork
from tests.component.rest.access_world import bearer, world
from tests.unit.rest.parties import RUNNING, Dispatcher, ResourceManager, failing


async def diagnosis(http: aiohttp.ClientSession, path: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
    async with http.get(path, headers=headers) as response:
        assert response.status == 200, await response.text()
        found: dict[str, Any] = await response.json()
        return found


async def test_a_failing_job_is_told_with_its_figure_and_what_to_do(
    http: aiohttp.ClientSession, dispatcher: Dispatcher
) -> None:
    dispatcher.jobs[RUNNING] = failing()
    answer = await diagnosis(http, f"/jobs/{RUNNING}/diagnosis")
    first = answer["findings"][0]
    assert answer["summary"] == "The job restarts again and again."
    assert first["code"] == "restarts-repeatedly"
    assert (first["severity"], first["job"], first["job_name"]) == ("critical", RUNNING, "carrier-delays")
    assert first["figure"] == "7 in a row"
    assert "seven is poison" in first["sentence"]
    assert set(first) >= {"title", "since", "do", "task", "taskmanager"}


async def test_the_cluster_tells_of_all_jobs_what_hurts_most_first(
    http: aiohttp.ClientSession, dispatcher: Dispatcher, resource_manager: ResourceManager
) -> None:
    dispatcher.jobs[RUNNING] = failing()
    answer = await diagnosis(http, "/diagnosis")
    severities = [each["severity"] for each in answer["findings"]]
    assert severities == sorted(severities, key=["critical", "warning", "info"].index)
    assert "restarts-repeatedly" in [each["code"] for each in answer["findings"]]
    assert answer["jobs_left_out"] == 0


async def test_an_unknown_job_has_no_diagnosis(http: aiohttp.ClientSession, dispatcher: Dispatcher) -> None:
    async with http.get(f"/jobs/{'9' * 32}/diagnosis") as response:
        assert response.status == 404


async def test_without_a_resourcemanager_there_is_still_a_diagnosis(
    http: aiohttp.ClientSession, network: LocalNetwork, dispatcher: Dispatcher, resource_manager: ResourceManager
) -> None:
    """What does not answer leads to fewer findings, and to no error."""
    network.detach(resource_manager.mailbox)
    dispatcher.jobs[RUNNING] = failing()
    answer = await diagnosis(http, "/diagnosis")
    assert [each["code"] for each in answer["findings"] if each["job"] is None] == []
    assert "restarts-repeatedly" in [each["code"] for each in answer["findings"]]


async def test_findings_of_jobs_that_somebody_may_not_see_are_not_shown(
    network: LocalNetwork, dispatcher: Dispatcher, tmp_path: Path
) -> None:
    dispatcher.jobs[RUNNING] = failing()
    async with world(network, tmp_path) as at:
        everything = await diagnosis(at.http, "/diagnosis", bearer("view"))
        limited = await diagnosis(at.http, "/diagnosis", bearer("limited"))
    assert RUNNING in [each["job"] for each in everything["findings"]]
    assert RUNNING not in [each["job"] for each in limited["findings"]]
