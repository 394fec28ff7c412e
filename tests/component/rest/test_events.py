"""`/events` and `/jobs/:jobid/events` over real sockets: they break, resume, are slow, and are revoked (E16, E45)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from minflinkd.cli.event_stream import EventParser, ServerEvent
from minflinkd.rest.backend import Backend
from minflinkd.rest.events.log import Event
from minflinkd.rest.events.streams import Pace
from minflinkd.rest.history.sampler import Sampler
from minflinkd.rest.server import RestServer
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.local import LocalNetwork
from minflinkd.runtime.ids import JobId
from tests.component.rest.access_world import TOKENS, World, bearer, records, world
from tests.unit.rest.parties import FAILURE, RUNNING, Dispatcher, ResourceManager, details
from tests.waiting import until

QUICK = Pace(keep_alive=0.2, check=0.1, stalled=0.3, retry=0.1)
ETL = JobId("e" * 32)


class Listener:
    """Reads a stream beside the test."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.parser = EventParser()
        self.events: list[ServerEvent] = []
        self.raw = bytearray()
        self.ended = False
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        with contextlib.suppress(aiohttp.ClientError):
            async for piece in self.response.content.iter_any():
                self.raw += piece
                self.events += self.parser.fed(piece)
        self.ended = True

    def of(self, name: str) -> list[Any]:
        return [json.loads(event.data) for event in self.events if event.name == name]

    def names(self) -> list[str]:
        return [event.name for event in self.events]

    async def close(self) -> None:
        self.response.close()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@contextlib.asynccontextmanager
async def listening(
    http: aiohttp.ClientSession, path: str = "/events", *, last: str | None = None, **headers: str
) -> AsyncIterator[Listener]:
    given = headers | ({} if last is None else {"Last-Event-ID": last})
    response = await http.get(path, headers=given)
    assert response.status == 200, await response.text()
    assert response.content_type == "text/event-stream"
    listener = Listener(response)
    try:
        yield listener
    finally:
        await listener.close()


@pytest.fixture(autouse=True)
def parties(dispatcher: Dispatcher, resource_manager: ResourceManager) -> None:
    """Both are there."""


@pytest.fixture
def quick(server: RestServer) -> RestServer:
    server.events.pace = QUICK
    return server


@pytest.fixture
def sampler(network: LocalNetwork, server: RestServer) -> Sampler:
    return Sampler(Backend(network), server.history, tell=server.events.sampled)


async def test_it_begins_with_the_complete_state(http: aiohttp.ClientSession) -> None:
    """Each part of it is what the path of that name answers."""
    async with listening(http) as heard:
        await until(lambda: "taskmanagers" in heard.names())
        assert sorted(heard.names()) == ["job", "job", "overview", "taskmanagers"]
        async with http.get("/overview") as response:
            assert heard.of("overview") == [await response.json()]
        async with http.get("/jobs/overview") as response:
            jobs = (await response.json())["jobs"]
        assert [job["jid"] for job in heard.of("job")] == [job["jid"] for job in jobs]
        assert heard.of("job")[0].keys() == jobs[0].keys()


async def test_then_only_what_has_changed_comes(http: aiohttp.ClientSession, dispatcher: Dispatcher) -> None:
    async with listening(http) as heard:
        await until(lambda: len(heard.events) == 4)
        dispatcher.become(RUNNING, JobStatus.RESTARTING)
        await until(lambda: len(heard.events) == 5)
        assert heard.names()[4:] == ["job"]
        assert heard.of("job")[-1]["state"] == "RESTARTING"
        del dispatcher.jobs[RUNNING]
        await until(lambda: heard.of("job-gone") == [{"jid": RUNNING}])


