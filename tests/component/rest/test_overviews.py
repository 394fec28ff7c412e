"""No overview is older than a change of which its client knows (E4)."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from minflinkd.rpc.jobs import JobStatus
from tests.component.rest.test_flink_json import get
from tests.unit.rest.parties import RUNNING, Dispatcher, ResourceManager

Http = aiohttp.ClientSession


async def state(http: Http, path: str) -> Any:
    """Return the state of the running job in this overview."""
    body = await get(http, path)
    (found,) = (each for each in next(iter(body.values())) if each.get("jid", each.get("id")) == RUNNING)
    return found.get("state", found.get("status"))


@pytest.mark.parametrize("path", ["/jobs", "/jobs/overview", "/applications/overview"])
async def test_what_a_job_has_become_is_in_the_next_overview(http: Http, dispatcher: Dispatcher, path: str) -> None:
    for status in (JobStatus.RUNNING, JobStatus.FAILING, JobStatus.RUNNING, JobStatus.FAILED, JobStatus.FAILING):
        dispatcher.become(RUNNING, status)
        assert await state(http, path) == status


async def test_what_has_become_of_jobs_and_slots_is_in_the_next_overview(
    http: Http, dispatcher: Dispatcher, resource_manager: ResourceManager
) -> None:
    before = await get(http, "/overview")
    dispatcher.become(RUNNING, JobStatus.FINISHED)
    resource_manager.lost += 1
    after = await get(http, "/overview")
    assert (after["jobs-finished"], after["minflinkd"]["taskmanagers-lost"]) == (
        before["jobs-finished"] + 1,
        before["minflinkd"]["taskmanagers-lost"] + 1,
    )


async def test_many_clients_at_once_all_get_what_was_before_they_asked(http: Http, dispatcher: Dispatcher) -> None:
    """Also those whose requests wait while an earlier one is answered."""

    async def ask(status: JobStatus) -> None:
        dispatcher.become(RUNNING, status)
        assert await state(http, "/jobs/overview") in (status, last)

    last = JobStatus.FAILING
    await asyncio.gather(*(ask(JobStatus.RUNNING) for _ in range(20)), ask(last))
    assert await state(http, "/jobs/overview") == last
