"""Events reach a real HTTP server and a file, and no failure of them harms anything (E19b)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from minflinkd.listeners import registry, telling
from minflinkd.listeners.interface import ChangeKind, InvalidListenerOption, JobChange, Listener
from minflinkd.listeners.registry import new_listeners
from minflinkd.listeners.telling import Listeners
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.local import LocalNetwork
from minflinkd.runtime.clock import SystemClock
from minflinkd_openlineage import OpenLineage, emitter
from tests.unit.rest.parties import FAILURE, RUNNING, Dispatcher, details
from tests.waiting import until

CHANGE = JobChange(kind=ChangeKind.STARTED, job_id="a" * 32, name="clicks", at_ms=1, started_ms=1)


class Receiver:
    """A lineage server. `answers`: statuses of its next answers; then 201."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.answers: list[int] = []
        self.requests = 0
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        self.requests += 1
        self.headers.append(request.headers)
        if self.answers and (status := self.answers.pop(0)) >= 300:
            return web.Response(status=status, text="not now")
        self.events.append(await request.json())
        return web.Response(status=201)

    @property
    def types(self) -> list[tuple[str, str]]:
        return [(each["run"]["runId"].replace("-", ""), each["eventType"]) for each in self.events]


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    found = Receiver()
    application = web.Application()
    application.router.add_post("/api/v1/lineage", found.take)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.url = runner.addresses[0] and f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield found
    await runner.cleanup()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emitter, "FIRST_PAUSE", 0.01)


@contextlib.asynccontextmanager
async def listening(
    *listeners: Listener, network: LocalNetwork | None = None
) -> AsyncIterator[tuple[Dispatcher, Listeners]]:
    network = network or LocalNetwork()
    dispatcher = Dispatcher(network)
    named = {f"listener {number}": listener for number, listener in enumerate(listeners)}
    component = Listeners(network=network, clock=SystemClock(), listeners=named, interval=0.02)
    async with component:
        yield dispatcher, component
    await network.aclose()


async def test_a_job_from_its_start_to_its_failure_is_told_with_inputs_and_outputs(receiver: Receiver) -> None:
    async with listening(OpenLineage({"url": receiver.url})) as (dispatcher, _):
        await until(lambda: (RUNNING, "START") in receiver.types)
        dispatcher.jobs[RUNNING] = details(RUNNING, JobStatus.FAILED, (FAILURE,))
        await until(lambda: (RUNNING, "FAIL") in receiver.types)
    start, failed = [each for each in receiver.events if each["run"]["runId"].startswith("aaaa")]
    assert start["inputs"] == [{"namespace": "file", "name": "/data/flights"}]
    assert failed["outputs"] == [{"namespace": "file", "name": "/data/out"}]
    assert "selectt" in failed["run"]["facets"]["errorMessage"]["stackTrace"]
    assert receiver.types.count((RUNNING, "START")) == 1


async def test_an_event_goes_to_a_file_as_well_if_one_is_named(receiver: Receiver, tmp_path: Path) -> None:
    file = tmp_path / "new" / "lineage.jsonl"
    async with listening(OpenLineage({"url": receiver.url, "file": str(file), "namespace": "prod"})):
        await until(lambda: (RUNNING, "START") in receiver.types)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert "prod" in {each["job"]["namespace"] for each in lines}
    assert lines == receiver.events