async def test_who_comes_back_gets_what_was_missed(http: aiohttp.ClientSession, dispatcher: Dispatcher) -> None:
    """And nothing else: no state again, no reset."""
    async with listening(http) as heard:
        await until(lambda: len(heard.events) == 4)
        await until(lambda: (heard.parser.last_id or "begun") != "begun")
        last = heard.parser.last_id
    dispatcher.become(RUNNING, JobStatus.RESTARTING)
    async with listening(http, last=last) as heard:
        await until(lambda: "job" in heard.names())
        assert [job["state"] for job in heard.of("job")] == ["RESTARTING"]
        assert "reset" not in heard.names()
        assert "taskmanagers" not in heard.names()


@pytest.mark.parametrize("last", ["begun", "000000000000.-3", "nonsense", "x" * 500])
async def test_who_comes_back_with_a_place_that_is_not_kept_begins_anew(http: aiohttp.ClientSession, last: str) -> None:
    """As after a restart of the daemon."""
    async with listening(http, last=last) as heard:
        await until(lambda: len(heard.events) == 5)
        assert heard.names()[0] == "reset"


async def test_a_job_has_a_stream_of_its_own(http: aiohttp.ClientSession, dispatcher: Dispatcher) -> None:
    path = f"/jobs/{RUNNING}/events"
    async with listening(http, path) as heard:
        await until(lambda: len(heard.events) == 3)
        async with http.get(f"/jobs/{RUNNING}/checkpoints") as response:
            assert heard.of("checkpoints") == [await response.json()]
        async with http.get(f"/jobs/{RUNNING}") as response:
            assert heard.of("job")[0].keys() == (await response.json()).keys()
        dispatcher.jobs[RUNNING] = replace(dispatcher.jobs[RUNNING], failures=(FAILURE,))
        await until(lambda: len(heard.events) == 5)
        async with http.get(f"/jobs/{RUNNING}/exceptions") as response:
            assert heard.of("exceptions")[-1] == await response.json()
        assert heard.names()[3:] == ["job", "exceptions"]
        del dispatcher.jobs[RUNNING]
        await until(lambda: heard.ended)
    async with http.get(path) as response:
        assert response.status == 404


async def test_samples_come_on_both_streams(http: aiohttp.ClientSession, sampler: Sampler) -> None:
    async with listening(http) as all_jobs, listening(http, f"/jobs/{RUNNING}/events") as one:
        await until(lambda: all_jobs.events and one.events)
        taken = await sampler.sample()
        await until(lambda: all_jobs.of("sample") and one.of("sample"))
        of_all, of_one = all_jobs.of("sample")[0], one.of("sample")[0]
        assert of_all["at"] == of_one["at"] == taken.at_ms
        assert of_all["cluster"]["slots_total"] == 2
        assert of_all["jobs"] == {RUNNING: of_one["job"]}
        assert of_one["tasks"]["flights"]["batch_duration"] == 0.12


async def test_while_nothing_happens_a_comment_keeps_the_connection(
    quick: RestServer, http: aiohttp.ClientSession
) -> None:
    async with listening(http) as heard:
        await until(lambda: heard.raw.count(b": nothing new\n\n") >= 2)
        assert len(heard.events) == 4


async def test_nobody_is_asked_while_nobody_listens(http: aiohttp.ClientSession, dispatcher: Dispatcher) -> None:
    assert dispatcher.questions == 0
    async with listening(http) as heard:
        await until(lambda: heard.events)
    assert dispatcher.questions > 0


async def test_one_too_many_is_told_so(server: RestServer, http: aiohttp.ClientSession) -> None:
    """And there is room again when one has gone (E45)."""
    server.events._most = 2
    server.events.pace = QUICK
    async with listening(http), listening(http) as second:
        async with http.get("/events") as response:
            answer = await response.json()
            assert (response.status, response.headers["Retry-After"], answer["code"]) == (503, "1", "overloaded")
            assert "2 event streams are open" in answer["errors"][0]
        await second.close()
        await until(lambda: server.events.open == 1)
        async with listening(http):
            pass


