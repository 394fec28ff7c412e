"""Requests that hypothesis draws: no answer blames the daemon, and nothing of it grows (E45)."""

from __future__ import annotations

import copy
import http.client
import json
import os
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minflinkd.rest.route import Route
from tests.attack.conftest import AttackedDaemon
from tests.attack.loop_watch import watched
from tests.shortened import examples

LONGEST = 0.05  # seconds of processor time that one callback may take
GROWTH = 64 << 20  # bytes of memory: caches fill, and Python frees late
CUTS = "\r\n\x00"  # what ends a header
DEADLY = {"/cluster", "/cluster/handover"}  # do what they are asked

hostile = settings(deadline=None, suppress_health_check=list(HealthCheck))

texts = st.text(max_size=40) | st.sampled_from(
    [
        "..",
        "../../etc/passwd",
        "%2e%2e%2f",
        "\x00",
        "\udcff",
        "a" * 5000,
        "${x}",
        "${secret:a}",
        "-1",
        "1e400",
        "\ud7ff",
        "null",
    ]
)
numbers = st.integers() | st.floats() | st.sampled_from([-1, 0, 2**31, 2**63, 2**64, 10**400])
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=20,
)
segments = texts | st.sampled_from(["0" * 32, "tm-" + "0" * 12, "1", "latest"])
headers = st.dictionaries(
    st.sampled_from(["Content-Type", "Accept", "Origin", "Host", "Range", "If-None-Match", "Cookie", "Expect", "X"]),
    texts | st.sampled_from(["application/json", "bytes=5-1", "bytes=0-,5-", "multipart/form-data", "100-continue"]),
    max_size=3,
)

JOB: dict[str, Any] = {
    "name": "drawn",
    "mode": "streaming",
    "parallelism": 2,
    "params": {"minutes": 60},
    "artifacts": ["code.py"],
    "checkpointing": {"interval": "5 s", "mode": "exactly-once", "alignment-timeout": "1 s"},
    "restart-strategy": {"kind": "fixed-delay", "attempts": 3, "delay": "1 s"},
    "vertices": {
        "events": {
            "source": {"format": "json", "path": "/data/events", "schema": "k STRING, t TIMESTAMP", "options": {}},
            "watermark": {"column": "t", "delay": "${minutes} minutes"},
        },
        "counts": {"inputs": ["events"], "sql": "SELECT k, count(*) FROM events GROUP BY k"},
        "out": {"inputs": [{"id": "counts", "exchange": True}], "sink": {"format": "parquet", "path": "/data/out"}},
    },
}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every part of a document."""
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from places(inner, (*path, number))


WAYS = [way for way in places(JOB) if way]


class Attacked(Protocol):
    """A server that answers HTTP, in a thread of this process. `headers`: of who may ask it."""

    thread: threading.Thread
    url: str

    @property
    def headers(self) -> Mapping[str, str]: ...


@contextmanager
def unharmed(attacked: Attacked) -> Iterator[None]:
    """Fail if the block keeps the loop of the daemon, or leaves memory or descriptors behind."""
    process = psutil.Process(os.getpid())  # the daemon is a thread of it
    before, files = process.memory_info().rss, process.num_fds()
    with watched(attacked.thread) as longest:
        yield
    assert longest.seconds < LONGEST, longest.callback
    assert process.memory_info().rss - before < GROWTH
    assert process.num_fds() <= files + 8


def _without(characters: str, text: str) -> str:
    """Return the text as it can stand in a head: otherwise nothing of it would get as far as a route."""
    return text.translate(dict.fromkeys(map(ord, characters)))


def _as_bytes(text: str) -> bytes:
    """Return what Python has for bytes that are no UTF-8 as these bytes."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return text.encode(errors="replace")


