"""Flink's own command line, unmodified, understands what the endpoint answers, errors included (E1).

`tests/e2e/test_flink_clients.py` runs it against a daemon with real jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from minflinkd.rest.server import RestServer
from minflinkd.rpc import jobs as j
from minflinkd.rpc.messages import Done
from minflinkd.runtime.errors import ErrorInfo
from tests.flink.clients import CommandLine, needs_flink
from tests.flink.clients import Done as Ended
from tests.unit.rest.parties import FAILED, RUNNING, Dispatcher

pytestmark = needs_flink

UNKNOWN = "9" * 32
WHERE = "file:///savepoints/savepoint-1"


@pytest.fixture
def line(server: RestServer, tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path / "conf", server.url, {})


@pytest.fixture
def asked(dispatcher: Dispatcher) -> list[Any]:
    """Return what the Dispatcher is asked to do. It has done it at once."""
    asked: list[Any] = []

    async def accept(request: Any) -> Done:
        asked.append(request)
        return Done()

    async def status(_: j.GetSavepoint) -> j.OperationStatus:
        return j.OperationStatus(done=True, location="17" if isinstance(asked[-1], j.CheckpointJob) else WHERE)

    async def disposal(_: j.GetDisposal) -> j.OperationStatus:
        return j.OperationStatus(done=True)

    for request in (j.TriggerSavepoint, j.CheckpointJob, j.DisposeSavepoint):
        dispatcher.mailbox.on(request, accept)
    dispatcher.mailbox.on(j.GetSavepoint, status)
    dispatcher.mailbox.on(j.GetDisposal, disposal)
    return asked


async def each(line: CommandLine, *commands: Sequence[str]) -> list[Ended]:
    return list(await asyncio.gather(*(line.flink(*command) for command in commands)))


async def test_jobs_are_listed_and_an_error_is_one(line: CommandLine) -> None:
    """A refusal is not taken for a success, and is not asked for again and again."""
    listed, unknown = await each(line, ("list", "-a"), ("cancel", UNKNOWN))
    assert listed.code == 0, listed.said
    assert f"{RUNNING} : " in listed.out
    assert "(RUNNING)" in listed.out
    assert f"{FAILED} : " in listed.out
    assert unknown.code == 1, unknown.said
    assert "there is no job" in unknown.said
    assert "Cancelled" not in unknown.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "wanted", "says"),
    [
        (("savepoint", RUNNING, "/s"), {"directory": "/s", "stop": False}, WHERE),
        (("savepoint", "-d", WHERE), {"path": WHERE}, "disposed"),
        (("checkpoint", RUNNING), {"full": False}, "17"),
        (("checkpoint", "-full", RUNNING), {"full": True}, "17"),
        (("stop", "-p", "/s", RUNNING), {"directory": "/s", "stop": True, "drain": False}, WHERE),
        (("stop", "--drain", "-p", "/s", RUNNING), {"directory": "/s", "stop": True, "drain": True}, WHERE),
        (("cancel", "-s", "/s", RUNNING), {"directory": "/s", "cancel": True}, WHERE),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else "",
)
async def test_a_command_asks_for_what_it_says_and_tells_the_outcome(
    line: CommandLine, asked: list[Any], arguments: tuple[str, ...], wanted: dict[str, Any], says: str
) -> None:
    done = await line.flink(*arguments)
    assert done.code == 0, done.said
    assert says in done.out, done.said
    (request,) = asked
    assert {name: getattr(request, name) for name in wanted} == wanted


@pytest.mark.slow
async def test_the_reason_of_a_failure_reaches_the_user(
    line: CommandLine, asked: list[Any], dispatcher: Dispatcher
) -> None:
    """It comes as an object of Java. Whatever is in the text, Flink can read it."""
    error = ErrorInfo(code="checkpoint-failed", message="no room: Größe 7 €, \U0001f600, \0", hint="make some")

    async def failed(_: Any) -> j.OperationStatus:
        return j.OperationStatus(done=True, error=error)

    for question in (j.GetSavepoint, j.GetDisposal):
        dispatcher.mailbox.on(question, failed)
    commands = (("savepoint", RUNNING, "/s"), ("checkpoint", RUNNING), ("savepoint", "-d", WHERE))
    for done in await each(line, *commands):
        assert done.code == 1, done.said
        assert "checkpoint-failed" in done.said
        assert "no room" in done.said
    assert asked
