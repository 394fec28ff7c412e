"""How a request is answered that is under way, or arrives, while the daemon ends."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from structlog.testing import capture_logs

from minflinkd.rest.ending import DaemonStopping, Ending
from minflinkd.rest.server import RestServer
from tests.unit.rest.parties import Dispatcher
from tests.waiting import until

JSON = {"Content-Type": "application/json"}


async def test_a_submission_that_waits_is_refused_when_the_daemon_ends(
    http: aiohttp.ClientSession, server: RestServer, dispatcher: Dispatcher
) -> None:
    """The refusal has a code and may be repeated: no broken connection, no traceback (issue 15, 9)."""
    dispatcher.silent = True

    async def under_way() -> bool:
        return bool(dispatcher.submissions)

    with capture_logs() as logs:
        submission = asyncio.create_task(http.post("/jobs", data=b"{}", headers=JSON))
        await until(under_way, "the submission is under way")
        async with asyncio.timeout(2):
            await server.aclose()
        response = await submission
    body = await response.json()
    assert (response.status, body["code"], response.headers["Retry-After"]) == (503, "daemon-stopping", "1")
    assert "is shutting down" in body["errors"][0]
    assert [line for line in logs if line["log_level"] in ("error", "warning")] == []


async def test_a_request_that_is_nearly_done_is_done() -> None:
    ending = Ending()
    go_on = asyncio.Event()

    async def work() -> int:
        await go_on.wait()
        return 7

    asked = asyncio.create_task(ending.carry_out(work()))
    await asyncio.sleep(0)
    begun = asyncio.create_task(ending.begin())
    await asyncio.sleep(0)
    go_on.set()
    assert await asked == 7
    await begun


async def test_a_request_that_comes_later_is_refused_at_once() -> None:
    ending = Ending()
    await ending.begin()
    with pytest.raises(DaemonStopping, match="is shutting down"):
        await ending.carry_out(asyncio.sleep(60))


async def test_a_request_that_is_cancelled_by_its_client_is_cancelled() -> None:
    ending, ended = Ending(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    asked = asyncio.create_task(ending.carry_out(work()))
    await asyncio.sleep(0.01)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await ended.wait()


async def test_a_failure_is_passed_on() -> None:
    async def work() -> None:
        raise ValueError("as it is")

    with pytest.raises(ValueError, match="as it is"):
        await Ending().carry_out(work())
