"""Hostile requests over HTTP get an answer that blames the request, in JSON, and the daemon goes on (E45)."""

from __future__ import annotations

import asyncio
import gzip
import json

import aiohttp
import pytest
from structlog.testing import capture_logs

from tests.attack.conftest import AttackedDaemon

JOB = "0" * 32
DEEP = b"[" * 5000 + b"]" * 5000
JSON_BODIES = {  # the routes that take a body
    "a submission": ("POST", "/jobs"),
    "a hot restart": ("POST", f"/jobs/{JOB}/hot-restart"),
    "a savepoint": ("POST", f"/jobs/{JOB}/savepoints"),
    "a stop": ("POST", f"/jobs/{JOB}/stop"),
    "a checkpoint": ("POST", f"/jobs/{JOB}/checkpoints"),
    "a disposal": ("POST", "/savepoint-disposal"),
    "a rescaling": ("PUT", f"/jobs/{JOB}/resource-requirements"),
}
BODIES = {
    "nested 5,000 deep": DEEP,
    "nested deep in a mapping": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "not UTF-8": b'{"a": "\xff\xfe"}',
    "half a character": b'{"a": "\\ud800"}',
    "a number of a million digits": b'{"a": ' + b"1" * 1_000_000 + b"}",
    "not a number": b'{"a": NaN}',
    "cut off": b'{"a": ',
    "a list": b"[]",
    "a null": b"null",
    "zeros": b"\x00" * 1000,
}
HEADERS = {
    "a host that is no host": {"Host": "["},
    "an origin that is no origin": {"Origin": "http://["},
    "a compressed body": {"Content-Encoding": "gzip"},
    "an unknown encoding": {"Content-Encoding": "snappy"},
    "a type that is none": {"Content-Type": "\u00ff/\u00fe"},
}


async def _asked(attacked: AttackedDaemon, raw: bytes) -> tuple[int, bytes]:
    """Send bytes, and return the status and the body of the answer; (0, b"") if the connection was closed instead."""
    host, port = attacked.url.removeprefix("http://").rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    answer = b""
    try:
        async with asyncio.timeout(10):
            writer.write(raw)
            answer = await reader.read()
    except ConnectionError:  # closed before all was sent
        pass
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return (int(head.split(b" ", 2)[1]), body) if answer else (0, b"")


async def _is_well(attacked: AttackedDaemon) -> bool:
    async with aiohttp.ClientSession(attacked.url, headers=attacked.headers) as http, http.get("/health") as response:
        return response.status == 200


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("route", JSON_BODIES)
async def test_a_body_that_is_no_document_is_refused(attacked: AttackedDaemon, route: str, body: str) -> None:
    method, path = JSON_BODIES[route]
    with capture_logs() as logs:
        async with (
            aiohttp.ClientSession(attacked.url, headers=attacked.headers) as http,
            http.request(method, path, data=BODIES[body], headers={"Content-Type": "application/json"}) as response,
        ):
            answer = await response.json()
    assert 400 <= response.status < 500, answer
    assert answer["errors"]
    assert "Traceback" not in json.dumps(answer)
    assert [line for line in logs if line["log_level"] in ("error", "critical")] == []


@pytest.mark.parametrize("name", HEADERS)
async def test_a_header_that_makes_no_sense_is_refused(attacked: AttackedDaemon, name: str) -> None:
    headers = {"Content-Type": "application/json", **HEADERS[name]}
    async with (
        aiohttp.ClientSession(attacked.url, headers=attacked.headers) as http,
        http.post("/jobs", data=gzip.compress(b"{}"), headers=headers) as response,
    ):
        answer = await response.json()
    assert 400 <= response.status < 500, answer
    assert answer["errors"]
    assert response.headers["Minflinkd-Error-Code"]


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"\x00" * 100, id="zeros"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100, id="TLS"),
        pytest.param(b"GET / HTTP/9.9\r\n\r\n", id="a version that does not exist"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="no host"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n", id="two hosts"),
        pytest.param(b"G\xc3\xa9T / HTTP/1.1\r\nHost: localhost\r\n\r\n", id="a method that is none"),
        pytest.param(b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", id="a long line"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", id="a long header"),
        pytest.param(
            b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 50_000 + b"Connection: close\r\n\r\n",
            id="many headers",
        ),
        pytest.param(
            b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n", id="less than no content"
        ),
        pytest.param(
            b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            id="two lengths",
        ),
        pytest.param(
            b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            id="a chunk of zz bytes",
        ),
        pytest.param(
            b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Encoding: gzip\r\nContent-Length: 4\r\nConnection: close\r\n\r\nnope",
            id="gzip that is none",
        ),
        pytest.param(
            b"GET /jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \xff\xfe\r\nConnection: close\r\n\r\n",
            id="a token that is no text",
        ),
    ],
)
async def test_what_is_no_request_costs_only_its_own_connection(attacked: AttackedDaemon, raw: bytes) -> None:
    with capture_logs() as logs:
        status, body = await _asked(attacked, raw)
    assert status < 500, body
    assert b"Traceback" not in body
    if status >= 400:
        assert json.loads(body)["errors"], body
    assert [line for line in logs if line["log_level"] in ("error", "critical")] == []
    assert await _is_well(attacked)