async def test_a_token_is_read_from_its_file_for_each_request(receiver: Receiver, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one\n")
    listener = OpenLineage({"url": receiver.url, "token-file": str(token)})
    await listener.start()
    await listener.told(CHANGE)
    token.write_text("two\n")
    await listener.told(CHANGE)
    await listener.aclose()
    assert [each["Authorization"] for each in receiver.headers] == ["Bearer one", "Bearer two"]


async def test_a_server_that_is_away_for_a_moment_gets_the_event_later(receiver: Receiver) -> None:
    receiver.answers = [503, 429]
    listener = OpenLineage({"url": receiver.url})
    await listener.start()
    await listener.told(CHANGE)
    await listener.aclose()
    assert (receiver.requests, len(receiver.events)) == (3, 1)


@pytest.mark.parametrize(("answers", "requests"), [([400], 1), ([500] * 9, 3)])
async def test_attempts_are_bounded_and_a_refusal_is_not_repeated(
    receiver: Receiver, answers: list[int], requests: int
) -> None:
    receiver.answers = answers
    listener = OpenLineage({"url": receiver.url, "attempts": "3"})
    await listener.start()
    await listener.told(CHANGE)
    await listener.aclose()
    assert (receiver.requests, receiver.events) == (requests, [])


class Ill(Listener):
    """Raises, or never returns."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.hangs = "hangs" in options
        self.told_of = 0

    async def start(self) -> None:
        raise RuntimeError("cannot start")

    async def told(self, change: JobChange) -> None:
        self.told_of += 1
        if self.hangs:
            await asyncio.Event().wait()
        raise RuntimeError("cannot take it")

    async def aclose(self) -> None:
        raise RuntimeError("cannot close")


@pytest.mark.parametrize("options", [{}, {"hangs": "yes"}])
async def test_an_ill_listener_harms_no_other(
    receiver: Receiver, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it raises is logged, and each listener has a queue of its own."""
    monkeypatch.setattr(telling, "LAST", 0.1)
    ill = Ill(options)
    async with listening(ill, OpenLineage({"url": receiver.url})) as (dispatcher, _):
        await until(lambda: ill.told_of and (RUNNING, "START") in receiver.types)
        dispatcher.jobs[RUNNING] = details(RUNNING, JobStatus.FINISHED)
        await until(lambda: (RUNNING, "COMPLETE") in receiver.types)


async def test_a_queue_is_bounded_and_drops_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "MOST", 3)
    queue = telling.Queue("slow")
    for number in range(5):
        queue.put(replace(CHANGE, at_ms=number))
    assert [(await queue.get()).at_ms for _ in range(3)] == [2, 3, 4]
    assert queue.dropped == 2


async def test_a_dispatcher_that_does_not_answer_is_asked_again(receiver: Receiver) -> None:
    network = LocalNetwork()
    async with listening(OpenLineage({"url": receiver.url}), network=network) as (dispatcher, _):
        await until(lambda: (RUNNING, "START") in receiver.types)
        network.detach(dispatcher.mailbox)
        dispatcher.jobs[RUNNING] = details(RUNNING, JobStatus.CANCELED)
        network.attach(dispatcher.mailbox)
        await until(lambda: (RUNNING, "ABORT") in receiver.types)


async def test_what_has_changed_last_is_told_before_the_daemon_ends(receiver: Receiver) -> None:
    network = LocalNetwork()
    dispatcher = Dispatcher(network)
    component = Listeners(
        network=network, clock=SystemClock(), listeners={"o": OpenLineage({"url": receiver.url})}, interval=3600
    )
    async with component:
        await until(lambda: (RUNNING, "START") in receiver.types)
        dispatcher.jobs[RUNNING] = details(RUNNING, JobStatus.FINISHED)
    assert (RUNNING, "COMPLETE") in receiver.types
    await network.aclose()


def test_listeners_are_found_by_their_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints([EntryPoint("openlineage", "minflinkd_openlineage:OpenLineage", registry.GROUP)])
    monkeypatch.setattr(registry, "entry_points", lambda **wanted: points.select(**wanted))
    [found] = new_listeners({"openlineage.url": "http://marquez:5000"}).values()
    assert isinstance(found, OpenLineage)
    with pytest.raises(InvalidListenerOption, match="there is no listener 'opnelineage'"):
        new_listeners({"opnelineage.url": "http://marquez:5000"})
    with pytest.raises(InvalidListenerOption, match="names no option"):
        new_listeners({"openlineage": "x"})
