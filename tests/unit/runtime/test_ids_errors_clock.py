"""Identities, errors and time: values that all other code uses."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minflinkd.runtime import ids
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.errors import (
    LONGEST_MESSAGE,
    LONGEST_TRACEBACK,
    Conflict,
    Consequence,
    ErrorInfo,
    InvalidId,
    Kind,
    MinflinkError,
    RemoteError,
    error_info,
)


def test_made_ids_are_of_the_shape_that_is_parsed() -> None:
    """Ids are made and parsed by the same code (R1)."""
    source = ids.IdSource()
    assert ids.parse_job_id(job := source.job()) == job
    assert ids.parse_resource_id(resource := source.resource()) == resource
    assert ids.parse_attempt_id(attempt := source.attempt()) == attempt


def test_ids_from_a_seed_repeat() -> None:
    """A7."""
    one, two = ids.IdSource(random.Random(3)), ids.IdSource(random.Random(3))
    assert [one.job(), one.resource()] == [two.job(), two.resource()]


def test_small_numbers_keep_their_leading_zeros() -> None:
    class Zero(random.Random):
        def getrandbits(self, k: int, /) -> int:
            return 0

    assert ids.IdSource(Zero()).job() == "0" * 32


PARSERS: list[Callable[[str], str]] = [
    ids.parse_job_id,
    ids.parse_resource_id,
    ids.parse_attempt_id,
    ids.parse_vertex_id,
]


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize("text", ["", "..", "a/b", "tm-", "tm-../x", "0" * 31, "0" * 32 + "\n", "g" * 32 + "/", "a\0"])
def test_what_could_lead_elsewhere_is_no_id(parse: Callable[[str], str], text: str) -> None:
    """Ids are parsed before they reach a path (R1)."""
    with pytest.raises(InvalidId):
        parse(text)


@given(st.text())
def test_an_accepted_id_is_one_harmless_file_name(text: str) -> None:
    """R1."""
    for parse in PARSERS:
        try:
            name = parse(text)
        except InvalidId:
            continue
        assert name == text
        assert name.isascii()
        assert not set(name) & set("/\\. \0\n")
    assert ids.is_vertex_id(text) is _accepted(ids.parse_vertex_id, text)


def _accepted(parse: Callable[[str], str], text: str) -> bool:
    try:
        parse(text)
    except InvalidId:
        return False
    return True


def test_an_error_keeps_what_it_says_across_a_process_boundary() -> None:
    """An error has a stable code, a consequence, a kind and a next step."""
    info = Conflict("the job runs", hint="cancel it").info()
    assert info == ErrorInfo(
        code="conflict",
        message="the job runs",
        consequence=Consequence.REFUSED,
        kind=Kind.CONFLICT,
        hint="cancel it",
    )
    arrived = RemoteError(msgspec.json.decode(msgspec.json.encode(info), type=ErrorInfo))
    assert (arrived.info(), str(arrived)) == (info, "the job runs (cancel it)")


def test_an_error_stored_by_an_earlier_or_a_later_version_can_be_read() -> None:
    """An earlier version had no kinds. A later one may have kinds that this one does not know."""
    stored = b'{"code": "conflict", "message": "the job runs", "consequence": "refused"%b}'
    assert msgspec.json.decode(stored % b"", type=ErrorInfo).kind is Kind.OTHER
    assert msgspec.json.decode(stored % b', "kind": "weather"', type=ErrorInfo).kind is Kind.OTHER
    packed = msgspec.msgpack.encode({"code": "x", "message": "y", "kind": "weather"})
    assert msgspec.msgpack.decode(packed, type=ErrorInfo).kind is Kind.OTHER


def test_a_foreign_error_is_internal_and_named() -> None:
    assert error_info(KeyError("x")) == ErrorInfo(code="internal", message="KeyError: 'x'", kind=Kind.UNFORESEEN)
    assert error_info(TimeoutError()).message == "TimeoutError: TimeoutError"


def test_a_traceback_is_added_on_demand_and_never_replaced() -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        _ = 1 / 0
    assert "test_a_traceback_is_added" in error_info(raised.value, with_traceback=True).traceback
    given_one = RemoteError(ErrorInfo(code="user-code", message="broken", traceback="the user's"))
    assert error_info(given_one, with_traceback=True).traceback == "the user's"


def test_an_error_has_bounded_texts_of_which_the_middle_is_cut() -> None:
    """User code may raise an error of 70 MB. Both its beginning and its end tell something (E45)."""
    text = "begin" + "x" * 70_000_000 + "the end"
    info = ErrorInfo(code="user-code", message=text, hint=text, traceback=text)
    assert [len(info.message), len(info.hint)] == [LONGEST_MESSAGE] * 2
    assert len(info.traceback) == LONGEST_TRACEBACK
    for shown in (info.message, info.traceback, str(MinflinkError(text)), error_info(ValueError(text)).message):
        assert "begin" in shown[:30]
        assert "characters are left out" in shown
        assert shown.endswith("the end")
    assert msgspec.structs.replace(info, code="x").message == info.message


class _Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_error_with_a_text_that_cannot_be_made_or_sent_is_an_error_all_the_same() -> None:
    """Otherwise nobody would learn that the task has failed (E45)."""
    assert error_info(_Unspeakable()).message == "_Unspeakable: (its text cannot be made: RuntimeError)"
    half = ErrorInfo(code="user-code", message="half a character: \udc80, and a whole one: é")
    assert half.message == "half a character: \\udc80, and a whole one: é"
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(half), type=ErrorInfo) == half


@pytest.mark.looptime
async def test_the_clock_is_the_loops() -> None:
    """The clock is virtual if the event loop's time is (A7)."""
    clock = SystemClock()
    began, wall = clock.monotonic(), time.monotonic()
    await clock.sleep(1000)
    assert clock.monotonic() - began == pytest.approx(1000)
    assert clock.monotonic() == pytest.approx(asyncio.get_running_loop().time())
    assert time.monotonic() - wall < 10


def test_the_clock_also_tells_the_time_to_threads() -> None:
    clock = SystemClock()
    assert clock.monotonic() == pytest.approx(time.monotonic(), abs=5)
    assert clock.epoch_ms() == pytest.approx(time.time() * 1000, abs=5000)
