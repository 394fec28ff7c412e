"""A daemon that stands by passes requests on to the leader (`rest.standby: proxy`, A13)."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from minflinkd.rest import passing_on
from minflinkd.rest.guard import Limits
from minflinkd.rest.identity.access import Access
from minflinkd.rest.identity.proving import TokenProver
from minflinkd.rest.identity.tokens import Token
from minflinkd.rest.schemas.answer import FULL_ERRORS
from minflinkd.rest.server import Listening
from minflinkd.rest.standby import StandbyServer
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.local_socket import Admitted, LocalSocket
from tests.cluster import free_port
from tests.waiting import until

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
MIB = 1 << 20


class Leader:
    """A stand-in for the leader's endpoint, which a test tells what to answer."""

    def __init__(self) -> None:
        self.requests: list[web.Request] = []
        self.answer: Handler = self.echo
        self.url = ""

    async def echo(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        return web.json_response({"path": request.raw_path, "size": len(body)}, headers={"X-Its": "own"})

    async def take(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        return await self.answer(request)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Leader]:
        app = web.Application(client_max_size=64 * MIB)
        app.router.add_route("*", "/{path:.*}", self.take)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, auto_decompress=False)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()


class Known:
    """What the standby knows of the election."""

    leader = ""


@pytest.fixture
async def leader() -> AsyncIterator[Leader]:
    async with Leader().running() as one:
        yield one


@pytest.fixture
def known(leader: Leader) -> Known:
    known = Known()
    known.leader = leader.url
    return known


@contextlib.asynccontextmanager
async def standby(
    known: Known,
    *,
    proxy: bool = True,
    at_once: int = 512,
    access: Access | None = None,
    also: Sequence[socket.socket] = (),
) -> AsyncIterator[str]:
    """`also`: other sockets on which it listens."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = StandbyServer(
        [listener, *also],
        access=access or Access.open_to_all(),
        listening=Listening(host="127.0.0.1", port=0),
        leader=lambda: known.leader,
        trouble=lambda: "",
        proxy=proxy,
        limits=Limits(requests=at_once),
    )
    async with server:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
async def http(known: Known) -> AsyncIterator[aiohttp.ClientSession]:
    async with standby(known) as url, aiohttp.ClientSession(url) as session:
        yield session


async def raw(url: str, text: str) -> bytes:
    """Send bytes as they are, and return the whole answer."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(text.replace("\n", "\r\n").encode())
        return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize("method", ["GET", "POST", "PATCH", "PUT", "DELETE"])
@pytest.mark.parametrize("path", ["/v1/jobs?jobId=7&dry-run=true", "/jobs/a%2Fb?x=%26", "/"])
async def test_the_leader_gets_method_path_and_query_and_its_answer_comes_back(
    http: aiohttp.ClientSession, leader: Leader, method: str, path: str
) -> None:
    """As if the client had asked the leader itself (A13)."""
    async with http.request(method, aiohttp.client.URL(path, encoded=True), data=b"{}") as answer:
        assert await answer.json() == {"path": path, "size": 2}
        assert (answer.status, answer.headers["X-Its"]) == (200, "own")
    assert leader.requests[0].method == method
    assert leader.requests[0].host == leader.url.removeprefix("http://")


async def test_an_error_of_the_leader_comes_back_as_it_is(http: aiohttp.ClientSession, leader: Leader) -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"code": "conflict"}, status=409)

    leader.answer = refuse
    async with http.post("/jobs") as answer:
        assert (answer.status, (await answer.json())["code"]) == (409, "conflict")


async def test_a_question_for_the_headers_alone_gets_the_length_and_no_body(
    http: aiohttp.ClientSession, leader: Leader
) -> None:
    async def logs(_: web.Request) -> web.Response:
        return web.Response(headers={"Content-Length": "12345"})

    leader.answer = logs
    async with http.head("/taskmanagers/a/log") as answer:
        assert (answer.status, answer.headers["Content-Length"]) == (200, "12345")
    async with http.head("/again") as answer:  # the connection is in order
        assert answer.status == 200


@pytest.mark.parametrize("known_length", [True, False], ids=["content-length", "chunked"])
async def test_a_large_upload_arrives_whole(http: aiohttp.ClientSession, leader: Leader, known_length: bool) -> None:
    """With a length or in chunks, and larger than any buffer between (A13)."""
    data = b"0123456789abcdef" * (2 * MIB)

    async def digest(request: web.Request) -> web.Response:
        return web.Response(text=hashlib.sha256(await request.read()).hexdigest())

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(data), MIB):
            yield data[start : start + MIB]

    leader.answer = digest
    async with http.post("/upload", data=data if known_length else pieces()) as answer:
        assert await answer.text() == hashlib.sha256(data).hexdigest()
    assert ("Content-Length" in leader.requests[0].headers) is known_length


