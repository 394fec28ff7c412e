"""Requests that hypothesis draws, to the endpoint where TaskManagers read each other's exchanges (E45, J11)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from minflinkd.taskmanager.exchange import endpoint as module
from minflinkd.taskmanager.exchange.endpoint import ANSWER_BYTES, DataEndpoint
from minflinkd.taskmanager.exchange.log import CONSUMED, COVERED, DATA, DataFile, Entry, EntryKind, LogWriter
from tests.attack.test_generated_requests import ask, headers, hostile, texts, unharmed
from tests.shortened import examples

TOKEN, WRITER = "token", "a" * 32
READERS = ("counts", "totals")
FILE = "d" * 32 + ".parquet"
SECRET = b"a file that is no part of an exchange"


class AttackedEndpoint:
    """An endpoint with one log, in a thread of its own. `above` is the directory that has the logs and a secret."""

    def __init__(self, above: Path) -> None:
        self.above = above
        (above / "secret").write_bytes(SECRET)
        log = LogWriter(above / "logs" / WRITER, READERS)
        log.describe("{}")
        (log.directory / DATA / FILE).write_bytes(b"x" * 10_000)
        for number in range(3):
            log.append(Entry(kind=EntryKind.DATA, files=(DataFile(FILE, 1, 10_000),), batch_id=number))
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="attacked endpoint")
        self.thread.start()
        self.endpoint = DataEndpoint(root=above / "logs", token=TOKEN, host="127.0.0.1", ports=[0])
        asyncio.run_coroutine_threadsafe(self.endpoint.start(), self.loop).result(30)
        self.url = self.endpoint.url

    @property
    def headers(self) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {TOKEN}"}

    def files(self) -> set[str]:
        return {str(path.relative_to(self.above)) for path in self.above.rglob("*")}

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.endpoint.aclose(), self.loop).result(30)
        asyncio.run_coroutine_threadsafe(self.loop.shutdown_default_executor(), self.loop).result(30)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedEndpoint]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BODY_PATIENCE", 0.02)  # many of the bodies never end
        endpoint = AttackedEndpoint(tmp_path_factory.mktemp("exchanges"))
        yield endpoint
        endpoint.close()


def encoded(text: str) -> str:
    """Return the text with every byte as %XX, so that none means anything before it is decoded."""
    return "".join(f"%{byte:02x}" for byte in text.encode(errors="replace"))


hostile_texts = texts | st.sampled_from(["../../secret", "../secret", "..\\secret", "/etc/passwd", "consumed", ".", ""])
names = hostile_texts | hostile_texts.map(encoded)
attempts = st.just(WRITER) | st.sampled_from(["b" * 32, "A" * 32, "a" * 31, f"{WRITER}\n"]) | names
readers = st.sampled_from(READERS) | st.sampled_from(["nobody", "_" * 64, "_" * 65, ".counts.new", "Counts"]) | names
numbers = st.integers(-2, 5).map(str) | st.sampled_from(
    ["9" * 15, "9" * 16, "9" * 4000, "-1", "1e3", "+1", " 1", "1_000", "\u0661", "\u00b2", "0x10", "", "1.5", "NaN"]
)
waits = st.sampled_from(["0", "00", "-1", "x", "", "1e3", "\u0661", "9" * 16])  # nothing that is waited for
paths = st.one_of(
    st.builds("{}/schema".format, attempts),
    st.builds("{}/entries?from={}&wait={}".format, attempts, numbers, waits),
    st.builds("{}/data/{}".format, attempts, st.just(FILE) | names),
    st.builds("{}/{}/{}{}".format, attempts, st.just("consumed"), readers, st.sampled_from(["", "?begin=1"])),
    st.builds("{}/{}/{}".format, attempts, st.just("covered"), readers),
    st.builds("{}/{}/{}".format, attempts, names, names),
)
bodies = numbers.map(lambda n: n.encode()) | st.binary(max_size=80) | st.sampled_from([b"1" * 31, b"1" * 300_000])
more = headers | st.fixed_dictionaries(
    {
        "Content-Encoding": st.sampled_from(["gzip", "deflate", "br", "identity", "\udcff", "x"]),
        "Accept-Encoding": st.sampled_from(["gzip", "br, *", ""]),
        "Range": st.sampled_from(["bytes=0-1", "bytes=5-1", "bytes=-1", "bytes=99999-", "x"]),
        "Authorization": st.sampled_from([f"Bearer {TOKEN}", "Bearer \udcff", f"bearer {TOKEN}", ""]),
    }
)
methods = st.sampled_from(["GET", "PUT", "PUT", "HEAD", "POST", "DELETE", "OPTIONS", "PATCH", "TRACE"])


def as_chunks(body: bytes) -> bytes:
    """Return the body as chunks of one byte each, so that whoever reads only the first one sees another number."""
    pieces = [body] if len(body) > 100 else [body[at : at + 1] for at in range(len(body))]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def test_no_request_reaches_beyond_its_exchange_or_blames_the_taskmanager(attacked: AttackedEndpoint) -> None:
    """Methods, paths, numbers, headers and bodies are drawn, for whoever has the token and for others (E45)."""
    before, met = attacked.files(), set[int]()
    marks = {f"logs/{WRITER}/{kind}/{reader}" for kind in (CONSUMED, COVERED) for reader in READERS}

    @settings(hostile, max_examples=examples(500))
    @given(method=methods, path=paths, extra=more, body=bodies, form=st.sampled_from(["plain", "chunks", "no chunks"]))
    @example("GET", f"{WRITER}/schema", {}, b"", "plain")  # sound requests are drawn too seldom to be sure of one
    @example("PUT", f"{WRITER}/consumed/{READERS[0]}", {}, b"1", "plain")
    def attack(method: str, path: str, extra: dict[str, str], body: bytes, form: str) -> None:
        sent = as_chunks(body) if form == "chunks" else body
        status, answer = ask(attacked, method, f"/exchanges/{path}", extra, sent, chunked=form != "plain")
        met.add(status)
        assert status < 500, answer
        assert SECRET not in answer
        assert b"Traceback" not in answer

    with unharmed(attacked):
        attack()
    assert {200, 204, 400, 401, 404, 405} <= met
    assert attacked.files() - before <= marks
    for mark in marks:
        text = (attacked.above / mark).read_text() if (attacked.above / mark).exists() else ""
        assert text == "" or (text.isdigit() and len(text) < 16)


def test_nobody_without_the_token_reads_or_changes_anything(attacked: AttackedEndpoint) -> None:
    """Whatever is asked, the answer is the same (E40)."""

    def state() -> dict[str, bytes]:
        return {name: path.read_bytes() for name in attacked.files() if (path := attacked.above / name).is_file()}

    before = state()

    @settings(hostile, max_examples=examples(200))
    @given(method=methods, path=paths, body=bodies, token=texts.filter(lambda text: text.strip() != TOKEN))
    def attack(method: str, path: str, body: bytes, token: str) -> None:
        status, _ = ask(attacked, method, f"/exchanges/{path}", {"Authorization": f"Bearer {token}"}, body)
        assert status in (0, 400, 401), "400: what is no HTTP"

    with unharmed(attacked):
        attack()
    assert state() == before


@pytest.mark.parametrize(
    ("extra", "body", "chunked", "status"),
    [
        ({}, b"1" * 33, False, 413),
        ({}, as_chunks(b"1" * 300_000), True, 413),
        ({}, b"1\r\n1\r\n", True, 408),
        ({}, b"f" * 200_000, True, 400),
        ({"Content-Encoding": "gzip"}, b"1", False, 415),
        ({"Content-Encoding": "\udcff"}, b"1", False, 415),
        ({"Authorization": "Bearer \udcff"}, b"1", False, 401),
        ({"Expect": "\udcff"}, b"1", False, 417),
    ],
)
def test_a_body_or_a_header_that_cannot_be_meant_is_the_clients_fault(
    attacked: AttackedEndpoint, extra: dict[str, str], body: bytes, chunked: bool, status: int
) -> None:
    """Bytes that are no UTF-8, a position of many digits, one that does not end, or is packed (E45)."""
    target = f"/exchanges/{WRITER}/consumed/{READERS[0]}"
    assert ask(attacked, "PUT", target, extra, body, chunked=chunked)[0] == status


@pytest.mark.parametrize("size", [10, 300_000])
def test_what_is_no_http_costs_one_line_of_the_log(
    attacked: AttackedEndpoint, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    """Anybody who reaches the port could fill the disk with tracebacks that quote what they send (E45)."""
    with capture_logs() as lines:
        ask(attacked, "PUT", "/exchanges", {}, b"g" * size, chunked=True)
        ask(attacked, "PUT", "/exchanges", {}, b"g" * size, chunked=True)
    assert len(lines) <= 1
    assert len(str(lines)) < 1000
    assert caplog.records == []


@pytest.mark.parametrize("kind", [CONSUMED, COVERED])
def test_a_reader_that_the_exchange_does_not_have_gets_no_file(attacked: AttackedEndpoint, kind: str) -> None:
    """Whoever has the token could fill the disk with positions of readers that do not exist (E45)."""
    before = attacked.files()
    for number in range(50):
        target = f"/exchanges/{WRITER}/{kind}/r{number}?begin=1"
        assert ask(attacked, "PUT", target, {}, b"1")[0] == 404
    assert attacked.files() == before


def test_a_position_that_comes_in_pieces_is_read_whole(attacked: AttackedEndpoint) -> None:
    """Half of a number is another number: the reader would begin at the wrong entry."""
    target = f"/exchanges/{WRITER}/consumed/{READERS[0]}?begin=1"
    assert ask(attacked, "PUT", target, {}, as_chunks(b"12"), chunked=True)[0] == 204
    assert (attacked.above / "logs" / WRITER / CONSUMED / READERS[0]).read_bytes() == b"12"


def test_an_answer_with_entries_is_not_larger_than_readers_take(tmp_path: Path) -> None:
    """Micro-batches of thousands of files would make answers of any size; the rest comes with the next one."""
    log = LogWriter(tmp_path, READERS)
    large = Entry(kind=EntryKind.DATA, files=tuple(DataFile(f"{n:032x}.parquet", 1, 1) for n in range(2000)))
    for _ in range(20):
        log.append(large)
    found = module._read_on(tmp_path, 0)
    assert 1 < len(found) < 20
    assert len(msgspec.json.encode(found)) < ANSWER_BYTES + 2 * len(msgspec.json.encode(large))