def ask(
    attacked: Attacked, method: str, target: str, extra: dict[str, str], body: bytes, *, chunked: bool = False
) -> tuple[int, bytes]:
    """Send a request as it is, without checking it. Status 0: the connection was closed instead.

    `chunked`: the body is what a client says are chunks.
    """
    host, port = attacked.url.removeprefix("http://").rsplit(":", 1)
    length = {"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": str(len(body))}
    lines = {"Host": f"{host}:{port}", **length, **attacked.headers, **extra}
    head = "".join(f"{name}: {_without(CUTS, value)}\r\n" for name, value in lines.items())
    raw = f"{method} {_without(CUTS + ' ', target)} HTTP/1.1\r\n{head}Connection: close\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        try:
            connection.sendall(_as_bytes(raw) + body)
            answer = http.client.HTTPResponse(connection, method=method)
            answer.begin()
            return answer.status, answer.read()
        except (ConnectionError, http.client.HTTPException):
            return 0, b""


def routes(attacked: AttackedDaemon) -> list[Route]:
    rest = attacked.daemon.rest
    return sorted(
        (route for route in rest.routes if route.path not in DEADLY and not route.endless),
        key=lambda route: (route.path, route.method),
    )


def blameless(status: int, answer: bytes) -> None:
    """Whether the answer does not blame the daemon. Nobody is there to analyse jobs, and it may say so."""
    assert status < 500 or status == 503, answer
    assert b"Traceback" not in answer
    if status >= 400 and answer:
        assert json.loads(answer)["errors"]


def test_no_request_of_any_route_blames_the_daemon(attacked: AttackedDaemon) -> None:
    """Ids, queries, headers and bodies are drawn, for each route (E45)."""
    known, answered = routes(attacked), 0

    @settings(hostile, max_examples=examples(900))
    @given(
        route=st.sampled_from(known),
        names=st.lists(segments, min_size=4, max_size=4),
        query=st.dictionaries(texts, texts, max_size=3),
        extra=headers,
        body=values.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=200),
    )
    def attack(route: Route, names: list[str], query: dict[str, str], extra: dict[str, str], body: bytes) -> None:
        drawn = iter(names)
        target = re.sub(r"\{\w+\}", lambda _: next(drawn), route.path)
        asked = "&".join(f"{name}={value}" for name, value in query.items())
        status, answer = ask(attacked, route.method, f"{target}?{asked}" if asked else target, extra, body)
        blameless(status, answer)
        nonlocal answered
        answered += status > 0

    with unharmed(attacked):
        attack()
    assert answered > examples(500), "most requests get an answer"


def test_no_job_blames_the_daemon(attacked: AttackedDaemon) -> None:
    """Parts of a sound job are replaced by anything (E45, J4)."""

    @settings(hostile, max_examples=examples(600))
    @given(changes=st.lists(st.tuples(st.sampled_from(WAYS), values), min_size=1, max_size=3))
    def attack(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
        document = copy.deepcopy(JOB) | {"no such key": 1}  # so that nobody waits for a session
        for (*way, last), value in changes:
            part: Any = document
            for key in way:
                part = part[key] if isinstance(part, dict) and key in part else {}
            if isinstance(part, dict) or (isinstance(part, list) and isinstance(last, int) and last < len(part)):
                part[last] = value
        body = json.dumps(document).encode()
        status, answer = ask(attacked, "POST", "/jobs?dry-run", {"Content-Type": "application/json"}, body)
        blameless(status, answer)
        assert status in (400, 413), answer

    with unharmed(attacked):
        attack()


@pytest.mark.parametrize("kind", ["RPC", "BlobServer"])
def test_bytes_of_no_meaning_end_their_own_connection_only(attacked: AttackedDaemon, kind: str) -> None:
    """Nobody has proven anything yet (E45)."""
    daemon = attacked.daemon
    host, port = daemon.rpc.endpoint if kind == "RPC" else daemon.blobs.url.removeprefix("http://").rsplit(":", 1)
    lengths = st.sampled_from([0, 1, 2**16, 2**26, 2**31, 2**32 - 1]).map(lambda n: n.to_bytes(4, "big"))

    @settings(hostile, max_examples=examples(300))
    @given(raw=st.binary(max_size=300) | st.builds(bytes.__add__, lengths, st.binary(max_size=100)))
    def attack(raw: bytes) -> None:
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            try:
                connection.sendall(raw)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass
            except ConnectionError:
                pass

    with unharmed(attacked):
        attack()
    assert ask(attacked, "GET", "/health/live", {}, b"")[0] == 200
