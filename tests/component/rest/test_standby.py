"""What a daemon that stands by answers (A13)."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
import pytest
from yarl import URL

from minflinkd.rest.identity.access import Access
from minflinkd.rest.server import Listening
from minflinkd.rest.standby import StandbyServer

LEADER = "http://alpha:8081"


@dataclass
class Known:
    """What the standby knows of the election."""

    leader: str = LEADER
    trouble: str = ""


@pytest.fixture
def known() -> Known:
    return Known()


@pytest.fixture
async def http(known: Known) -> AsyncIterator[aiohttp.ClientSession]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = StandbyServer(
        [listener],
        access=Access.open_to_all(),
        listening=Listening(host="127.0.0.1", port=0, allowed_hosts={"cluster.example"}),
        leader=lambda: known.leader,
        trouble=lambda: known.trouble,
        without_leader=lambda: 17,
    )
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with server, aiohttp.ClientSession(url) as session:
        yield session


@pytest.mark.parametrize("method", ["GET", "POST", "PATCH", "PUT", "DELETE"])
@pytest.mark.parametrize("path", ["/jobs/overview", "/v1/jobs?jobId=7&dry-run=true", "/jobs/a%2Fb?x=%26", "/"])
async def test_every_request_is_redirected_with_its_path_and_query(
    http: aiohttp.ClientSession, method: str, path: str
) -> None:
    """307 keeps the method and the body (A13)."""
    url = URL(path, encoded=True)
    async with http.request(method, url, data=b"{}", allow_redirects=False) as answer:
        assert (answer.status, answer.headers["Location"]) == (307, LEADER + path)


async def test_a_request_that_names_a_whole_url_is_redirected_to_the_leader_all_the_same(
    http: aiohttp.ClientSession,
) -> None:
    """As a proxy writes it. The address of the leader must not run into another one."""
    assert http._base_url is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", http._base_url.port)
    writer.write(b"GET http://127.0.0.1/jobs/a%2Fb?x=1 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    answer = (await reader.read()).decode()
    writer.close()
    assert f"Location: {LEADER}/jobs/a%2Fb?x=1\r\n" in answer


async def test_without_a_leader_the_answer_says_when_to_ask_again(http: aiohttp.ClientSession, known: Known) -> None:
    known.leader, known.trouble = "", "ZooKeeper is away"
    async with http.get("/overview") as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        told = await answer.json()
    assert answer.headers["Minflinkd-Error-Code"] == "no-leader"
    assert "ZooKeeper is away" in told["errors"][0]


@pytest.mark.parametrize("prefix", ["", "/v1"])
async def test_a_standby_is_ready_to_lead(http: aiohttp.ClientSession, prefix: str) -> None:
    """`/health/ready` says which one it is, and is 200 for both, leader and standby (A13)."""
    for path in ("/health", "/health/ready", "/health/live"):
        async with http.get(prefix + path) as answer:
            assert answer.status == 200
            told = {"live": True, "ready": True, "role": "standby", "pid": os.getpid(), "reasons": []}
            assert await answer.json() == told


async def test_a_standby_that_could_not_lead_is_not_ready_and_says_why(
    http: aiohttp.ClientSession, known: Known
) -> None:
    """It is alive all the same, so that nobody restarts it for this."""
    known.trouble = "other-cluster: another secret"
    async with http.get("/health/ready") as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        assert (await answer.json())["reasons"] == ["other-cluster: another secret"]
    async with http.get("/health/live") as answer:
        assert answer.status == 200


async def test_a_standby_says_in_metrics_that_it_does_not_lead(http: aiohttp.ClientSession) -> None:
    async with http.get("/metrics") as answer:
        assert answer.content_type == "text/plain"
        text = await answer.text()
    assert "minflinkd_leader 0.0" in text
    assert "minflinkd_without_leader_seconds 17.0" in text


@pytest.mark.parametrize(("host", "status"), [("evil.example", 403), ("cluster.example", 307), ("localhost:80", 307)])
async def test_a_foreign_host_name_is_refused(http: aiohttp.ClientSession, host: str, status: int) -> None:
    """As at a daemon that leads: a page whose name was rebound to this machine sends its own name (E40)."""
    async with http.get("/overview", headers={"Host": host}, allow_redirects=False) as answer:
        assert answer.status == status
        assert "Location" in answer.headers or answer.headers["Minflinkd-Error-Code"] == "unknown-host"
