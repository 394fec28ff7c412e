"""`/rpc`: whether requests between the daemon's parties and TaskManagers are answered, and how fast (E17)."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
from msgspec.structs import replace

from minflinkd.rpc.jobs import GetJob
from minflinkd.rpc.local import LocalNetwork
from minflinkd.rpc.network import Mailbox, job_master
from minflinkd.runtime.ids import JobId
from tests.component.rest.access_world import bearer, world
from tests.unit.rest.parties import RUNNING, Dispatcher, details
from tests.waiting import until

Http = aiohttp.ClientSession


async def rpc(http: Http) -> dict[str, Any]:
    async with http.get("/rpc") as response:
        assert response.status == 200
        found: dict[str, Any] = await response.json()
        return found


async def test_requests_of_the_last_minute_are_counted_by_type_and_outcome(
    http: Http, network: LocalNetwork, dispatcher: Dispatcher
) -> None:
    """What was not answered comes first: whether it was carried out, nobody knows."""
    await http.get("/jobs/overview")
    network.detach(dispatcher.mailbox)
    await http.get(f"/jobs/{RUNNING}")
    found = await rpc(http)
    assert found["window"] == 60_000
    first, *others = found["messages"]
    assert (first["message"], first["outcomes"], first["unanswered"]) == ("GetJob", {"unreachable": 1}, 1)
    listed = next(one for one in others if one["message"] == "ListJobs")
    assert (listed["outcomes"], listed["unanswered"], listed["in-flight"]) == ({"ok": 1}, 0, 0)
    assert 0 <= listed["mean"] <= listed["slowest"]


async def test_what_a_party_does_not_answer_is_seen_at_its_mailbox(
    http: Http, network: LocalNetwork, dispatcher: Dispatcher
) -> None:
    """Until the request is given up, and is then counted as unanswered."""
    answer = asyncio.Event()

    async def never(_: GetJob) -> Any:
        await answer.wait()

    dispatcher.mailbox.on(GetJob, never)
    asking = asyncio.ensure_future(network.ask(dispatcher.mailbox.address, GetJob(job_id=RUNNING), timeout=30))
    await until(lambda: len(dispatcher.mailbox.pending) == 1)
    found = await rpc(http)
    assert [(one["message"], one["in-flight"], one["mean"]) for one in found["messages"]] == [("GetJob", 1, None)]
    first, second = found["mailboxes"]
    assert (first["address"], first["waiting"], first["message"]) == ("dispatcher", 1, "GetJob")
    assert (second["address"], second["waiting"], second["message"]) == ("resourcemanager", 0, "")
    asking.cancel()


async def test_mailboxes_of_other_jobs_are_not_shown(
    network: LocalNetwork, dispatcher: Dispatcher, tmp_path: Path
) -> None:
    """Who may see some jobs only does not learn the ids of others (E41)."""
    mine, other = JobId("c" * 32), JobId("d" * 32)
    job = details()
    dispatcher.jobs = {
        mine: replace(job, job_id=mine, graph=replace(job.graph, name="etl-1")),
        other: replace(job, job_id=other, graph=replace(job.graph, name="billing")),
    }
    boxes = [Mailbox(job_master(each)) for each in (mine, other)]
    with ExitStack() as stack:
        for box in boxes:
            network.attach(box)
            stack.enter_context(box.pending.during("OfferSlots"))
        async with world(network, tmp_path) as served:
            assert await _addresses(served.http, "limited") == {"dispatcher", f"jobmaster/{mine}"}
            assert await _addresses(served.http, "view") == {"dispatcher", f"jobmaster/{mine}", f"jobmaster/{other}"}
            network.detach(dispatcher.mailbox)

            async def none_is_shown() -> bool:
                return not await _addresses(served.http, "limited")

            await until(none_is_shown)  # an answer about all jobs is shared for a moment


async def _addresses(http: Http, name: str) -> set[str]:
    async with http.get("/rpc", headers=bearer(name)) as response:
        return {one["address"] for one in (await response.json())["mailboxes"]}
