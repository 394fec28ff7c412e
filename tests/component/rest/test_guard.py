"""Whoever can submit a job can run code, so requests of other origins and rebound names are refused (E40)."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
from unittest.mock import Mock

import aiohttp
import pytest
from aiohttp import StreamReader, web
from aiohttp.test_utils import make_mocked_request

from minflinkd.metrics.registry import Metrics
from minflinkd.rest.backend import Backend
from minflinkd.rest.cluster import About
from minflinkd.rest.errors import BodyTooLarge, Overloaded, UnknownHost
from minflinkd.rest.guard import BodyRoom, Limits, check_host, is_loopback, own_names
from minflinkd.rest.identity.access import Access
from minflinkd.rest.server import Entrance, Listening, RestServer
from minflinkd.rpc.local import LocalNetwork
from tests.unit.rest.parties import Dispatcher

Http = aiohttp.ClientSession


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    ],
)
async def test_a_submission_by_another_sites_page_is_refused(
    http: Http, dispatcher: Dispatcher, headers: dict[str, str]
) -> None:
    """Cross-site requests are refused (E40)."""
    async with http.post("/jobs", json={}, headers=headers) as response:
        body = await response.json()
    assert (response.status, body["code"]) == (403, "cross-site")
    assert dispatcher.submissions == []


async def test_the_endpoints_own_page_and_links_to_it_work(http: Http, server: RestServer) -> None:
    own = {"Origin": server.url, "Sec-Fetch-Site": "same-origin"}
    async with http.post("/jobs", json={}, headers=own) as response:
        assert response.status == 202
    async with http.get("/jobs", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}) as response:
        assert response.status == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8081", "127.0.0.1.evil.example", "localhost.evil"])
async def test_a_rebound_host_name_is_refused(http: Http, host: str) -> None:
    """DNS rebinding makes a page of evil.example same-origin with the daemon, but not under the daemon's name (E40)."""
    async with http.get("/jobs", headers={"Host": host}) as response:
        assert (response.status, response.headers["Minflinkd-Error-Code"]) == (403, "unknown-host")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9", "127.0.0.1", "127.1.2.3:80", "[::1]:80", "proxy.int"])
def test_loopback_names_and_allowed_names_are_taken(host: str) -> None:
    check_host(host, "127.0.0.1", {"proxy.int"})


@pytest.mark.parametrize(
    "host", ["10.1.2.3:8081", "[fe80::1]:8081", "localhost", "beta.int:80", "Beta.Int.", "0.0.0.0"]
)
def test_a_server_on_the_network_takes_any_address_and_its_own_names(host: str) -> None:
    """An address cannot be rebound (E40)."""
    check_host(host, "0.0.0.0", own_names("beta.int", ""))


@pytest.mark.parametrize("bound_to", ["127.0.0.1", "0.0.0.0", "10.1.2.3"])
@pytest.mark.parametrize("host", ["any.example", "any.example:8081", "", "[", "[::1", "10.1.2.3.evil.example"])
def test_a_name_that_nobody_gave_the_server_is_refused(bound_to: str, host: str) -> None:
    """Also on a network: the page of a rebound name would else submit jobs from inside a firewall (E40)."""
    with pytest.raises(UnknownHost, match="this endpoint is not"):
        check_host(host, bound_to, own_names("beta.int", "proxy.int, tunnel.int"))


def test_names_are_those_of_the_configuration_and_of_the_host() -> None:
    names = own_names("Beta.Int.", "proxy.int, tunnel.int")
    assert names == {"beta.int", "proxy.int", "tunnel.int", socket.gethostname().lower()}


@pytest.mark.parametrize("headers", [{"Host": "["}, {"Origin": "http://["}, {"Origin": "http://[::1"}])
async def test_a_header_that_is_no_url_is_refused_like_any_other_wrong_one(http: Http, headers: dict[str, str]) -> None:
    async with http.post("/jobs", json={}, headers=headers) as response:
        assert response.status == 403


async def test_a_compressed_body_is_refused(http: Http, dispatcher: Dispatcher) -> None:
    """A few KB of it may unpack to any size (E45)."""
    body, headers = gzip.compress(b"{}"), {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    async with http.post("/jobs", data=body, headers=headers) as response:
        answer = await response.json()
    assert (response.status, answer["code"]) == (415, "unsupported-media-type")
    assert dispatcher.submissions == []


def _upload(size: int | None) -> web.Request:
    headers = {"Transfer-Encoding": "chunked"} if size is None else {"Content-Length": str(size)}
    return make_mocked_request("POST", "/jobs", headers=headers, payload=StreamReader(Mock(), 1 << 16))


async def test_all_bodies_together_have_limited_room() -> None:
    """Each is allowed, but hundreds of them would fill the memory. A chunked one may become the largest (E45)."""
    room = BodyRoom(Limits(body_bytes=100, bodies_bytes=250))
    with contextlib.ExitStack() as stack:
        for size in (100, None, 50):
            stack.enter_context(room.taken_by(_upload(size)))
        with pytest.raises(Overloaded), room.taken_by(_upload(1)):
            pass
    with pytest.raises(BodyTooLarge, match="more than 100 bytes"), room.taken_by(_upload(101)):
        pass
    with room.taken_by(_upload(100)), room.taken_by(_upload(None)):
        pass


def test_only_loopback_is_loopback() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.53", "::1", "[::1]", "app.localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.com", "")))


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
async def test_only_json_is_taken(http: Http, kind: str) -> None:
    """Types that a page may send without asking are refused (E40)."""
    async with http.post("/jobs", data=b"{}", headers={"Content-Type": kind}) as response:
        assert response.status == 415


async def test_a_large_body_is_refused(http: Http, dispatcher: Dispatcher) -> None:
    """The sizes of bodies are limited (E40)."""
    async with http.post(
        "/jobs", data=b" " * (64 * 1024 + 1), headers={"Content-Type": "application/json"}
    ) as response:
        assert (response.status, response.headers["Minflinkd-Error-Code"]) == (413, "body-too-large")
    assert dispatcher.submissions == []


async def test_a_body_that_does_not_come_is_not_waited_for(server: RestServer) -> None:
    """A slow client cannot hold the server (E40)."""
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /jobs HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
    writer.write(head.encode())
    assert b"408" in await reader.readline()
    writer.close()


async def test_large_headers_are_refused(http: Http) -> None:
    """The sizes of headers are limited (E40)."""
    async with http.get("/jobs", headers={"X-Large": "x" * 20_000}) as response:
        assert response.status == 400


async def test_requests_beyond_the_limit_are_told_to_come_again(network: LocalNetwork) -> None:
    """Connections are limited (E40), and an overloaded server answers 503 (E3)."""
    server = RestServer(
        Backend(network),
        listening=Listening(host="127.0.0.1", port=0),
        entrance=Entrance(access=Access.open_to_all()),
        about=About(version="0", config_items=list, blob_url=str),
        metrics=Metrics(version="0"),
        limits=Limits(requests=0),
    )
    async with server, aiohttp.ClientSession(server.url) as http, http.get("/jobs") as response:
        assert (response.status, response.headers["Minflinkd-Error-Code"]) == (503, "overloaded")


async def test_answers_are_not_sniffed_or_cached(http: Http) -> None:
    async with http.get("/jobs") as response:
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Cache-Control"] == "no-store"