async def test_a_leader_that_reads_slowly_holds_the_client_back(http: aiohttp.ClientSession, leader: Leader) -> None:
    """The daemon that stands by does not collect the body in its memory (A13)."""
    may_read, sent = asyncio.Event(), 0

    async def slow(request: web.Request) -> web.Response:
        await may_read.wait()
        return web.Response(text=str(len(await request.read())))

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(48):
            yield b"x" * MIB
            sent += 1

    async def steady() -> bool:
        before = sent
        await asyncio.sleep(0.2)
        return sent == before and sent > 0

    leader.answer = slow
    asking = asyncio.create_task(http.post("/upload", data=pieces()))
    await until(steady, "the client is held back")
    held_at = sent
    may_read.set()
    async with await asking as answer:
        assert await answer.text() == str(48 * MIB)
    assert held_at < 40  # what the kernel's buffers and those of three programs take


async def test_a_large_answer_arrives_as_it_is_made(http: aiohttp.ClientSession, leader: Leader) -> None:
    """A log that is followed is seen at once (A13)."""
    more = asyncio.Event()

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"first")
        await more.wait()
        for _ in range(20):
            await response.write(b"x" * MIB)
        return response

    leader.answer = stream
    async with http.get("/taskmanagers/a/log") as answer:
        assert await answer.content.readexactly(5) == b"first"
        more.set()
        assert len(await answer.read()) == 20 * MIB


async def test_compressed_bodies_are_not_touched(http: aiohttp.ClientSession, leader: Leader) -> None:
    packed = gzip.compress(b"data" * 1000)

    async def echo(request: web.Request) -> web.Response:
        return web.Response(body=await request.read(), headers={"Content-Encoding": "gzip"})

    leader.answer = echo
    async with http.post("/jobs", data=packed, headers={"Content-Encoding": "gzip"}, compress=None) as answer:
        assert await answer.read() == b"data" * 1000
    assert leader.requests[0].headers["Content-Length"] == str(len(packed))


async def test_headers_about_one_connection_are_not_passed_on(known: Known, leader: Leader) -> None:
    """Those that `Connection` names neither; nor what this daemon has checked already (RFC 9110, 7.6.1; E40)."""

    async def odd(_: web.Request) -> web.Response:
        return web.Response(headers={"Connection": "X-Link", "X-Link": "1", "Keep-Alive": "3", "X-Kept": "1"})

    leader.answer = odd
    async with standby(known) as url:
        here = url.removeprefix("http://")
        answer = await raw(
            url,
            f"GET /overview HTTP/1.1\nHost: {here}\nConnection: close, X-Hop\nX-Hop: 1\nTE: trailers\n"
            f"Upgrade: websocket\nOrigin: {url}\nSec-Fetch-Site: same-origin\nX-End: 1\nAccept: a/b\n\n",
        )
    asked = leader.requests[0].headers
    assert {"X-Hop", "TE", "Upgrade", "Origin", "Sec-Fetch-Site"}.isdisjoint(asked)
    assert (asked["X-End"], asked["Accept"]) == ("1", "a/b")
    assert (b"X-Kept: 1" in answer, b"X-Link" in answer, b"Keep-Alive" in answer) == (True, False, False)


async def test_a_page_of_another_origin_is_refused_here(http: aiohttp.ClientSession, leader: Leader) -> None:
    """The leader could not tell: it gets the request from this daemon (E40)."""
    async with http.post("/jobs", headers={"Origin": "http://evil.example"}) as answer:
        assert (answer.status, answer.headers["Minflinkd-Error-Code"]) == (403, "cross-site")
    assert leader.requests == []


async def test_an_address_in_the_request_line_leads_nowhere_else(known: Known, leader: Leader) -> None:
    """Only the path of `GET http://elsewhere/path` counts (E40)."""
    async with standby(known) as url:
        here = url.removeprefix("http://")
        answer = await raw(url, f"GET http://127.0.0.1:9/overview?a=1 HTTP/1.1\nHost: {here}\nConnection: close\n\n")
    assert answer.startswith(b"HTTP/1.1 200")
    assert leader.requests[0].raw_path == "/overview?a=1"