async def test_who_does_not_read_is_cut_off(quick: RestServer, http: aiohttp.ClientSession) -> None:
    """The others go on. What waits for a slow client does not grow (E45)."""
    listener = socket.create_connection(("127.0.0.1", int(quick.url.rpartition(":")[2])))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    listener.sendall(f"GET /jobs/{RUNNING}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    async with listening(http, f"/jobs/{RUNNING}/events") as other:
        await until(lambda: quick.events.open == 2)
        topic = quick.events._topics[RUNNING]
        for number in range(1, 13):  # more than the kernel keeps for a connection
            topic.add(Event("sample", b'"%s"' % (b"x" * 1_000_000)))
            await until(lambda: len(other.of("sample")) == number)  # noqa: B023
        await until(lambda: quick.events.open == 1)
        assert not other.ended
    listener.close()


async def test_streams_end_with_the_daemon(server: RestServer, http: aiohttp.ClientSession) -> None:
    """In an orderly way: the client sees the end, and not that a connection broke."""
    async with listening(http) as heard:
        await until(lambda: heard.events)
        async with asyncio.timeout(10):
            await server.aclose()
        await until(lambda: heard.ended)
        assert heard.response.content.exception() is None


@pytest.fixture
async def at(network: LocalNetwork, tmp_path: Path) -> AsyncIterator[World]:
    async with world(network, tmp_path) as made:
        made.server.events.pace = QUICK
        yield made


async def test_who_may_see_some_jobs_hears_of_these_alone(
    at: World, network: LocalNetwork, dispatcher: Dispatcher
) -> None:
    """In the state, in changes, and in samples (E41)."""
    etl = details(ETL)
    dispatcher.jobs[ETL] = replace(etl, graph=replace(etl.graph, name="etl-daily"))
    sampler = Sampler(Backend(network), at.server.history, tell=at.server.events.sampled)
    async with listening(at.http, **bearer("limited")) as heard, listening(at.http, **bearer("view")) as all_jobs:
        await until(lambda: heard.events and all_jobs.events)
        dispatcher.become(RUNNING, JobStatus.RESTARTING)
        await sampler.sample()
        await until(lambda: heard.of("sample") and all_jobs.of("sample"))
        await until(lambda: len(all_jobs.of("job")) == 4)
        assert {job["jid"] for job in heard.of("job")} == {ETL}
        assert heard.of("sample")[0]["jobs"].keys() == {ETL}
        assert RUNNING not in b"".join(event.data for event in heard.events if event.name != "taskmanagers").decode()
    async with at.http.get(f"/jobs/{RUNNING}/events", headers=bearer("limited")) as response:
        assert response.status == 403
    async with at.http.get("/history", headers=bearer("limited")) as response:
        assert (await response.json())["jobs"].keys() == {ETL}


async def test_a_stream_ends_when_its_token_is_revoked(at: World) -> None:
    """Another one goes on (E41)."""
    async with listening(at.http, **bearer("view")) as heard, listening(at.http, **bearer("admin")) as other:
        await until(lambda: heard.events and other.events)
        at.access.replace_tokens([record for record in records() if record.name != "view"])
        await until(lambda: heard.ended)
        assert not other.ended


async def test_a_stream_ends_with_the_session_of_its_browser(at: World) -> None:
    async with at.http.post("/login", json={"token": TOKENS["view"].text}) as response:
        cookie = response.headers["Set-Cookie"].partition(";")[0]
    async with listening(at.http, Cookie=cookie) as heard:
        await until(lambda: heard.events)
        async with at.http.post("/logout", headers={"Cookie": cookie}) as response:
            assert response.status == 204
        await until(lambda: heard.ended)


async def test_a_stream_ends_when_its_rights_change(at: World) -> None:
    """The client comes back, and sees what it may see now."""
    async with listening(at.http, **bearer("view")) as heard:
        await until(lambda: heard.events)
        at.access.replace_tokens(
            [replace(record, jobs=("etl-*",)) if record.name == "view" else record for record in records()]
        )
        await until(lambda: heard.ended)
        last = heard.parser.last_id
    async with listening(at.http, last=last, **bearer("view")) as heard:
        await until(lambda: heard.events)
        assert heard.names()[0] == "reset"
        assert heard.of("job") == []
