"""`minflinkd savepoint` and `stop` whose daemon is lost come to an end that the next daemon tells (A14c)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from minflinkd.cli.client import Client
from minflinkd.cli.endpoint import DaemonUnreachable
from minflinkd.rpc import jobs as j
from minflinkd.runtime.errors import Conflict, Consequence, ErrorInfo, MinflinkError
from tests.component.cli.conftest import Command, RunningDaemon
from tests.unit.rest.parties import RUNNING

LOST = ErrorInfo(
    code="operation-lost",
    message="the daemon was lost before the savepoint was complete",
    consequence=Consequence.RETRYABLE,
    hint="the job keeps running; send a new request",
)


class NotNow(MinflinkError):
    """What a daemon says that has just begun to lead."""

    code = "job-not-running"
    consequence = Consequence.RETRYABLE


def answers(daemon: RunningDaemon, *triggers: MinflinkError | None, status: j.OperationStatus) -> list[str]:
    """Let the Dispatcher answer, or refuse, one trigger after the other. Return the trigger ids that it gets."""
    asked: list[str] = []
    following = list(triggers)

    async def trigger(request: j.TriggerSavepoint) -> j.Done:
        asked.append(request.trigger_id)
        if (error := following.pop(0)) is not None:
            raise error
        return j.Done()

    async def told(request: j.GetSavepoint) -> j.OperationStatus:
        assert request.trigger_id in asked
        return status

    daemon.dispatcher.mailbox.on(j.TriggerSavepoint, trigger)
    daemon.dispatcher.mailbox.on(j.GetSavepoint, told)
    return asked


@pytest.mark.parametrize("what", ["savepoint", "stop"])
def test_an_operation_that_was_lost_with_its_daemon_fails_and_says_what_to_do(
    command: Command, daemon: RunningDaemon, what: str
) -> None:
    """Nothing is printed that a script could take for a savepoint (A14c)."""
    answers(daemon, None, status=j.OperationStatus(done=True, error=LOST))
    shown = command(what, RUNNING)
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "[operation-lost]" in shown.stderr
    assert "the job keeps running; send a new request" in shown.stderr


@pytest.mark.parametrize("what", ["savepoint", "stop"])
def test_a_trigger_that_is_repeated_over_a_takeover_keeps_its_id(
    command: Command, daemon: RunningDaemon, what: str
) -> None:
    """So the next daemon knows whether it has been carried out, and does not do it twice (A14c, C24)."""
    asked = answers(daemon, NotNow("the job is RECONCILING"), Conflict("x"), status=j.OperationStatus(done=True))
    shown = command(what, RUNNING)
    assert shown.exit_code == 5  # the second answer is no reason to try again
    assert len(asked) == 2
    assert len(set(asked)) == 1


@asynccontextmanager
async def cut_off(polls: int) -> AsyncIterator[str]:
    """Serve an endpoint that accepts a savepoint, is then away for so many polls, and is back with its location."""
    polled = 0

    async def accept(request: web.Request) -> web.Response:
        return web.json_response({"request-id": (await request.json())["triggerId"]}, status=202)

    async def tell(request: web.Request) -> web.Response:
        nonlocal polled
        polled += 1
        if polled <= polls and request.transport is not None:
            request.transport.abort()
        return web.json_response({"status": {"id": "COMPLETED"}, "operation": {"location": "file:///made"}})

    app = web.Application()
    app.router.add_post("/jobs/{job}/savepoints", accept)
    app.router.add_get("/jobs/{job}/savepoints/{trigger}", tell)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def test_whoever_waits_for_a_savepoint_waits_for_the_next_daemon() -> None:
    """It may take longer to come than one query is repeated for, and it knows the savepoint (A14c)."""

    async def taken() -> str:
        async with cut_off(polls=5) as url, Client(url, attempts=1) as client:
            return await client.savepoint(RUNNING, None)

    assert asyncio.run(taken()) == "file:///made"


def test_a_wait_for_the_next_daemon_is_bounded_and_says_where_to_ask_then() -> None:
    """A command comes to an end, and what it began can still be found (A14c)."""

    async def taken() -> None:
        async with cut_off(polls=10_000) as url, Client(url, attempts=1, patience=0.3) as client:
            await client.savepoint(RUNNING, None)

    with pytest.raises(DaemonUnreachable) as lost:
        asyncio.run(taken())
    assert f"GET /jobs/{RUNNING}/savepoints/" in lost.value.hint