@pytest.mark.parametrize("proxy", [True, False])
async def test_a_request_is_passed_on_once(leader: Leader, proxy: bool) -> None:
    """Two daemons that take each other for the leader do not send a request around for ever (A13)."""
    first, second = Known(), Known()
    async with standby(first) as one, standby(second, proxy=proxy) as two, aiohttp.ClientSession() as session:
        first.leader, second.leader = two, one
        async with session.post(f"{one}/jobs", data=b"{}") as answer:
            told = await answer.json()
            assert (answer.status, answer.headers["Minflinkd-Error-Code"], answer.headers["Retry-After"]) == (
                503,
                "no-leader",
                "1",
            )
            assert "does not lead either" in told["errors"][0]


async def test_a_leader_that_is_not_there_was_asked_nothing(known: Known) -> None:
    """`no-leader` says so, and the command line asks again whatever the request is (A13)."""
    known.leader = f"http://127.0.0.1:{free_port()}"
    async with (
        standby(known) as url,
        aiohttp.ClientSession(url) as session,
        session.post("/jobs", headers={"Accept": FULL_ERRORS}) as answer,
    ):
        told = await answer.json()
    assert (answer.status, answer.headers["Minflinkd-Error-Code"]) == (503, "no-leader")
    assert "nothing was done; try again" in told["hint"]


async def test_a_leader_that_dies_with_a_request_leaves_its_outcome_unknown(
    http: aiohttp.ClientSession, leader: Leader
) -> None:
    """That must not look like `no-leader`: a hot restart sent twice is not harmless (A13)."""

    async def die(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    leader.answer = die
    async with http.post("/jobs/a/hot-restart", data=b"{}", headers={"Accept": FULL_ERRORS}) as answer:
        told = await answer.json()
    assert (answer.status, answer.headers["Minflinkd-Error-Code"], told["consequence"], told["kind"]) == (
        502,
        "leader-lost",
        "retryable",
        "cluster",
    )
    assert "may have been carried out" in told["hint"]


async def test_a_leader_that_dies_in_the_middle_of_an_upload_is_told(
    http: aiohttp.ClientSession, leader: Leader
) -> None:
    async def die(request: web.Request) -> web.Response:
        await request.content.readany()
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * MIB

    leader.answer = die
    async with http.post("/upload", data=pieces()) as answer:
        assert (answer.status, answer.headers["Minflinkd-Error-Code"]) == (502, "leader-lost")


async def test_half_an_upload_does_not_look_like_a_whole_one(known: Known, leader: Leader) -> None:
    """A client that goes away in the middle of its body breaks the connection to the leader as well (A13)."""
    broken = asyncio.Event()

    async def read(request: web.Request) -> web.Response:
        try:
            await request.read()
        except (OSError, web.RequestPayloadError):
            broken.set()
        return web.Response()

    leader.answer = read
    async with standby(known) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"POST /jobs HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf".encode())
        await until(lambda: leader.requests, "the leader has the request")
        writer.transport.abort()
        await until(broken.is_set, "the leader knows that the body is not whole")


async def test_half_an_answer_does_not_look_like_a_whole_one(http: aiohttp.ClientSession, leader: Leader) -> None:
    """A leader that goes away in the middle of a log breaks the connection to the client as well (A13)."""

    async def half(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"half")
        assert request.transport is not None
        request.transport.abort()
        return response

    leader.answer = half
    with pytest.raises(aiohttp.ClientPayloadError):
        async with http.get("/taskmanagers/a/log") as answer:
            await answer.read()


