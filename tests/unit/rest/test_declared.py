"""What requests carry is read by its declaration, and a wrong value is refused with what would be right (E3, E5)."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from aiohttp.test_utils import make_mocked_request
from aiohttp.web import Request

from minflinkd.rest.declared import CHECKPOINT_NUMBER, LOG_NAME, Body, InQuery, declare, flag, whole
from minflinkd.rest.errors import InvalidRequest
from minflinkd.rest.guard import Limits
from minflinkd.rest.schemas import CheckpointTrigger, SavepointDisposal, SavepointTrigger, VertexRequirements

DRY_RUN = flag("dry-run", "only check")
LIMIT = InQuery("limit", "how many", whole(most=1000), 20)
MODE = InQuery("mode", "how", Literal["final", "latest"], "final")


def asking(query: str) -> Request:
    request = make_mocked_request("GET", f"/jobs{query}")
    declare(request, (DRY_RUN, LIMIT, MODE))
    return request


@pytest.mark.parametrize(
    ("query", "read"),
    [
        ("", (False, 20, "final")),
        ("?dry-run&limit=0&mode=latest", (True, 0, "latest")),
        ("?dry-run=TRUE&limit=1000&other=1", (True, 1000, "final")),
        ("?dry-run=0&limit=7&limit=8", (False, 7, "final")),
    ],
)
def test_what_is_not_given_has_its_default(query: str, read: tuple[bool, int, str]) -> None:
    """A flag may be given by its name alone."""
    request = asking(query)
    assert (DRY_RUN.of(request), LIMIT.of(request), MODE.of(request)) == read


@pytest.mark.parametrize(
    ("parameter", "query", "message", "hint"),
    [
        (DRY_RUN, "?dry-run=yes", "dry-run is 'yes'", "true or false"),
        (LIMIT, "?limit=1001", "limit is '1001'", "a whole number from 0 to 1,000"),
        (LIMIT, "?limit=-1", "limit is '-1'", "a whole number from 0 to 1,000"),
        (LIMIT, "?limit=", "limit is ''", "a whole number from 0 to 1,000"),
        (LIMIT, "?limit=%D9%A3", "limit is '٣'", "a whole number from 0 to 1,000"),
        (MODE, "?mode=Latest", "mode is 'Latest'", "final or latest"),
        (MODE, f"?mode={'x' * 500}", f"mode is '{'x' * 80}'", "final or latest"),
    ],
)
def test_a_wrong_value_is_refused_with_what_would_be_right(
    parameter: InQuery[Any], query: str, message: str, hint: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parameter.of(asking(query))
    assert (refused.value.message, refused.value.hint) == (message, hint)


@pytest.mark.parametrize("text", ["\ud800", "1\ud800"])
def test_half_a_character_is_a_wrong_value(text: str) -> None:
    request = make_mocked_request("GET", "/", match_info={"checkpointid": text})
    declare(request, (CHECKPOINT_NUMBER,))
    with pytest.raises(InvalidRequest, match="checkpointid"):
        CHECKPOINT_NUMBER.of(request)


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "a\n", "x" * 201])
def test_a_name_of_a_log_is_no_path(name: str) -> None:
    """Nothing but the whole text counts (E31)."""
    request = make_mocked_request("GET", "/", match_info={"filename": name})
    declare(request, (LOG_NAME,))
    with pytest.raises(InvalidRequest, match="is not the name of a log"):
        LOG_NAME.of(request)


@pytest.mark.parametrize(
    ("kind", "text", "hint"),
    [
        (CheckpointTrigger, b'{"checkpointType": "SOME"}', "CONFIGURED is INCREMENTAL"),
        (SavepointTrigger, b'{"triggerId": "%s\\n"}' % (b"0" * 32), "32 hex digits"),
        (SavepointTrigger, b'{"triggerId": 7}', "32 hex digits"),
        (SavepointTrigger, b'{"target-directory": 7}', ""),
        (dict[str, VertexRequirements], b'{"a": {"parallelism": {"upperBound": -2}}}', ""),
        (SavepointTrigger, b"[]", ""),
        (SavepointTrigger, b"\xff", ""),
        (SavepointTrigger, b"[" * 10_000, ""),
    ],
)
def test_a_wrong_body_is_refused_with_what_its_schema_says(kind: Any, text: bytes, hint: str) -> None:
    with pytest.raises(InvalidRequest, match="the body is not what it must be") as refused:
        Body(kind, "a body").decoded(text)
    assert refused.value.hint.startswith(hint)
    assert bool(refused.value.hint) is bool(hint)


@pytest.mark.parametrize(
    ("number", "read"),
    [("2", 2), ("2.0", 2), ("2e0", 2), ("2.5", None), ('"2"', None), ("1e999", None), ("9" * 20, None)],
)
def test_a_whole_number_may_have_a_fraction_of_nothing(number: str, read: int | None) -> None:
    """For a JSON schema 2.0 is an integer."""
    body = Body(dict[str, VertexRequirements], "a body")
    text = f'{{"a": {{"parallelism": {{"upperBound": {number}}}}}}}'
    if read is None:
        with pytest.raises(InvalidRequest):
            body.decoded(text.encode())
    else:
        assert body.decoded(text.encode())["a"].parallelism.upper_bound == read


def test_a_large_body_is_not_read_twice() -> None:
    """The event loop waits meanwhile. So there, 2.0 is not an integer."""
    body = Body(dict[str, VertexRequirements], "a body")
    text = b'{"a": {"parallelism": {"upperBound": 2.0}}' + b" " * 70_000 + b"}"
    with pytest.raises(InvalidRequest, match="Expected `int`, got `float`"):
        body.decoded(text)


async def test_a_body_that_is_needed_is_missed() -> None:
    """An optional one stands for nothing."""
    needed, optional = Body(SavepointDisposal, "what is deleted"), Body(SavepointTrigger, "where to", optional=True)
    request = make_mocked_request("POST", "/savepoint-disposal")
    declare(request, (needed, optional))
    assert await optional.of(request, Limits()) == SavepointTrigger()
    with pytest.raises(InvalidRequest, match="the body is missing"):
        await needed.of(request, Limits())