@pytest.mark.parametrize("begun", [False, True], ids=["before-its-answer", "in-the-middle-of-it"])
async def test_a_silent_leader_that_is_replaced_is_not_waited_for(
    http: aiohttp.ClientSession, leader: Leader, known: Known, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """A host that is lost closes no connection (A13). That nobody is known to lead is no reason to give up."""
    monkeypatch.setattr(passing_on, "LOOK", 0.01)
    has_it, never = asyncio.Event(), asyncio.Event()

    async def silent(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        if begun:
            await response.prepare(request)
            await response.write(b"half")
        has_it.set()
        await never.wait()
        return response

    async def ask() -> tuple[int, str]:
        async with http.post("/jobs") as answer:
            return answer.status, await answer.text()

    leader.answer = silent
    asking = asyncio.create_task(ask())
    try:
        await has_it.wait()
        known.leader = ""
        done, _ = await asyncio.wait({asking}, timeout=0.1)
        assert done == set()
        known.leader = "http://beta:8081"
        if begun:
            with pytest.raises(aiohttp.ClientPayloadError):
                await asking
        else:
            status, told = await asking
            assert (status, "another daemon leads now" in told) == (502, True)
    finally:
        never.set()


async def test_a_leader_that_says_nothing_is_given_up(leader: Leader) -> None:
    """No request is under way for ever (A13)."""
    never = asyncio.Event()

    async def silent(_: web.Request) -> web.Response:
        await never.wait()
        return web.Response()

    async def here(request: web.Request) -> web.StreamResponse:
        with pytest.raises(passing_on.LeaderLost, match="got the request but did not answer it"):
            await proxy.pass_on(request, leader.url)
        return web.Response(text="given up")

    leader.answer = silent
    proxy = passing_on.LeaderProxy(lambda: leader.url, at_once=1, header_bytes=8190, answer_timeout=0.05)
    between = Leader()
    between.answer = here
    async with proxy, between.running(), aiohttp.ClientSession() as session, session.get(between.url) as answer:
        assert await answer.text() == "given up"
    never.set()


async def test_only_so_many_requests_are_passed_on_at_once(known: Known, leader: Leader) -> None:
    """A leader that hangs does not let them pile up here; the health of this daemon is told all the same (E40)."""
    go_on = asyncio.Event()

    async def wait(_: web.Request) -> web.Response:
        await go_on.wait()
        return web.Response()

    leader.answer = wait
    async with standby(known, at_once=2) as url, aiohttp.ClientSession(url) as session:
        under_way = [asyncio.create_task(session.get("/overview")) for _ in range(2)]
        await until(lambda: len(leader.requests) == 2, "two are under way")
        async with session.get("/overview") as answer:
            assert (answer.status, answer.headers["Minflinkd-Error-Code"], answer.headers["Retry-After"]) == (
                503,
                "overloaded",
                "1",
            )
        async with session.get("/health/ready") as answer:
            assert (answer.status, (await answer.json())["role"]) == (200, "standby")
        go_on.set()
        for task in under_way:
            (await task).release()


async def test_a_client_of_the_unix_socket_reaches_the_leader_with_the_clusters_token(
    known: Known, leader: Leader, tmp_path: Path
) -> None:
    """The leader cannot see who it is, and this daemon can (E40). A token of the client's own is not replaced."""
    own = Token.derived(b"the cluster's secret, of 32 bytes or more")
    access = Access(TokenProver(own, (), SystemClock()), local=Admitted(os.geteuid()))
    unix = LocalSocket.bind(tmp_path, 1, Admitted(os.geteuid()))
    async with (
        standby(known, access=access, also=[unix.socket]) as url,
        aiohttp.ClientSession(url) as over_tcp,
        aiohttp.ClientSession("http://localhost", connector=aiohttp.UnixConnector(str(unix.path))) as over_socket,
    ):
        sent = []
        for http, headers in (
            (over_socket, {}),
            (over_socket, {"Authorization": "Bearer mine"}),
            (over_tcp, {}),
            (over_tcp, {"Authorization": "Bearer mine"}),
        ):
            async with http.get("/jobs", headers=headers):
                sent.append(leader.requests[-1].headers.get("Authorization"))
        assert sent == [f"Bearer {own.text}", "Bearer mine", None, "Bearer mine"]
    unix.close()


async def test_a_standby_asks_for_a_token_for_its_own_metrics(known: Known) -> None:
    """As the leader does, which decides about what is passed on (E41)."""
    own = Token.new()
    access = Access(TokenProver(own, (), SystemClock()))
    async with standby(known, access=access) as url, aiohttp.ClientSession(url) as http:
        for path, headers, status in (
            ("/metrics", {}, 401),
            ("/metrics", {"Authorization": f"Bearer {Token.new().text}"}, 401),
            ("/metrics", {"Authorization": f"Bearer {own.text}"}, 200),
            ("/health/live", {}, 200),
        ):
            async with http.get(path, headers=headers) as response:
                assert response.status == status, path


async def test_event_streams_leave_room_for_other_requests(known: Known, leader: Leader) -> None:
    """A stream is passed on as it comes, and takes its place for as long as somebody listens (E16, E45)."""
    said = asyncio.Event()

    async def tell(request: web.Request) -> web.StreamResponse:
        if not request.path.endswith("/events"):
            return await leader.echo(request)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        await said.wait()
        await response.write(b"data: 2\n\n")
        return response

    leader.answer = tell
    async with (
        standby(known, at_once=2) as url,
        aiohttp.ClientSession(url) as session,
        session.get("/events", headers={"Last-Event-ID": "x.-7"}) as stream,
    ):
        assert await stream.content.readline() == b"data: 1\n"
        assert leader.requests[-1].headers["Last-Event-ID"] == "x.-7"
        async with session.get("/jobs/1/events") as answer:
            assert answer.status == 503
            assert "1 event streams are being forwarded" in (await answer.json())["errors"][0]
        async with session.get("/overview") as answer:
            assert answer.status == 200
        said.set()
        assert (await stream.read()).endswith(b"data: 2\n\n")
